"""The topics on this broker, persisted in `config/topics.json`.

The index type of a topic's queues is set at its creation and does not change. The store is notified only after the file
contains it, because a reopened store reads it from there.

An operator's change is on disk before the method that makes it returns, so that an acknowledged creation survives a
crash. Topics that are created implicitly (`create_from_template`, `ensure`) are persisted by `save`: once per event,
before its answers are sent. `changed` contains the topics that changed since the last registration; `registration.py`
consumes it.

The system topics are those that a Java broker registers. Clients and tools expect some of them. Besides, a name server
treats the registration of a single topic as an incremental update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.broker.flow.request import Refusal
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.config_file import config_file
from holdfast.broker.tables.creation_limit import CreationLimit
from holdfast.broker.tables.deletion_markers import DeletionMarkers
from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.delay import DelayLevels
from holdfast.model.topic import (
    AUTO_CREATE_TOPIC,
    CHECK_MAX_TOPIC,
    FORWARD_TOPIC,
    HALF_TOPIC,
    MAPPING_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    QUEUE_TYPE,
    QUEUE_TYPES,
    READ_WRITE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    Permission,
    TopicConfig,
    find_index_name,
    find_name_fault,
)
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.registration import DataVersion, Topics
from holdfast.wire.frames.codes import ResponseCode

NAME: Final = "topics.json"
QUEUES_MAX: Final = 16_384
_HOLDFAST_TOPICS: Final = frozenset({CHECK_MAX_TOPIC, MAPPING_TOPIC, FORWARD_TOPIC})
_INHERITED = int(READ_WRITE | Permission.INHERIT)


class _Saved(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Content of the file. Unknown keys are ignored: other implementations may have written them."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()


class TopicTable(Component):
    """Every topic by name.

    Args:
        disk: The disk with the file.
        options: The broker's name, and whether it may create topics.
        store: The store with the queues of the topics.

    Attributes:
        deletions: The topics that sends must not create.
        data_version: Rises with every change; name servers compare it.
        changed: Names of the topics that changed since they were last registered.
    """

    def __init__(self, disk: Disk, options: BrokerOptions, turn: Turn, store: MessageStore | None = None) -> None:
        self._turn = turn
        self._file = config_file(turn, disk, NAME, _Saved, self._to_saved, saves_at_once=True)
        self.deletions = DeletionMarkers(disk, options, turn)
        self._store = store
        saved = self._file.load() or _Saved(data_version=DataVersion(timestamp=turn.now_ms))
        self._topics = {config.name: config for config in _system_topics(options)}
        self._system = frozenset(self._topics)
        self._topics |= saved.topic_config_table
        if not options.auto_create_topics:
            self._topics.pop(AUTO_CREATE_TOPIC, None)
        self.data_version = saved.data_version
        self.changed: set[str] = set()
        self._creations = CreationLimit()

    def find(self, name: str) -> TopicConfig | None:
        """Return the configuration of *name*, or None if this broker does not have the topic."""
        return self._topics.get(name)

    def all(self) -> dict[str, TopicConfig]:
        """Return every topic by name; not to be changed by the caller."""
        return self._topics

    def to_wire(self) -> Topics:
        """Return the whole table in the format of registrations and of the answer to tools."""
        return Topics(topic_config_table=self._topics, data_version=self.data_version)

    def is_system(self, name: str) -> bool:
        """Return whether *name* is a system topic."""
        return name in self._system or name in _HOLDFAST_TOPICS or name.startswith(SYSTEM_PREFIX)

    def system_names(self) -> list[str]:
        """Return the names of the system topics, including one that may not exist yet."""
        return sorted(self._system | {CHECK_MAX_TOPIC})

    def put(self, config: TopicConfig) -> None:
        """Create or replace the topic of *config*, and persist the table."""
        if self._topics.get(config.name) == config:
            # Register it again: a name server may have lost the topic.
            self.changed.add(config.name)
            return
        self.put_all([config])

    def put_all(self, configs: list[TopicConfig]) -> None:
        """Create or replace the topics of *configs*, with one write."""
        self._add(configs)
        self.save()
        if self._store is not None:
            for config in configs:
                self._store.set_queue_type(config.name, config.queue_type)

    def find_kind_fault(self, config: TopicConfig) -> str | None:
        """Return why *config* asks for an impossible index type, or None if the type is possible."""
        name, kind = config.name, config.queue_type
        if kind not in QUEUE_TYPES.values():
            return f"the queue type {kind} is not supported; use {' or '.join(QUEUE_TYPES.values())}"
        known = self._topics.get(name)
        if known is not None:
            if find_index_name(known.queue_type) == find_index_name(kind):
                return None
            return (
                f"{QUEUE_TYPE} of topic {name} cannot become {kind} while it is served: stop the broker and run "
                f"`holdfast index convert {name} --to {find_index_name(kind)} --store DIR` on its folder"
            )
        leftover = None if self._store is None else self._store.find_queue_type(name)
        if leftover is not None and leftover != kind:
            return f"queues of an earlier topic {name} with another {QUEUE_TYPE} still exist: delete it first"
        return None

    def is_creatable(self, name: str, template: str) -> bool:
        """Return whether a send to *name* would create it from the topic *template*."""
        if name in self._topics or name.startswith(RETRY_PREFIX) or find_name_fault(name) is not None:
            return False
        base = self._topics.get(template)
        return base is not None and bool(base.permission & Permission.INHERIT)

    def create_from_template(self, name: str, template: str, queues: int) -> TopicConfig | Refusal:
        """Create a missing topic, with the smaller of *queues* and the template's number of queues."""
        fault = find_name_fault(name)
        if fault is not None:
            return Refusal(ResponseCode.INVALID_PARAMETER, fault)
        if name.startswith(RETRY_PREFIX):
            return self.ensure(name, 1)
        if self.deletions.is_deleted(name):
            return Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] was deleted, so a send does not create it; create it again first, with holdfast topic "
                "create or mqadmin updateTopic",
            )
        base = self._topics.get(template)
        if base is None or not base.permission & Permission.INHERIT:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if not self._creations.try_acquire(self._turn.now_ms):
            return Refusal(ResponseCode.SYSTEM_BUSY, "too many topics are created at once; try again in a moment")
        count = max(1, min(queues, base.write_queues))
        created = TopicConfig(
            name=name,
            read_queues=count,
            write_queues=count,
            permission=int(base.permission & ~Permission.INHERIT),
            filter_type=base.filter_type,
        )
        self._add([created])
        return created

    def ensure(self, name: str, queues: int, permission: int = int(READ_WRITE)) -> TopicConfig:
        """Return topic *name*, which the broker itself needs; create it with *queues* queues if it is missing."""
        known = self._topics.get(name)
        if known is not None:
            return known
        created = TopicConfig(name=name, read_queues=queues, write_queues=queues, permission=permission)
        self._add([created])
        return created

    def ensure_all(self, queues: dict[str, int]) -> None:
        """Create the missing ones of these topics, given as name and number of queues."""
        created = [
            TopicConfig(name=name, read_queues=count, write_queues=count)
            for name, count in queues.items()
            if name not in self._topics
        ]
        if created:
            self._add(created)

    def delete(self, name: str) -> None:
        """Delete *name*, if it exists."""
        if self._topics.pop(name, None) is not None:
            self.changed.discard(name)
            self._add([])
            self.save()

    def drain_changed(self) -> dict[str, TopicConfig]:
        """Return the topics that changed since the last call, and clear the set."""
        drained = {name: self._topics[name] for name in self.changed if name in self._topics}
        self.changed = set()
        return drained

    def mark_changed(self, name: str) -> None:
        """Mark *name* for registration: something beside its configuration changed that name servers need to know."""
        self.changed.add(name)
        self._bump()

    def metrics(self) -> Iterator[Sample]:
        """Yield the number of topics."""
        yield Sample("broker_topics", "gauge", "Topics, including system topics.", len(self._topics))

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file, self.deletions.file)

    def save(self) -> None:
        """Persist the table if it changed since the last write."""
        self._file.save_if_changed()

    def _to_saved(self) -> _Saved:
        return _Saved(topic_config_table=self._topics, data_version=self.data_version)

    def _add(self, configs: list[TopicConfig]) -> None:
        self._topics |= {config.name: config for config in configs}
        self.changed |= {config.name for config in configs}
        self._bump()
        self._file.mark_changed()

    def _bump(self) -> None:
        version = self.data_version
        self.data_version = DataVersion(
            state_version=version.state_version, timestamp=self._turn.now_ms, counter=version.counter + 1
        )


