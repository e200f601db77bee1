"""What a name server keeps of static topics over its end: enough to refuse who was replaced, and to go on serving.

    {"topics": {"orders": {"reports": {"broker-a": info, ...}, "served": {"broker-a": info, ...}, "normal": []}},
     "deleted": {"old": {"broker-a": 1763243100000}}}

A topic that is fixed in a cluster is `orders@cluster`. An info is what a broker registers of it (`wire.mapping`).
`served` is there only while clients are told something else than the reports say together. The file is a memory, not
the truth: a broker that registers says what is true of itself, and whatever cannot be read is told and left out.

    changed ─> written ─> changed meanwhile ─> a rest, the longer the larger the file ─> written ...

Nobody waits for the file: a name server that died before it was written knows what it knew the write before.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.machine.effects import Effect, Log, SetTimer, WriteFile
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.mapping import merge
from holdfast.model.numbers import Int64
from holdfast.nameserver.routes.static_routes import to_infos, to_report
from holdfast.nameserver.routes.static_topics import StaticTopic, StaticTopics, key_of, name_of
from holdfast.wire.cluster.mapping import Info, from_info

FILE: Final = "staticTopics.json"
UNREADABLE_FILE: Final = "staticTopics.json.unreadable"
TIMER: Final = "fences"
_RETRY_MS: Final = 5_000
_BYTES_PER_MS: Final = 20_000  # Then encoding takes a few hundredths of the time, however much there is.


class KeptTopic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One static topic."""

    reports: dict[str, Info] = {}
    served: dict[str, Info] = {}
    normal: list[str] = []


class KeptTopics(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds."""

    topics: dict[str, KeptTopic] = {}
    deleted: dict[str, dict[str, Int64]] = {}


class Fences:
    """The file of static topics.

    Args:
        static: What is kept.
        content: What the file held when the name server stopped; None when there was none.
        is_durable: Whether anything is written at all.
    """

    def __init__(self, static: StaticTopics, content: bytes | None, *, is_durable: bool) -> None:
        self._static = static
        self._is_durable = is_durable
        self._is_busy = False  # being written, or resting
        self._rest_ms = 0
        self._repairs: list[Effect] = []
        if content:
            self._restore(content)
        static.is_unsaved = False

    def started(self) -> list[Effect]:
        """Return what has to be told and done about a file that could not be read."""
        repairs, self._repairs = self._repairs, []
        return repairs

    # Keeping.

    def offer(self) -> list[Effect]:
        """Begin to write what has changed, unless a write is under way or was just now."""
        if not self._is_durable or self._is_busy or not self._static.is_unsaved:
            return []
        self._is_busy, self._static.is_unsaved = True, False
        data = msgspec.json.encode(_describe(self._static))
        self._rest_ms = len(data) // _BYTES_PER_MS
        return [WriteFile(FILE, data)]

    def written(self, now_ms: int) -> list[Effect]:
        """Rest after a write."""
        return [SetTimer(TIMER, now_ms + self._rest_ms)]

    def failed(self, now_ms: int) -> list[Effect]:
        """Try again in a while what the disk did not take."""
        if not self._is_busy:
            return []
        self._static.is_unsaved = True
        return [SetTimer(TIMER, now_ms + _RETRY_MS)]

    def rested(self) -> list[Effect]:
        """Write what changed meanwhile."""
        self._is_busy = False
        return self.offer()

    # Remembering.

    def _restore(self, content: bytes) -> None:
        try:
            kept = msgspec.json.decode(content, type=KeptTopics)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._tell("static topics forgotten: their file cannot be read", file=FILE, reason=str(error))
            # The next write replaces the file; what was in it may be worth a look.
            self._repairs += [WriteFile(UNREADABLE_FILE, content)] if self._is_durable else []
            return
        for key, topic in kept.topics.items():
            name = name_of(key)
            for broker, info in topic.reports.items():
                reason = self._static.restore(broker, name, info, normal_hosts=topic.normal)
                if reason is not None:
                    self._tell("report of a static topic forgotten", topic=name, broker=broker, reason=reason)
            self._restore_served(name, topic.served)
        self._static.restore_deleted(kept.deleted)

    def _restore_served(self, name: str, parts: dict[str, Info]) -> None:
        if not parts:
            return
        try:
            served = merge({broker: from_info(info) for broker, info in parts.items()})
        except RemoteProtocolError as error:
            self._tell("route of a static topic forgotten", topic=name, reason=str(error))
            return
        topic = self._static.topics.get(key_of(name, served.scope))
        if topic is not None and served.complete:
            self._static.restore_served(topic, served)

    def _tell(self, event: str, **fields: object) -> None:
        self._repairs.append(Log("warning", event, fields))


def _describe(static: StaticTopics) -> KeptTopics:
    return KeptTopics(
        topics={key: _describe_topic(topic) for key, topic in static.topics.items()}, deleted=static.deleted
    )


def _describe_topic(topic: StaticTopic) -> KeptTopic:
    served = topic.served
    return KeptTopic(
        reports={broker: to_report(report) for broker, report in topic.reports.items()},
        served=to_infos(served, {}) if served is not None and served is not topic.merged else {},
        normal=sorted(topic.normal_hosts),
    )
