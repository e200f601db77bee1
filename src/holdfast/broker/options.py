"""Every setting of a broker, with its default.

The attribute names are the option names of the TOML file, of `HOLDFAST_BROKER_*` variables and of the command line.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.machine.role_options import RoleOptions

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

Positive = Annotated[int, msgspec.Meta(ge=1)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
# A broker and a cluster each have a topic of their name. A dot is allowed, as in host names; a slash is not.
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[%|a-zA-Z0-9_-][%|a-zA-Z0-9_.-]*\Z",
        max_length=127,
        description="a text of 1 to 127 letters, digits, '%', '|', '_', '-' and, but for the first, '.'",
    ),
]
FileSize = Annotated[int, msgspec.Meta(ge=65_536)]


class BrokerOptions(RoleOptions, frozen=True, kw_only=True):
    """Settings of one broker. Sizes are bytes, times milliseconds unless the name says otherwise."""

    # Identity and addresses.
    name: Name = "broker-a"
    cluster: Name = "DefaultCluster"
    zone: Name | None = None  # clients in zone mode see only brokers of their zone
    namesrv: tuple[str, ...] = ("127.0.0.1:9876",)
    listen: str = "127.0.0.1:10911"
    advertise: str | None = None  # the address clients connect to; default: the listening address

    # Storage. `sync` acknowledges a message once it is on disk, `async` once it is in the page cache.
    store: str = "store"
    flush: Literal["sync", "async"] = "sync"
    flush_interval_ms: Positive = 500  # how often `async` syncs
    log_file_size: FileSize = 1024 * 1024 * 1024
    queue_file_entries: Positive = 300_000
    index_slots: Positive = 5_000_000
    index_entries: Positive = 20_000_000
    retention_hours: Positive = 72
    disk_force_percent: Percent = 85  # above: the oldest files are deleted before they expire
    disk_full_percent: Percent = 90  # above: writes are refused, reads continue

    # Receiving.
    message_size_max: Positive = 4 * 1024 * 1024
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    default_topic_queues: Positive = 8
    unsynced_size_max: Positive = 256 * 1024 * 1024  # written but not yet synced; above: SYSTEM_BUSY
    parked_pulls_max: int = 100_000

    # Serving pulls.
    pull_count_max: Positive = 16384
    pull_size_max: Positive = 12 * 1024 * 1024
    pull_size_default: Positive = 256 * 1024  # for clients that set no limit

    # Delayed messages and transactions.
    delay_levels: str = DELAY_LEVELS
    transaction_timeout_ms: Positive = 6_000
    transaction_check_interval_ms: Positive = 30_000
    transaction_check_max: Positive = 15

    # Failover: take over logical queues of dead leaders without an operator. Leaders then need leases.
    auto_force: bool = False
    # Without a renewal within this time, the leader stops accepting sends.
    lease_ms: Annotated[int, msgspec.Meta(ge=1_000, le=600_000)] = 30_000

    # Replication: a replica copies its master's log. It has its master's name, and an id above 0.
    replica_of: Name | None = None  # the master's name
    replica_id: Positive = 1  # the id, unique per master
    replica_unit: Name | None = None  # the replica's unit: while units are open, its consumers read here
    # A replica within this lag has caught up and serves reads. It asks its master for the log end every 3 s.
    replica_read_lag_ms: Annotated[int, msgspec.Meta(ge=5_000)] = 10_000
    # `sync` acknowledges a message once a replica has it, too; `async` does not wait for replicas.
    replication: Literal["async", "sync"] = "async"
    replica_timeout_ms: Positive = 3_000  # then the sender gets FLUSH_SLAVE_TIMEOUT: no replica has the message
    in_sync_limit: Positive = 256 * 1024 * 1024  # replicas with a larger lag do not count: SLAVE_NOT_AVAILABLE
    # The port for replicas; default: the broker's port plus 1.
    ha_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    ha_master: str | None = None  # host:port of the master's replication port; default: ask the name servers

    # Housekeeping.
    register_interval_ms: Positive = 30_000
    client_timeout_ms: Positive = 120_000
    offset_save_interval_ms: Positive = 5_000

    @property
    def is_replica(self) -> bool:
        """Whether this broker is a replica."""
        return self.replica_of is not None

    @property
    def broker_id(self) -> int:
        """The broker id: 0 for the master, above 0 for a replica."""
        return self.replica_id if self.is_replica else 0

    @property
    def ha_address(self) -> str:
        """The `host:port` that replicas connect to."""
        host, _, port = self.address.rpartition(":")
        return f"{host}:{self.ha_port or int(port) + 1}"

    @property
    def address(self) -> str:
        """The `host:port` that clients connect to."""
        return self.advertise or self.listen
