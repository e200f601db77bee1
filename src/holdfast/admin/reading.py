"""Read queues without a consumer group: no offset is committed and no consumer is rebalanced.

    history   [start, end) of every queue, merged by store time       ends
    newest    the last messages before the ends of the queues         ends
    follow    everything from the end of each queue, as it arrives    never ends

The group named in the pulls is the one that every broker reserves for tools.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

import msgspec

from holdfast.admin.cluster_access import ClusterAccess, header_of
from holdfast.admin.offsets import QueueRange
from holdfast.client.access.refusal import refusal
from holdfast.client.messages.unpacking import read_limited
from holdfast.model.errors import ConnectionLost, RequestTimeout, UnreadableBatch
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import LogicalOffset, LogicalQueueId
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.records.inner_batch import BatchSupport
from holdfast.wire.requests.pull import SUBSCRIPTION, SUSPEND, PullAnswer, PullFields

log = logging.getLogger("holdfast.admin")

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
PULL_COUNT: Final = 256
_SUSPEND_MS: Final = 15_000
_FOLLOW_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 1.0
_QUEUED_MAX: Final = 2048


class Reader:
    """Reads queues of one topic.

    Args:
        access: The cluster.
        tags: The tag expression that selects messages, `*` for everything.
    """

    def __init__(self, access: ClusterAccess, tags: str = "*") -> None:
        self._access = access
        self._tags = tags

    async def history(self, ranges: Sequence[QueueRange]) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield the messages of the queues between start and end, oldest first over all queues."""
        pending: list[tuple[deque[ReceivedMessage], AsyncGenerator[list[ReceivedMessage], None]]] = []
        for queue_range in ranges:
            batches = self._batches(queue_range)
            first_batch = await anext(batches, None)
            if first_batch:
                pending.append((deque(first_batch), batches))
        while pending:
            # Each queue is in order, so the oldest pending message is at the head of one of them.
            oldest = min(range(len(pending)), key=lambda number: pending[number][0][0].stored_ms)
            messages, batches = pending[oldest]
            yield messages.popleft()
            if not messages:
                next_batch = await anext(batches, None)
                if next_batch:
                    messages.extend(next_batch)
                else:
                    del pending[oldest]

    async def newest(
        self, ranges: Sequence[QueueRange], count: int, accepts: Callable[[ReceivedMessage], bool]
    ) -> list[ReceivedMessage]:
        """Return the *count* newest messages over all queues that *accepts* selects, by store time, oldest first."""
        newest_by_queue = [await self._newest_in_queue(queue_range, count, accepts) for queue_range in ranges]
        return list(heapq.merge(*newest_by_queue, key=lambda message: message.stored_ms))[-count:]

    async def _newest_in_queue(
        self, queue_range: QueueRange, count: int, accepts: Callable[[ReceivedMessage], bool]
    ) -> list[ReceivedMessage]:
        """Return the *count* newest messages of one queue that *accepts* selects, oldest first.

        Search backwards in growing ranges: not every offset has a message, and not every message is accepted.
        """
        found: list[ReceivedMessage] = []
        end, width = queue_range.end, count
        while end > queue_range.start and len(found) < count:
            start = max(queue_range.start, end - width)
            earlier: deque[ReceivedMessage] = deque(maxlen=count - len(found))
            async for messages in self._batches(msgspec.structs.replace(queue_range, start=start, end=end)):
                earlier.extend(filter(accepts, messages))
            found = [*earlier, *found]
            end, width = start, 2 * width
        return found

    async def follow(self, ranges: Sequence[QueueRange]) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield every message that arrives after the end of each queue, forever. Retry if a broker is unreachable."""
        arrived: asyncio.Queue[ReceivedMessage | Exception] = asyncio.Queue(_QUEUED_MAX)
        tasks = [asyncio.create_task(self._follow(queue_range, arrived)) for queue_range in ranges]
        try:
            while True:
                item = await arrived.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _batches(self, queue_range: QueueRange) -> AsyncGenerator[list[ReceivedMessage], None]:
        """Yield the messages of [start, end), never an empty list."""
        offset = queue_range.start
        while offset < queue_range.end:
            messages, next_offset = await self._pull(queue_range, offset, suspend=False)
            if next_offset <= offset:
                return
            offset = next_offset
            in_range = [message for message in messages if message.offset < queue_range.end]
            if in_range:
                yield in_range

    async def _follow(self, queue_range: QueueRange, arrived: asyncio.Queue[ReceivedMessage | Exception]) -> None:
        offset = queue_range.end
        while True:
            try:
                messages, offset = await self._pull(queue_range, offset, suspend=True)
            except (ConnectionLost, RequestTimeout):
                await asyncio.sleep(_RETRY_S)
                continue
            except Exception as error:  # noqa: BLE001 - follow() raises it to its caller
                await arrived.put(error)
                return
            for message in messages:
                await arrived.put(message)

    async def _pull(self, queue_range: QueueRange, offset: int, *, suspend: bool) -> tuple[list[ReceivedMessage], int]:
        """Return the messages from *offset* on, and the next offset to pull."""
        queue = queue_range.queue
        header = PullFields(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=LogicalQueueId(queue.queue_id),
            queue_offset=LogicalOffset(offset),
            max_msg_nums=PULL_COUNT,
            sys_flag=SUBSCRIPTION | (SUSPEND if suspend else 0),
            commit_offset=0,
            suspend_timeout_millis=_SUSPEND_MS if suspend else 0,
            subscription=self._tags,
            expression_type="TAG",
            batch_support=BatchSupport.REQUESTED.value,
        )
        timeout_s = _FOLLOW_TIMEOUT_S if suspend else None
        answer = await self._access.invoke_unchecked(
            queue_range.address, RequestCode.PULL_MESSAGE, header, timeout_s=timeout_s
        )
        match answer.code:
            case ResponseCode.SUCCESS:
                pull_answer = header_of(answer, PullAnswer)
                unreadable: list[UnreadableBatch] = []
                delta = pull_answer.offset_delta or 0
                messages, unread_offset = read_limited(answer.body, queue, offset_delta=delta, unreadable=unreadable)
                for error in unreadable:
                    log.warning("queue %s: %s; skipping it", queue, error)
                # The broker returns a batch as a whole, even if it begins before the requested offset.
                requested = [message for message in messages if message.offset >= offset]
                return self._select(
                    requested
                ), pull_answer.next_begin_offset if unread_offset is None else unread_offset
            case ResponseCode.PULL_NOT_FOUND | ResponseCode.PULL_RETRY_IMMEDIATELY | ResponseCode.PULL_OFFSET_MOVED:
                return [], header_of(answer, PullAnswer).next_begin_offset
        raise refusal(answer.code, answer.remark, address=queue_range.address)

    def _select(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the messages with a selected tag: the broker compares only tag hashes."""
        if self._tags in {"", "*"}:
            return messages
        selected_tags = {tag.strip() for tag in self._tags.split("||")}
        return [message for message in messages if (message.tags or "") in selected_tags]
