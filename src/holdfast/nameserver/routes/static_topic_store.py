"""Preserves static topics across restarts, so that replaced leaders stay refused and routes stay served.

    {"topics": {"orders": {"reports": {"broker-a": info, ...}, "served": {"broker-a": info, ...}, "normal": []}},
     "deleted": {"old": {"broker-a": 1763243100000}}}

The key of a topic that is fixed in a cluster is `orders@cluster`. An info is what a broker registers (`wire.mapping`).
`served` is present only while clients see something else than the merged reports. A broker's registration overrides the
file, and an unreadable part is logged and ignored.

    changed ─> written ─> changed meanwhile ─> a pause, longer for a larger file ─> written ...

No request waits for the file: a name server that dies before a write restarts from the previous version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.mapping import merge
from holdfast.model.numbers import Int64
from holdfast.nameserver.routes.static_routes import registered_info, to_infos
from holdfast.nameserver.routes.static_topics import StaticTopic, StaticTopics, key_of, name_of
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.mapping import MappingInfo, from_info

FILE: Final = "staticTopics.json"
TIMER: Final = "static topics"
_BYTES_PER_MS: Final = 20_000  # Limits encoding to a few hundredths of the time, whatever the size.


class KeptTopic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One static topic."""

    reports: dict[str, MappingInfo] = {}
    served: dict[str, MappingInfo] = {}
    normal: list[str] = []


class KeptTopics(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    topics: dict[str, KeptTopic] = {}
    deleted: dict[str, dict[str, Int64]] = {}


class StaticTopicStore(Component):
    """Saves and restores the static topics.

    Args:
        turn: The turn of the name server.
        disk: Where the file is; None: the topics are only in memory.
        static: The topics to save.
    """

    def __init__(self, turn: Turn, disk: Disk | None, static: StaticTopics) -> None:
        self._turn = turn
        self._static = static
        self._file = KeptFile(
            turn,
            disk,
            FILE,
            lambda: _describe(static),
            encode=msgspec.json.encode,
            decode=_decode,
            retry_timer=TIMER,
            bytes_per_ms=_BYTES_PER_MS,
            has_backup=False,
        )
        self._restore()
        static.is_unsaved = False

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the file."""
        return (self._file,)

    # Saving.

    def save_if_changed(self) -> None:
        """Begin to write if something changed, unless a write or the pause after it is in progress."""
        if self._file.is_durable and self._static.is_unsaved:
            self._static.is_unsaved = False
            self._file.save_change()

    # Restoring.

    def _restore(self) -> None:
        kept = self._file.load_or_forget("static topics forgotten: their file cannot be read") or KeptTopics()
        for key, topic in kept.topics.items():
            name = name_of(key)
            for broker, info in topic.reports.items():
                reason = self._static.restore(broker, name, info, normal_hosts=topic.normal)
                if reason is not None:
                    event = "report of a static topic forgotten"
                    self._turn.log("warning", event, topic=name, broker=broker, reason=reason)
            self._restore_served(name, topic.served)
        self._static.restore_deleted(kept.deleted)

    def _restore_served(self, name: str, parts: dict[str, MappingInfo]) -> None:
        if not parts:
            return
        try:
            served = merge({broker: from_info(info) for broker, info in parts.items()})
        except RemoteProtocolError as error:
            self._turn.log("warning", "route of a static topic forgotten", topic=name, reason=str(error))
            return
        topic = self._static.topics.get(key_of(name, served.scope))
        if topic is not None and served.is_complete:
            self._static.restore_served(topic, served)


def _decode(content: bytes) -> KeptTopics:
    return msgspec.json.decode(content, type=KeptTopics) if content else KeptTopics()


def _describe(static: StaticTopics) -> KeptTopics:
    return KeptTopics(
        topics={key: _describe_topic(topic) for key, topic in static.topics.items()}, deleted=static.deleted
    )


def _describe_topic(topic: StaticTopic) -> KeptTopic:
    served = topic.served
    return KeptTopic(
        reports={broker: registered_info(report) for broker, report in topic.reports.items()},
        served=to_infos(served, {}) if served is not None and served is not topic.merged else {},
        normal=sorted(topic.normal_hosts),
    )
