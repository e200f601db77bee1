"""One number that a role tells about itself. Roles count in plain attributes; whoever asks gets samples of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One number of a role, at the moment of asking.

    Attributes:
        name: Without the common prefix; a counter's without `_total`.
        kind: A counter only grows, a gauge goes up and down.
        about: What it counts, for whoever reads it.
    """

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    value: float
    labels: Mapping[str, str] = {}
