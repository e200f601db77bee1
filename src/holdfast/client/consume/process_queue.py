"""The window of one queue: what was pulled, what is done, what may be committed.

    done      not done                   not pulled
    ........ | x . x x . x ............ | ........
             ^ commit_offset             ^ next_offset

Messages may be finished in any order; the offset to commit stops before the first that is not, so that a crash gives it
out again. `reset` starts a new window elsewhere: what is still being worked on then belongs to an old generation and
is ignored when it ends. Knows neither listeners nor the network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue


class ProcessQueue:
    """The window of one queue of one consumer.

    Args:
        queue: Which queue.
        offset: Where to begin.
    """

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.next_offset = offset
        self.generation = 0
        self.byte_count = 0
        self._out: dict[int, int] = {}  # offset -> size of what is pulled and not done
        # Invariant: ascending, and every offset in `_out` is in here.
        self._order: deque[int] = deque()

    @property
    def message_count(self) -> int:
        """How many messages are pulled and not done."""
        return len(self._out)

    @property
    def commit_offset(self) -> int:
        """Everything before this is done. Never goes back, but for `reset`."""
        order, out = self._order, self._out
        while order and order[0] not in out:
            order.popleft()
        return order[0] if order else self.next_offset

    @property
    def span(self) -> int:
        """How far the next pull is ahead of the offset to commit: what a crash could repeat."""
        return self.next_offset - self.commit_offset

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Take what a pull brought and return what of it is new.

        A broker that keeps batches whole may return messages from before the offset that was asked for.
        """
        fresh = [message for message in messages if message.offset >= self.next_offset]
        for message in fresh:
            size = len(message.body)
            self._out[message.offset] = size
            self._order.append(message.offset)
            self.byte_count += size
        self.next_offset = max(self.next_offset, next_offset)
        return fresh

    def finish(self, offset: int, generation: int) -> bool:
        """Take note that a message is done. False: it is none of this window."""
        if generation != self.generation:
            return False
        size = self._out.pop(offset, None)
        if size is None:
            return False
        self.byte_count -= size
        return True

    def reset(self, offset: int) -> None:
        """Forget everything and begin at *offset*."""
        self.generation += 1
        self.next_offset = offset
        self.byte_count = 0
        self._out.clear()
        self._order.clear()
