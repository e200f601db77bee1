"""Everything an operator can set about a broker, with its default and its meaning.

The attribute names are the option names of the TOML file, of `HOLDFAST_BROKER_*` variables and of the command line.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

Positive = Annotated[int, msgspec.Meta(ge=1)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
# Both are topics, too. A dot, as in the name of a host, is fine; a folder is not.
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[%|a-zA-Z0-9_-][%|a-zA-Z0-9_.-]*\Z",
        max_length=127,
        description="a text of 1 to 127 letters, digits, '%', '|', '_', '-' and, but for the first, '.'",
    ),
]
FileSize = Annotated[int, msgspec.Meta(ge=65_536)]


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one broker. Sizes are bytes, times milliseconds unless the name says otherwise."""

    # Who it is and where it is reached.
    name: Name = "broker-a"
    cluster: Name = "DefaultCluster"
    zone: Name | None = None  # which clients in zone mode see it: those of this zone
    namesrv: tuple[str, ...] = ("127.0.0.1:9876",)
    listen: str = "127.0.0.1:10911"
    advertise: str | None = None  # what clients dial; the listening address if not set
    metrics_listen: str | None = None  # host:port of /metrics and /health

    # What it keeps, and how safely. `sync` acknowledges after the disk has it, `async` after the page cache has it.
    store: str = "store"
    flush: Literal["sync", "async"] = "sync"
    flush_interval_ms: Positive = 500  # how often `async` syncs all the same
    log_file_size: FileSize = 1024 * 1024 * 1024
    queue_file_entries: Positive = 300_000
    index_slots: Positive = 5_000_000
    index_entries: Positive = 20_000_000
    retention_hours: Positive = 72
    disk_force_percent: Percent = 85  # above: the oldest files are deleted though not expired
    disk_full_percent: Percent = 90  # above: writes are refused, reads go on

    # What it takes.
    message_size_max: Positive = 4 * 1024 * 1024
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    default_topic_queues: Positive = 8
    unsynced_size_max: Positive = 256 * 1024 * 1024  # appends waiting for a sync; above: SYSTEM_BUSY
    parked_pulls_max: int = 100_000
    # What all connections may hold in unfinished requests and answers that were not taken; below: room for two frames.
    memory_limit: Annotated[int, msgspec.Meta(ge=32 * 1024 * 1024)] = 256 * 1024 * 1024

    # What it hands out.
    pull_count_max: Positive = 16384
    pull_size_max: Positive = 12 * 1024 * 1024
    pull_size_default: Positive = 256 * 1024  # for clients that name no limit of their own

    # Delayed messages and transactions.
    delay_levels: str = DELAY_LEVELS
    transaction_timeout_ms: Positive = 6_000
    transaction_check_interval_ms: Positive = 30_000
    transaction_check_max: Positive = 15

    # Logical queues of dead leaders: taken over without an operator's word, which needs leases of their leaders.
    auto_force: bool = False
    lease_ms: Annotated[int, msgspec.Meta(ge=1_000, le=600_000)] = 30_000  # without a renewal: no more sends are taken

    # Replication: a replica is its master's log, somewhere else. It has its master's name, and an id above 0.
    replica_of: Name | None = None  # the broker whose replica this one is
    replica_id: Positive = 1  # which replica of it
    replica_unit: Name | None = None  # the unit in which it stands: its consumers read here while units are open
    # A replica that lacks nothing older has caught up, and is read; its master is asked for its end every 3 s.
    replica_read_lag_ms: Annotated[int, msgspec.Meta(ge=5_000)] = 10_000
    # `sync` acknowledges a message when a replica has it, too; `async` does not wait for replicas.
    replication: Literal["async", "sync"] = "async"
    replica_timeout_ms: Positive = 3_000  # then the sender is told that no replica has it: FLUSH_SLAVE_TIMEOUT
    in_sync_limit: Positive = 256 * 1024 * 1024  # a replica that lacks more is not waited for: SLAVE_NOT_AVAILABLE
    ha_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = (
        None  # where replicas connect; the next one if not set
    )
    ha_master: str | None = None  # host:port of the master's replication port, if name servers do not know it

    # Housekeeping.
    register_interval_ms: Positive = 30_000
    client_timeout_ms: Positive = 120_000
    offset_save_interval_ms: Positive = 5_000

    @property
    def is_replica(self) -> bool:
        """Whether this broker only copies another one."""
        return self.replica_of is not None

    @property
    def broker_id(self) -> int:
        """Its number among those of its name: 0 is the master."""
        return self.replica_id if self.is_replica else 0

    @property
    def ha_address(self) -> str:
        """Where replicas reach this broker."""
        host, _, port = self.address.rpartition(":")
        return f"{host}:{self.ha_port or int(port) + 1}"

    @property
    def address(self) -> str:
        """Where clients reach this broker."""
        return self.advertise or self.listen