def find_topic_fault(config: TopicConfig) -> str | None:
    """Return why *config* is invalid, or None if it is valid."""
    fault = find_name_fault(config.name)
    if fault is not None:
        return fault
    for label, count in (("read", config.read_queues), ("write", config.write_queues)):
        if not 0 <= count <= QUEUES_MAX:
            return f"{count} {label} queues are outside 0..{QUEUES_MAX}"
    if not 0 <= config.permission <= _INHERITED:
        return f"the permission {config.permission} is outside 0..{_INHERITED}"
    return None


def _system_topics(options: BrokerOptions) -> list[TopicConfig]:
    cluster, broker = options.cluster, options.name
    counts = {
        SELF_TEST_TOPIC: 1,
        "BenchmarkTest": 1024,
        OFFSET_MOVED_TOPIC: 1,
        SCHEDULE_TOPIC: len(DelayLevels(options.delay_levels)),
        f"{cluster}_REPLY_TOPIC": 1,
        f"rmq_sys_REVIVE_LOG_{cluster}": 8,
        HALF_TOPIC: 1,
        OP_HALF_TOPIC: 1,
        "rmq_sys_wheel_timer": 1,
    }
    topics = [TopicConfig(name=name, read_queues=count, write_queues=count) for name, count in counts.items()]
    inherited = {cluster: 16, broker: 1}
    if options.auto_create_topics:
        inherited[AUTO_CREATE_TOPIC] = options.default_topic_queues
    topics += [
        TopicConfig(name=name, read_queues=count, write_queues=count, permission=_INHERITED)
        for name, count in inherited.items()
    ]
    sync_name = f"rmq_sys_SYNC_BROKER_MEMBER_{broker}"
    topics.append(TopicConfig(name=sync_name, read_queues=1, write_queues=1, permission=int(Permission.INHERIT)))
    return topics
