"""Which groups consume which topics, as reported by the other brokers of the cluster (7035).

    a group commits in a topic here ─> report to the other brokers of the cluster ─> they include their lag of the group

A group may never have committed at a broker, or connected to it: its consumer reads chosen queues, or the topic was
added to another broker while the group was offline. The group lags there all the same, and only that broker knows by
how much.

Each report is complete. A broker sends it soon after a change, and repeats it every few minutes because others may have
restarted. Reports are kept in memory and dropped when their broker has long been silent. Brokers of other clusters get
no report: the group's clients may belong to a unit and consume nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.flow.awaitables import PeerCall
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.request import Answer, Handlers, Request, Timers
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.turn import Turn
from holdfast.model.errors import PeerFailed
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import ConsumedTopicList, decode_body, encode_body

TIMER: Final = "consumed topics"
ROUND_MS: Final = 10_000
REPEAT_MS: Final = 300_000
LIFE_MS: Final = 900_000
BROKERS_MAX: Final = 1_024


class _Received(msgspec.Struct, frozen=True):
    topics: dict[str, list[str]]
    received_ms: int


class ConsumedTopics(MasterComponent):
    """Reports to other brokers which topics each group consumes here, and keeps their reports."""

    def __init__(
        self, options: BrokerOptions, topics: TopicTable, offsets: OffsetTable, view: ClusterView, turn: Turn
    ) -> None:
        self._name, self._cluster = options.name, options.cluster
        self._topics = topics
        self._offsets = offsets
        self._view = view
        self._turn = turn
        self._reported: dict[str, list[str]] = {}
        self._reported_ms = 0
        self._received: dict[str, _Received] = {}

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.SHARE_CONSUMED_TOPICS: self.handle_report}

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield topic and group for every topic hosted here that a group consumes at another broker."""
        for report in self._received.values():
            for group, topics in report.topics.items():
                for topic in topics:
                    if self._topics.find(topic) is not None:
                        yield topic, group

    def handle_report(self, request: Request) -> Answer:
        """Store another broker's report (7035)."""
        report = decode_body(request.command.body, ConsumedTopicList)
        is_known = report.broker in self._received
        if report.broker != self._name and (is_known or len(self._received) < BROKERS_MAX):
            self._received[report.broker] = _Received(report.groups, self._turn.now_ms)
        return request.answer()

    def start(self) -> None:
        """Start the timer that checks for changes to report."""
        self._turn.set_timer(TIMER, self._turn.now_ms + ROUND_MS)

    def on_timer(self) -> None:
        """Report after a change, or after `REPEAT_MS`; drop the reports of silent brokers."""
        now_ms = self._turn.now_ms
        self._received = {
            broker: report for broker, report in self._received.items() if report.received_ms + LIFE_MS > now_ms
        }
        groups: dict[str, list[str]] = {}
        for (topic, group), _ in self._offsets.rows():
            groups.setdefault(group, []).append(topic)
        if groups != self._reported or (groups and now_ms - self._reported_ms >= REPEAT_MS):
            self._reported, self._reported_ms = groups, now_ms
            self._turn.spawn(self._report())
        self._turn.set_timer(TIMER, now_ms + ROUND_MS)

    async def _report(self) -> None:
        """Report to every other broker of the cluster. A broker that does not answer gets the next repetition."""
        await self._view.refresh()
        body = encode_body(ConsumedTopicList(broker=self._name, groups=self._reported))
        for broker in self._view.brokers():
            if self._view.cluster_of(broker) == self._cluster:
                try:
                    address = await self._view.find_address(broker)
                    await PeerCall(address, Command(code=RequestCode.SHARE_CONSUMED_TOPICS, body=body))
                except PeerFailed:
                    continue
