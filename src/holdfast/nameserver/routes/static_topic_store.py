"""Preserves static topics across restarts, so that replaced leaders stay refused and routes stay served.

    {"topics": {"orders": {"reports": {"broker-a": info, ...}, "served": {"broker-a": info, ...}, "normal": []}},
     "deleted": {"old": {"broker-a": 1763243100000}}}

The key of a topic that is fixed in a cluster is `orders@cluster`. An info is what a broker registers (`wire.mapping`).
`served` is present only while clients see something else than the merged reports. A broker's registration overrides the
file, and an unreadable part is logged and ignored.

    changed ─> written ─> changed meanwhile ─> a pause, longer for a larger file ─> written ...

No request waits for the file: a name server that dies before a write restarts from the previous one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.machine.effects import Effect, Log, SetTimer, WriteFile
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.mapping import merge
from holdfast.model.numbers import Int64
from holdfast.nameserver.routes.static_routes import registered_info, to_infos
from holdfast.nameserver.routes.static_topics import StaticTopic, StaticTopics, key_of, name_of
from holdfast.wire.cluster.mapping import MappingInfo, from_info

FILE: Final = "staticTopics.json"
UNREADABLE_FILE: Final = "staticTopics.json.unreadable"
TIMER: Final = "fences"
_RETRY_MS: Final = 5_000
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


class StaticTopicStore:
    """Saves and restores the static topics.

    Args:
        static: The topics to save.
        content: Content of the file when the name server stopped; None if there was none.
        is_durable: Whether the file is written at all.
    """

    def __init__(self, static: StaticTopics, content: bytes | None, *, is_durable: bool) -> None:
        self._static = static
        self._is_durable = is_durable
        self._is_busy = False  # writing, or pausing after a write
        self._pause_ms = 0
        self._repairs: list[Effect] = []
        if content:
            self._restore(content)
        static.is_unsaved = False

    def started(self) -> list[Effect]:
        """Return the log lines and writes that a damaged file requires."""
        repairs, self._repairs = self._repairs, []
        return repairs

    # Saving.

    def save_if_changed(self) -> list[Effect]:
        """Start to write if something changed, unless a write or the pause after it is in progress."""
        if not self._is_durable or self._is_busy or not self._static.is_unsaved:
            return []
        self._is_busy, self._static.is_unsaved = True, False
        data = msgspec.json.encode(_describe(self._static))
        self._pause_ms = len(data) // _BYTES_PER_MS
        return [WriteFile(FILE, data)]

    def written(self, now_ms: int) -> list[Effect]:
        """Pause after a write."""
        return [SetTimer(TIMER, now_ms + self._pause_ms)]

    def failed(self, now_ms: int) -> list[Effect]:
        """Schedule a retry of a failed write."""
        if not self._is_busy:
            return []
        self._static.is_unsaved = True
        return [SetTimer(TIMER, now_ms + _RETRY_MS)]

    def pause_ended(self) -> list[Effect]:
        """End the pause, and write what changed meanwhile."""
        self._is_busy = False
        return self.save_if_changed()

    # Restoring.

    def _restore(self, content: bytes) -> None:
        try:
            kept = msgspec.json.decode(content, type=KeptTopics)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._log("static topics forgotten: their file cannot be read", file=FILE, reason=str(error))
            # Keep a copy for inspection: the next write replaces the file.
            self._repairs += [WriteFile(UNREADABLE_FILE, content)] if self._is_durable else []
            return
        for key, topic in kept.topics.items():
            name = name_of(key)
            for broker, info in topic.reports.items():
                reason = self._static.restore(broker, name, info, normal_hosts=topic.normal)
                if reason is not None:
                    self._log("report of a static topic forgotten", topic=name, broker=broker, reason=reason)
            self._restore_served(name, topic.served)
        self._static.restore_deleted(kept.deleted)

    def _restore_served(self, name: str, parts: dict[str, MappingInfo]) -> None:
        if not parts:
            return
        try:
            served = merge({broker: from_info(info) for broker, info in parts.items()})
        except RemoteProtocolError as error:
            self._log("route of a static topic forgotten", topic=name, reason=str(error))
            return
        topic = self._static.topics.get(key_of(name, served.scope))
        if topic is not None and served.is_complete:
            self._static.restore_served(topic, served)

    def _log(self, event: str, **fields: object) -> None:
        self._repairs.append(Log("warning", event, fields))


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
