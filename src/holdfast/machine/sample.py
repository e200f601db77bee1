"""One exported metric value of a role. Roles count in plain attributes and build samples when they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One metric value of a role, at the moment of the query.

    Attributes:
        name: The metric name without the common prefix; a counter's also without `_total`.
        kind: A counter only grows, a gauge rises and falls.
        about: The help text of the metric.
    """

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    value: float
    labels: Mapping[str, str] = {}
