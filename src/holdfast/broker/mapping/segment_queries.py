"""Answers queries about one segment of a queue: from the store, or by asking the broker that holds it.

    segment here ──────> the store
    segment elsewhere ─> a plain request (`lo=false`) to its broker, which may be a Java one

The lowest offset that another broker reported for a segment is cached, so the query also works while it is down.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import PeerCall
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import Segment
from holdfast.model.numbers import parse_count
from holdfast.model.queue import LogicalQueueId, PhysicalOffset
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.offsets import QueueFields, SearchOffsetFields
from holdfast.wire.requests.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullFields

REMOTE_TIMEOUT_MS: Final = 3_000


class SegmentQueries:
    """Reads the segments of queues that this broker leads.

    Attributes:
        store: The store with the segments of this broker.
        mappings: The mappings of this broker.
        minimums_version: Rises whenever another broker reports a new lowest offset of a segment.
    """

    def __init__(self, store: MessageStore, mappings: Mappings, view: ClusterView) -> None:
        self.store = store
        self.mappings = mappings
        self._view = view
        # (topic, queue, generation) -> lowest physical offset last reported by the segment's broker
        self._minimums: dict[tuple[str, int, int | None], PhysicalOffset] = {}
        self.minimums_version = 0

    def index_of(self, topic: str, segment: Segment) -> QueueIndex | None:
        """Return the physical queue of a segment; None if it is on another broker or nothing was stored in it."""
        if segment.broker != self.mappings.broker:
            return None
        return self.store.find_queue(topic, segment.queue_id)

    def forget_topic(self, topic: str) -> None:
        """Drop everything cached about a deleted topic."""
        self._minimums = {key: offset for key, offset in self._minimums.items() if key[0] != topic}
        self.minimums_version += 1
        self._view.forget_topic(topic)  # A new topic of that name may start with lower generations.

    # Bounds.

    def known_minimum(self, topic: str, number: LogicalQueueId, segment: Segment) -> PhysicalOffset | None:
        """Return the lowest physical offset of a segment, as far as known without asking its broker."""
        if segment.broker != self.mappings.broker:
            return self._minimums.get((topic, number, segment.generation))
        index = self.index_of(topic, segment)
        return None if index is None else PhysicalOffset(index.offset_min)

    def record_minimum(self, topic: str, number: LogicalQueueId, segment: Segment, offset: int) -> None:
        """Cache the lowest physical offset that another broker reported for a segment."""
        key = (topic, number, segment.generation)
        if self._minimums.get(key) != offset:
            self._minimums[key] = PhysicalOffset(offset)
            self.minimums_version += 1

    async def refresh_minimum(self, topic: str, number: LogicalQueueId, segment: Segment) -> None:
        """Request the lowest offset of a segment from its broker, if that is another one and answers."""
        if segment.broker != self.mappings.broker:
            with suppress(PeerFailed):
                lowest = await self._fetch_offset(topic, segment, RequestCode.GET_MIN_OFFSET)
                self.record_minimum(topic, number, segment, lowest)

    async def bounds(self, topic: str, segment: Segment) -> tuple[PhysicalOffset, PhysicalOffset]:
        """Return the lowest physical offset and the physical end of a segment.

        Raises:
            PeerFailed: The segment's broker does not answer.
        """
        if segment.broker == self.mappings.broker:
            index = self.index_of(topic, segment)
            if index is None:
                return segment.start, segment.start
            return PhysicalOffset(index.offset_min), segment.clamp(PhysicalOffset(index.offset_max))
        lowest = await self._fetch_offset(topic, segment, RequestCode.GET_MIN_OFFSET)
        return lowest, await self._fetch_end(topic, segment)

    async def is_expired(self, topic: str, number: LogicalQueueId, segment: Segment) -> bool:
        """Return whether all messages of a closed segment have expired.

        Raises:
            PeerFailed: The segment's broker does not answer.
        """
        lowest, highest = await self.bounds(topic, segment)
        if segment.broker != self.mappings.broker:
            self.record_minimum(topic, number, segment, lowest)
        return lowest >= (highest if segment.end is None else segment.end)

    def forget_segment(self, topic: str, number: LogicalQueueId, segment: Segment) -> None:
        """Drop the cached offset of an expired segment."""
        self._minimums.pop((topic, number, segment.generation), None)

    # Times.

    async def earliest_time(self, topic: str, segment: Segment) -> int | None:
        """Return the store time of the oldest message of a segment; None if there is none.

        Raises:
            PeerFailed: The segment's broker does not answer.
        """
        if segment.broker == self.mappings.broker:
            index = self.index_of(topic, segment)
            return None if index is None else await self.store.store_time(index, index.offset_min)
        fields = QueueFields(topic=topic, queue_id=segment.queue_id)
        answer = await self.request(segment, RequestCode.GET_EARLIEST_MSG_STORETIME, to_fields(fields))
        return parse_count(answer.fields.get("timestamp"))

    async def first_at(self, topic: str, segment: Segment, time_ms: int) -> PhysicalOffset | None:
        """Return the first physical offset of a segment stored at or after *time_ms*, or None if there is none.

        Raises:
            PeerFailed: The segment's broker does not answer.
        """
        found: int | None
        if segment.broker == self.mappings.broker:
            index = self.index_of(topic, segment)
            if index is None:
                return None
            found = await self.store.offset_at_time(index, time_ms)
            end = segment.clamp(PhysicalOffset(index.offset_max))
        else:
            fields = SearchOffsetFields(topic=topic, queue_id=segment.queue_id, timestamp=time_ms)
            answer = await self.request(segment, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, to_fields(fields))
            found = parse_count(answer.fields.get("offset"))
            end = await self._fetch_end(topic, segment)
        return max(PhysicalOffset(found), segment.start) if found is not None and found < end else None

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
            answer = await PeerCall(address, command, REMOTE_TIMEOUT_MS)
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
            answer = await PeerCall(replica, command, REMOTE_TIMEOUT_MS)
        except PeerFailed:
            return None
        return answer

    async def request_others(self, code: RequestCode, fields: dict[str, str]) -> list[Command]:
        """Send a request to the other brokers of a static topic; return the successful answers.

        Returns none for a normal topic: no broker has messages of another one's queues.
        """
        mapping = self.mappings.find(fields["topic"])
        if mapping is None:
            return []
        if not self._view.has_answer():
            await self._view.refresh()
        answers = []
        for broker in self._view.brokers(mapping.scope):
            try:
                address = await self._view.find_address(broker)
                answer = await PeerCall(address, Command(code=code, fields=fields), REMOTE_TIMEOUT_MS)
            except PeerFailed:
                continue
            if answer.code == ResponseCode.SUCCESS:
                answers.append(answer)
        return answers

    async def _fetch_end(self, topic: str, segment: Segment) -> PhysicalOffset:
        if segment.end is not None:
            return segment.end
        return await self._fetch_offset(topic, segment, RequestCode.GET_MAX_OFFSET)  # Java's tools record no ends.

    async def _fetch_offset(self, topic: str, segment: Segment, code: RequestCode) -> PhysicalOffset:
        answer = await self.request(segment, code, to_fields(QueueFields(topic=topic, queue_id=segment.queue_id)))
        offset = parse_count(answer.fields.get("offset"))
        if offset is None:
            raise PeerFailed(f"broker {segment.broker}, which holds this part of the queue, answered without an offset")
        return PhysicalOffset(offset)


_TOLERATED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    }
)
