"""All settings of a name server, with defaults and meanings.

The attribute names are the option names of the TOML file, of `HOLDFAST_NAMESRV_*` variables and of the command line.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.machine.role_options import RoleOptions


class NameServerOptions(RoleOptions, frozen=True, kw_only=True):
    """Settings of one name server. Times are milliseconds, sizes bytes."""

    listen: str = "127.0.0.1:9876"
    data: str | None = None  # data folder; None: keep everything in memory only

    # Liveness. A broker may announce a shorter timeout when it registers.
    broker_timeout_ms: int = 120_000
    scan_interval_ms: int = 5_000

    # Ordered topics: whether routes carry the queue counts kept in the KV store, and whether brokers receive them.
    order_message_enable: bool = False
    return_order_topic_config: bool = True

    # Route answers are rendered once and cached; above this size the oldest are evicted.
    answer_cache_size_max: int = 64 * 1024 * 1024

    # Clients that watch routes are notified when they change (docs/route-push.md). A broker's start, stop or death
    # affects all its topics: clients are notified within the spread, or not at all.
    broker_events: Literal["spread", "off"] = "spread"
    broker_event_spread_ms: Annotated[int, msgspec.Meta(ge=0)] = 5_000
    notify_rate_max: Annotated[int, msgspec.Meta(ge=1)] = 20_000  # frames a second
    notify_back_off: bool = True  # notify less often, or not at all, while memory, load or network are short
    link_capacity_mbit: Annotated[int, msgspec.Meta(ge=1)] | None = None  # of each interface; None: as it reports
    watches_per_channel_max: Annotated[int, msgspec.Meta(ge=0)] = 10_000  # 0: no route push
    watches_max: Annotated[int, msgspec.Meta(ge=0)] = 2_000_000  # of all connections together
