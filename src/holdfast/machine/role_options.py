"""The settings that every role has, whatever it serves."""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.machine.security_options import SecurityOptions


class RoleOptions(SecurityOptions, frozen=True, kw_only=True):
    """Settings of any role. The options of each role include them, with a listening address of its own."""

    listen: str
    metrics_listen: str | None = None  # host:port of /metrics and /health
    # Limit for all connections: unfinished requests plus answers that peers have not read. The minimum fits two frames.
    memory_limit: Annotated[int, msgspec.Meta(ge=32 * 1024 * 1024)] = 256 * 1024 * 1024
