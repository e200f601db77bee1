"""Answers queries about a logical queue at its leader, asking the brokers of earlier segments if necessary.

    segment here ──────> the store                          physical offsets in, logical offsets out
    segment elsewhere ─> a plain request (`lo=false`) to its broker, which may be a Java one

The lowest offset that another broker reported for a segment is cached, so the query also works while it is down.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import PeerCall
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import LogicalQueue, Segment
from holdfast.model.numbers import parse_count
from holdfast.model.scope import GLOBAL
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import QueueIndex
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.offsets import QueueFields, SearchOffsetFields
from holdfast.wire.requests.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullFields

REMOTE_TIMEOUT_MS: Final = 3_000
_MISSING: Final = -1


class SegmentQueries:
    """Reads logical queues that this broker leads.

    Attributes:
        mappings: The mappings of this broker.
        minimums_version: Rises whenever another broker reports a new lowest offset of a segment.
    """

    def __init__(self, store: MessageStore, mappings: Mappings, view: ClusterView) -> None:
        self._store = store
        self.mappings = mappings
        self._view = view
        # (topic, queue, generation) -> lowest physical offset last reported by the segment's broker
        self._minimums: dict[tuple[str, int, int], int] = {}
        self.minimums_version = 0

    def find_led(self, topic: str, number: int) -> LogicalQueue | None:
        """Return a logical queue if this broker leads it, otherwise None."""
        mapping = self.mappings.find(topic)
        if mapping is None or not self.mappings.placement(topic, number).is_led:
            return None
        return mapping.queues[number]

    def index_of(self, topic: str, segment: Segment) -> QueueIndex | None:
        """Return the physical queue of a segment; None if it is on another broker or nothing was stored in it."""
        if segment.broker != self.mappings.broker:
            return None
        return self._store.find_queue(topic, segment.queue_id)

    def forget_topic(self, topic: str) -> None:
        """Drop everything cached about a deleted topic."""
        self._minimums = {key: offset for key, offset in self._minimums.items() if key[0] != topic}
        self.minimums_version += 1
        self._view.forget_topic(topic)  # A new topic of that name may start with lower generations.

    # Bounds.

    def maximum(self, topic: str, queue: LogicalQueue) -> int:
        """Return the end offset of a queue that is led here."""
        leader = queue.leader
        index = self.index_of(topic, leader)
        return leader.to_logical(leader.start if index is None else index.offset_max)

    def minimum(self, topic: str, queue: LogicalQueue) -> int:
        """Return the lowest offset from which on the queue is complete, as far as known without asking others."""
        known: dict[int, int] = {}
        for segment in queue.readable:
            reported = self._known_minimum(topic, queue.queue, segment)
            if reported is not None:
                known[segment.generation] = max(reported, segment.start)
        return queue.logical_min(known) or 0

    def _known_minimum(self, topic: str, number: int, segment: Segment) -> int | None:
        if segment.broker != self.mappings.broker:
            return self._minimums.get((topic, number, segment.generation))
        index = self.index_of(topic, segment)
        return None if index is None else index.offset_min

    def record_minimum(self, topic: str, number: int, segment: Segment, offset: int) -> None:
        """Cache the lowest physical offset that another broker reported for a segment."""
        key = (topic, number, segment.generation)
        if offset >= 0 and self._minimums.get(key) != offset:
            self._minimums[key] = offset
            self.minimums_version += 1

    async def is_expired(self, topic: str, number: int, segment: Segment) -> bool:
        """Return whether all messages of a closed segment have expired.

        Raises:
            PeerFailed: The segment's broker does not answer.
        """
        if segment.broker == self.mappings.broker:
            index = self.index_of(topic, segment)
            lowest, highest = (segment.start, segment.end) if index is None else (index.offset_min, index.offset_max)
        else:
            lowest = await self._fetch_offset(topic, segment, RequestCode.GET_MIN_OFFSET)
            self.record_minimum(topic, number, segment, lowest)
            highest = segment.end
            if not segment.is_sealed:  # Java's tools leave such segments.
                highest = await self._fetch_offset(topic, segment, RequestCode.GET_MAX_OFFSET)
        return lowest >= (segment.end if segment.is_sealed else highest)

    def forget_segment(self, topic: str, number: int, segment: Segment) -> None:
        """Drop the cached offset of an expired segment."""
        self._minimums.pop((topic, number, segment.generation), None)

    async def fetch_minimum(self, topic: str, queue: LogicalQueue) -> int:
        """Return the lowest offset, after asking every other broker with a segment that can be reached."""
        for segment in queue.readable:
            if segment.is_decided and segment.broker != self.mappings.broker:
                try:
                    reported = await self._fetch_offset(topic, segment, RequestCode.GET_MIN_OFFSET)
                except PeerFailed:
                    continue
                self.record_minimum(topic, queue.queue, segment, reported)
        return self.minimum(topic, queue)

    # Times.

    async def earliest_time(self, topic: str, queue: LogicalQueue) -> int:
        """Return the store time of the oldest message; -1 if there is none."""
        for segment in queue.readable:
            if not segment.is_decided:
                continue
            if segment.broker == self.mappings.broker:
                index = self.index_of(topic, segment)
                found = None if index is None else (await self._store.store_time(index, index.offset_min))
            else:
                fields = QueueFields(topic=topic, queue_id=segment.queue_id)
                answer = await self.request(segment, RequestCode.GET_EARLIEST_MSG_STORETIME, to_fields(fields))
                found = _number(answer, "timestamp")
            if found is not None and found >= 0:
                return found
        return -1

    async def search(self, topic: str, queue: LogicalQueue, time_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after *time_ms*, or the queue's end.

        With *upper*, return the last offset stored at or before it, or the queue's lowest.
        """
        if upper:
            return await self._search_back(topic, queue, time_ms)
        for segment in queue.readable:
            if segment.is_decided and not 0 <= segment.last_ms < time_ms:
                first = await self._first_at(topic, segment, time_ms)
                if first is not None:
                    return segment.to_logical(first)
        return self.maximum(topic, queue)

    async def _search_back(self, topic: str, queue: LogicalQueue, time_ms: int) -> int:
        for segment in reversed(queue.readable):
            if not segment.is_decided:
                continue
            first = await self._first_at(topic, segment, time_ms + 1)
            end, lowest = await self._bounds(topic, segment)
            last = (end if first is None else first) - 1
            if last >= max(lowest, segment.start):
                return segment.to_logical(last)
        return self.minimum(topic, queue)

    async def _first_at(self, topic: str, segment: Segment, time_ms: int) -> int | None:
        """Return the first physical offset of a segment stored at or after *time_ms*, or None if there is none."""
        if segment.broker == self.mappings.broker:
            index = self.index_of(topic, segment)
            if index is None:
                return None
            found = await self._store.offset_at_time(index, time_ms)
            end = index.offset_max
        else:
            fields = SearchOffsetFields(topic=topic, queue_id=segment.queue_id, timestamp=time_ms)
            answer = await self.request(segment, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, to_fields(fields))
            found = _number(answer, "offset")
            end = segment.end
            if not segment.is_sealed:
                end = await self._fetch_offset(topic, segment, RequestCode.GET_MAX_OFFSET)
        if segment.is_sealed:
            end = min(end, segment.end)
        return max(found, segment.start) if 0 <= found < end else None

    async def _bounds(self, topic: str, segment: Segment) -> tuple[int, int]:
        """Return the physical end and the lowest physical offset of a segment."""
        if segment.broker == self.mappings.broker:
            index = self.index_of(topic, segment)
            end, lowest = (segment.start, segment.start) if index is None else (index.offset_max, index.offset_min)
        else:
            lowest = await self._fetch_offset(topic, segment, RequestCode.GET_MIN_OFFSET)
            end = segment.end
            if not segment.is_sealed:
                end = await self._fetch_offset(topic, segment, RequestCode.GET_MAX_OFFSET)
        return (min(end, segment.end) if segment.is_sealed else end), lowest

    # Other brokers.

    async def pull(self, topic: str, segment: Segment, client_fields: PullFields, physical: int, count: int) -> Command:
        """Pull from the broker of a segment, from a physical offset on, without long polling and without committing.

        Raises:
            PeerFailed: That broker cannot be reached; the text names it.
        """
        fields = msgspec.structs.replace(
            client_fields,
            topic=topic,
            queue_id=segment.queue_id,
            queue_offset=physical,
            max_msg_nums=count,
            sys_flag=client_fields.sys_flag & ~(COMMIT_OFFSET | SUSPEND) | SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
        )
        return await self.request(segment, RequestCode.PULL_MESSAGE, to_fields(fields))

    async def request(self, segment: Segment, code: RequestCode, fields: dict[str, str]) -> Command:
        """Send a request with physical offsets to the broker of a segment, or to its replica if the broker is down.

        Raises:
            PeerFailed: The broker does not answer, or refuses; the text names it.
        """
        broker = segment.broker
        address = None
        command = Command(code=code, fields=fields | {"lo": "false", "bname": broker})
        try:
            address = await self._view.find_address(broker)
            answer: Command = await PeerCall(address, command, REMOTE_TIMEOUT_MS)
        except PeerFailed as error:
            if address is not None:
                self._view.forget_address(address)
                await self._view.refresh()
            replica_answer = await self._request_replica(broker, command)
            if replica_answer is None:
                raise PeerFailed(
                    f"broker {broker}, which holds this part of the queue, does not answer: {error}"
                ) from error
            answer = replica_answer
        if answer.code not in _TOLERATED:
            raise PeerFailed(
                f"broker {broker}, which holds this part of the queue, refused with code {answer.code}: {answer.remark}"
            )
        return answer

    async def _request_replica(self, broker: str, command: Command) -> Command | None:
        """Send a request to a replica of a broker that is down; return None if no replica answers."""
        replica = self._view.replica(broker)
        if replica is None:
            return None
        try:
            answer: Command = await PeerCall(replica, command, REMOTE_TIMEOUT_MS)
        except PeerFailed:
            return None
        return answer

    async def request_others(self, code: RequestCode, fields: dict[str, str]) -> list[Command]:
        """Send a request about a static topic to every other broker of it; return the successful answers."""
        if not self._view.has_answer():
            await self._view.refresh()
        answers = []
        mapping = self.mappings.find(fields["topic"])
        for broker in self._view.brokers(GLOBAL if mapping is None else mapping.scope):
            try:
                address = await self._view.find_address(broker)
                answer: Command = await PeerCall(address, Command(code=code, fields=fields), REMOTE_TIMEOUT_MS)
            except PeerFailed:
                continue
            if answer.code == ResponseCode.SUCCESS:
                answers.append(answer)
        return answers

    async def _fetch_offset(self, topic: str, segment: Segment, code: RequestCode) -> int:
        answer = await self.request(segment, code, to_fields(QueueFields(topic=topic, queue_id=segment.queue_id)))
        return _number(answer, "offset")


_TOLERATED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    }
)


def _number(answer: Command, name: str) -> int:
    return parse_count(answer.fields.get(name), _MISSING)
