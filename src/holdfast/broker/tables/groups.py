"""The consumer groups on this broker, persisted in `config/subscriptionGroup.json`.

An operator's change is on disk before the method that makes it returns. Groups that a consumer creates implicitly are
persisted some seconds later: after a crash before that, the consumer's next heartbeat creates them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.broker.flow.request import Refusal
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.config_file import config_file
from holdfast.broker.tables.creation_limit import CreationLimit
from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.group import GroupConfig, find_group_fault
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.frames.codes import ResponseCode

NAME: Final = "subscriptionGroup.json"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"

# Tools and proxies of every version use these without creating them; Java brokers have them from the start.
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)


class Groups(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The table in the format of the file and of the answer to tools."""

    subscription_group_table: dict[str, GroupConfig] = {}
    forbidden_table: dict[str, Any] = {}
    data_version: DataVersion = DataVersion()


class GroupTable(Component):
    """Every consumer group by name."""

    def __init__(self, disk: Disk, options: BrokerOptions, turn: Turn) -> None:
        self._turn = turn
        self._file = config_file(turn, disk, NAME, Groups, self.to_wire, saves_at_once=True)
        self._auto_create = options.auto_create_groups
        saved = self._file.load() or Groups(data_version=DataVersion(timestamp=turn.now_ms))
        self._groups = {name: GroupConfig(group_name=name) for name in SYSTEM_GROUPS} | saved.subscription_group_table
        self._forbidden = saved.forbidden_table
        self.data_version = saved.data_version
        self._creations = CreationLimit()

    def find(self, group: str) -> GroupConfig | None:
        """Return the configuration of *group*, or None if it does not exist."""
        return self._groups.get(group)

    def all(self) -> dict[str, GroupConfig]:
        """Return every group by name; not to be changed by the caller."""
        return self._groups

    def to_wire(self) -> Groups:
        """Return the whole table."""
        return Groups(
            subscription_group_table=self._groups, forbidden_table=self._forbidden, data_version=self.data_version
        )

    def ensure(self, group: str) -> GroupConfig | Refusal:
        """Return *group*, creating it if necessary, or the reason why it cannot be created."""
        known = self._groups.get(group)
        if known is not None:
            return known
        created = GroupConfig(group_name=group)
        may_create = self._auto_create or group.startswith(SYSTEM_GROUP_PREFIX)
        # The name becomes a folder name (of the retry topic), so only valid names are accepted.
        if not may_create or find_group_fault(created) is not None:
            return Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group} does not exist; create it first"
            )
        if not self._creations.try_acquire(self._turn.now_ms):
            return Refusal(
                ResponseCode.SYSTEM_BUSY, "too many consumer groups are created at once; try again in a moment"
            )
        self._change([created])
        return created

    def put(self, config: GroupConfig) -> None:
        """Create or replace the group of *config*, and persist the table."""
        self.put_all([config])

    def put_all(self, configs: list[GroupConfig]) -> None:
        """Create or replace the groups of *configs*, with one write."""
        self._change(configs)
        self._file.save_if_changed()

    def delete(self, group: str) -> None:
        """Delete *group*, if it exists."""
        if self._groups.pop(group, None) is not None:
            self._change([])
            self._file.save_if_changed()

    def metrics(self) -> Iterator[Sample]:
        """Yield the number of groups."""
        yield Sample("broker_groups", "gauge", "Consumer groups, including system groups.", len(self.all()))

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    def _change(self, configs: list[GroupConfig]) -> None:
        self._groups |= {config.group_name: config for config in configs}
        version = self.data_version
        self.data_version = DataVersion(
            state_version=version.state_version, timestamp=self._turn.now_ms, counter=version.counter + 1
        )
        self._file.mark_changed()
