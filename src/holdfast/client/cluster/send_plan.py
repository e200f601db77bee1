"""Which queue a message goes to, and what to do when that did not work.

    keyed        abs(javaHash(key) % N) over the sorted queues: every client of any language chooses the same
    not keyed    round robin from a random start; a retry goes to another broker if there is one

    static       the same over all logical queues, whether or not they have a leader now

A keyed message never changes its queue: that would break its order. Chance comes in as a `Random`; asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout
from holdfast.model.java_hash import java_hash, key_text
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import ResponseCode

RETRIES_DEFAULT: Final = 2

# What upstream's producer tries again elsewhere: the broker could not, but another one, or the same later, may.
_NO_BUYER_ID: Final = 204
_GO_AWAY: Final = 1500
RETRYABLE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        _NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        _GO_AWAY,
    }
)
# The route that led there is out of date.
STALE_ROUTE_CODES: Final = frozenset(
    {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.NO_PERMISSION}
)
_BACKOFF_MS: Final = 50
_BACKOFF_MS_MAX: Final = 1000


def queue_for_key(key: str | bytes, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the queue that every message of *key* goes to. Bytes that are not UTF-8 are read as Latin-1."""
    text = key if isinstance(key, str) else key_text(key)
    # Java's remainder has the sign of the dividend: abs(h % N) there is abs(h) % N here.
    return queues[abs(java_hash(text)) % len(queues)]


class RoundRobin:
    """Takes the queues of each topic in turn."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], avoid_broker: str | None = None) -> MessageQueue:
        """Return the next queue, of another broker than *avoid_broker* if there is any."""
        start = self._next.get(topic)
        if start is None:
            start = self._random.randrange(0x10000)
        if avoid_broker is not None:
            for step in range(len(queues)):
                queue = queues[(start + step) % len(queues)]
                if queue.broker_name != avoid_broker:
                    self._next[topic] = start + step + 1
                    return queue
        self._next[topic] = start + 1
        return queues[start % len(queues)]

    def forget(self, topics: Iterable[str]) -> None:
        """Begin anew with *topics*, if they ever come again."""
        for topic in topics:
            self._next.pop(topic, None)


def is_retryable(error: HoldfastError) -> bool:
    """Say whether another attempt may succeed where this one ended with *error*."""
    if isinstance(error, BrokerRefused):
        return error.code in RETRYABLE_CODES
    return isinstance(error, ConnectionLost | RequestTimeout)


def is_route_stale(error: HoldfastError) -> bool:
    """Say whether the route should be looked up again before the next attempt."""
    return not isinstance(error, BrokerRefused) or error.code in STALE_ROUTE_CODES


def is_moved(error: HoldfastError) -> bool:
    """Say whether a broker does not lead the logical queue: nothing failed, only somebody else is to be asked."""
    return isinstance(error, BrokerRefused) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE


def is_topic_unknown(error: HoldfastError) -> bool:
    """Say whether a broker does not have the topic: it was deleted, or never existed."""
    return isinstance(error, BrokerRefused) and error.code == ResponseCode.TOPIC_NOT_EXIST


def only_time_helps(error: HoldfastError, *, has_queue: bool, had_left: bool, stays: bool, is_static: bool) -> bool:
    """Say whether there is nothing to do about *error* but to wait: as long as there is time, it costs no attempt.

    Args:
        error: How the attempt ended.
        has_queue: Whether it got as far as a queue.
        had_left: Whether the message may have arrived.
        stays: Whether it may go to one queue only.
        is_static: Whether that is a logical queue: its leader comes back, or another takes over.
    """
    if isinstance(error, BrokerRefused):
        # The name server knows the topic, but not yet the whole of it.
        return not has_queue and error.code == ResponseCode.SYSTEM_BUSY
    if not has_queue or isinstance(error, RequestTimeout):
        return False
    return is_static or (stays and not had_left)


def backoff_ms(attempt: int) -> int:
    """Return how long to wait before going to the same broker again after *attempt* failures."""
    return int(min(_BACKOFF_MS << max(0, attempt - 1), _BACKOFF_MS_MAX))
