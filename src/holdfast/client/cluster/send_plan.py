"""Chooses the queue of a message, and decides whether and when to retry a send.

    keyed        abs(javaHash(key) % N) over the sorted queues: clients of every language choose the same queue
    not keyed    round robin from a random start; a retry goes to another broker if there is one

    static       as above, over all logical queues, whether or not they have a leader now

A keyed message never changes its queue: that would break its order. Pure: the caller supplies the `Random`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from holdfast.client.routes.route_table import TopicRoute
from holdfast.model.errors import (
    AccessDenied,
    BrokerRefused,
    ConnectionLost,
    HoldfastError,
    RequestTimeout,
    RouteNotFound,
)
from holdfast.model.java_hash import java_hash, key_text
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import ResponseCode

RETRIES_DEFAULT: Final = 2

# The codes that upstream's producer retries: another broker may succeed, or the same one later.
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
# These codes show that the client's route is out of date.
STALE_ROUTE_CODES: Final = frozenset(
    {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.NO_PERMISSION}
)
_BACKOFF_MS: Final = 50
_BACKOFF_MS_MAX: Final = 1000


def queue_for_key(key: str | bytes, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the queue of every message with *key*. Bytes that are not UTF-8 are read as Latin-1."""
    text = key if isinstance(key, str) else key_text(key)
    # Java's remainder has the sign of the dividend: abs(h % N) there is abs(h) % N here.
    return queues[abs(java_hash(text)) % len(queues)]


def require_publishable(route: TopicRoute, topic: str) -> tuple[MessageQueue, ...]:
    """Return the queues of *route* that accept messages.

    Raises:
        RouteNotFound: there are none.
    """
    if not route.publishable:
        raise RouteNotFound(f"no broker accepts messages for the topic {topic!r} now")
    return route.publishable


class RoundRobin:
    """Chooses the queues of each topic in turn."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], avoid_broker: str | None = None) -> MessageQueue:
        """Return the next queue, on another broker than *avoid_broker* if possible."""
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
        """Discard the state of *topics*."""
        for topic in topics:
            self._next.pop(topic, None)


def is_retryable(error: HoldfastError) -> bool:
    """Return whether another attempt may succeed after one that ended with *error*."""
    if isinstance(error, AccessDenied):
        return False
    if isinstance(error, BrokerRefused):
        return error.code in RETRYABLE_CODES
    return isinstance(error, ConnectionLost | RequestTimeout)


def is_route_stale(error: HoldfastError) -> bool:
    """Return whether to look the route up again before the next attempt."""
    if isinstance(error, AccessDenied):
        return False
    return not isinstance(error, BrokerRefused) or error.code in STALE_ROUTE_CODES


def is_not_leader(error: HoldfastError) -> bool:
    """Return whether a broker refused because it does not lead the logical queue: another broker must be asked."""
    return isinstance(error, BrokerRefused) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE


def is_topic_unknown(error: HoldfastError) -> bool:
    """Return whether a broker does not have the topic: it was deleted, or never existed."""
    return isinstance(error, BrokerRefused) and error.code == ResponseCode.TOPIC_NOT_EXIST


def only_time_helps(
    error: HoldfastError, *, has_queue: bool, maybe_sent: bool, is_queue_fixed: bool, is_static: bool
) -> bool:
    """Return whether waiting is the only remedy for *error*. While time is left, such a failure costs no attempt.

    Args:
        error: The error that ended the attempt.
        has_queue: Whether a queue had been chosen.
        maybe_sent: Whether the message may have reached the broker.
        is_queue_fixed: Whether the message is bound to one queue.
        is_static: Whether the queue is a logical queue: its leader comes back, or another broker takes over.
    """
    if isinstance(error, BrokerRefused):
        # The name server knows the topic, but not all of its queues yet.
        return not has_queue and error.code == ResponseCode.SYSTEM_BUSY
    if not has_queue or isinstance(error, RequestTimeout):
        return False
    return is_static or (is_queue_fixed and not maybe_sent)


def backoff_ms(attempt: int) -> int:
    """Return how long to wait before asking the same broker again after *attempt* failures."""
    return int(min(_BACKOFF_MS << max(0, attempt - 1), _BACKOFF_MS_MAX))
