"""The consumer groups this broker knows, kept in `config/subscriptionGroup.json`.

A change is on disk before the method that made it returns.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from holdfast.broker.config import load_config, save_config
from holdfast.broker.options import BrokerOptions
from holdfast.model.group import GroupConfig
from holdfast.model.topic import RETRY_PREFIX, RETRY_TOPIC_LENGTH_MAX
from holdfast.store.disk import Disk
from holdfast.wire.registration import DataVersion

NAME: Final = "subscriptionGroup.json"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
GROUP_LENGTH_MAX: Final = RETRY_TOPIC_LENGTH_MAX - len(RETRY_PREFIX)  # The retry topic is a folder, and must fit too.
RETRY_QUEUES_MAX: Final = 1024
_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")

# Tools and proxies of every version use these without asking; Java brokers know them from birth.
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
    """The table as it is stored and as tools get it."""

    subscription_group_table: dict[str, GroupConfig] = {}
    forbidden_table: dict[str, Any] = {}
    data_version: DataVersion = DataVersion()


class GroupTable:
    """Every consumer group by name."""

    def __init__(self, disk: Disk, options: BrokerOptions, now_ms: int = 0) -> None:
        self._disk = disk
        self._auto_create = options.auto_create_groups
        saved = load_config(disk, NAME, Groups) or Groups(data_version=DataVersion(timestamp=now_ms))
        self._groups = {name: GroupConfig(group_name=name) for name in SYSTEM_GROUPS} | saved.subscription_group_table
        self._forbidden = saved.forbidden_table
        self.data_version = saved.data_version

    def find(self, group: str) -> GroupConfig | None:
        """Return how *group* is treated, or None when nobody knows it."""
        return self._groups.get(group)

    def all(self) -> dict[str, GroupConfig]:
        """Return every group by name; not to be changed by the caller."""
        return self._groups

    def to_wire(self) -> Groups:
        """Return the whole table."""
        return Groups(
            subscription_group_table=self._groups, forbidden_table=self._forbidden, data_version=self.data_version
        )

    def ensure(self, group: str, now_ms: int) -> GroupConfig | None:
        """Return *group*, created if need be; None when groups are not created by themselves here."""
        known = self._groups.get(group)
        if known is not None:
            return known
        created = self._to_create(group)
        if created is not None:
            self.put(created, now_ms)
        return created

    def ensure_all(self, groups: list[str], now_ms: int) -> None:
        """Create those of *groups* that `ensure` would create, with one write."""
        created = [config for name in groups if (config := self._to_create(name)) is not None]
        if created:
            self.put_all(created, now_ms)

    def _to_create(self, group: str) -> GroupConfig | None:
        """Return the group to be made for a name that is not known, or None when none is to be made."""
        config = GroupConfig(group_name=group)
        if group in self._groups or find_group_fault(config) is not None:
            return None  # A name becomes the folder of its retry topic: no other names may come in.
        if not self._auto_create and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        return config

    def put(self, config: GroupConfig, now_ms: int) -> None:
        """Treat the group as *config* says from now on."""
        self.put_all([config], now_ms)

    def put_all(self, configs: list[GroupConfig], now_ms: int) -> None:
        """Take over all of *configs*, with one write."""
        self._groups |= {config.group_name: config for config in configs}
        self._save(now_ms)

    def delete(self, group: str, now_ms: int) -> None:
        """Forget *group*; not there is fine."""
        if self._groups.pop(group, None) is not None:
            self._save(now_ms)

    def _save(self, now_ms: int) -> None:
        version = self.data_version
        self.data_version = DataVersion(
            state_version=version.state_version, timestamp=now_ms, counter=version.counter + 1
        )
        save_config(self._disk, NAME, self.to_wire())


def find_group_fault(config: GroupConfig) -> str | None:
    """Return why *config* cannot be taken, or None when it can."""
    name = config.group_name
    if not name or len(name) > GROUP_LENGTH_MAX:
        return f"a group name has 1 to {GROUP_LENGTH_MAX} characters, not {len(name)}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"the group name {name!r} may only contain letters, digits, '%', '|', '_' and '-'"
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
        return f"{config.retry_queue_nums} retry queues are outside 0..{RETRY_QUEUES_MAX}"
    return None
