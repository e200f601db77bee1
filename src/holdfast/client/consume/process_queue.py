"""The window of one queue: pulled, done, committable.

    done      not done                   not pulled
    ........ | x . x x . x ............ | ........
             ^ commit_offset             ^ next_offset

Messages may be done in any order. The offset to commit stops before the first one that is not done, so that it is
redelivered after a crash. `reset` starts a new window elsewhere: messages still in progress then belong to an old
generation, and their completion is ignored. Knows neither listeners nor the network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import LogicalOffset, MessageQueue


class ProcessQueue:
    """The window of one queue of one consumer.

    Args:
        queue: The queue.
        offset: The offset to begin at.
    """

    def __init__(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        self.queue = queue
        self.next_offset = offset
        self.generation = 0
        self.byte_count = 0
        self._pending: dict[LogicalOffset, int] = {}  # offset -> size of each message that is pulled and not done
        # Invariant: ascending, and every offset in `_pending` is in here.
        self._order: deque[LogicalOffset] = deque()

    @property
    def message_count(self) -> int:
        """The number of messages that are pulled and not done."""
        return len(self._pending)

    @property
    def commit_offset(self) -> LogicalOffset:
        """The offset before which everything is done. It goes back only by `reset`."""
        order, pending = self._order, self._pending
        while order and order[0] not in pending:
            order.popleft()
        return order[0] if order else self.next_offset

    @property
    def span(self) -> int:
        """The distance from the offset to commit to the next pull: the most that a crash could repeat."""
        return self.next_offset - self.commit_offset

    def add(self, messages: Sequence[ReceivedMessage], next_offset: LogicalOffset) -> list[ReceivedMessage]:
        """Add the messages of a pull and return the new ones.

        A broker that stores batches whole may return messages from before the requested offset.
        """
        fresh = [message for message in messages if message.offset >= self.next_offset]
        for message in fresh:
            size = len(message.body)
            self._pending[message.offset] = size
            self._order.append(message.offset)
            self.byte_count += size
        self.next_offset = max(self.next_offset, next_offset)
        return fresh

    def finish(self, offset: LogicalOffset, generation: int) -> bool:
        """Record that a message is done. Return False if it is not in this window."""
        if generation != self.generation:
            return False
        size = self._pending.pop(offset, None)
        if size is None:
            return False
        self.byte_count -= size
        return True

    def reset(self, offset: LogicalOffset) -> None:
        """Discard the window and begin at *offset*."""
        self.generation += 1
        self.next_offset = offset
        self.byte_count = 0
        self._pending.clear()
        self._order.clear()
