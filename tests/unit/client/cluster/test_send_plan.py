"""Which queue a message goes to, and what to do when that did not work."""

from random import Random

import pytest

from holdfast.client.cluster.send_plan import (
    RoundRobin,
    backoff_ms,
    is_not_leader,
    is_retryable,
    is_route_stale,
    only_time_helps,
    queue_for_key,
)
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout, RouteNotFound
from holdfast.model.queue import MessageQueue

QUEUES = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(2)]


@pytest.mark.parametrize(
    ("key", "queue_count", "index"),
    [
        # What a Java program printed for Math.abs(key.hashCode() % count).
        ("a", 4, 1),
        ("hello", 7, 0),
        ("polygenelubricants", 7, 2),  # its hash is the smallest integer there is
        ("zzzzzz", 7, 4),  # a negative hash
        ("größer", 5, 0),
        ("\N{GRINNING FACE}", 6, 1),  # two units of UTF-16
    ],
)
def test_a_key_goes_where_java_sends_it(key: str, queue_count: int, index: int):
    """Signed remainder, then the absolute value."""
    queues = [MessageQueue("t", "b", number) for number in range(queue_count)]

    assert queue_for_key(key, queues).queue_id == index
    assert queue_for_key(key.encode(), queues).queue_id == index


def test_bytes_that_are_no_text_are_read_as_latin_1():
    """They have a queue all the same."""
    assert queue_for_key(b"\xff", QUEUES) == queue_for_key("\xff", QUEUES)


def test_unkeyed_messages_go_round():
    """Every queue once before any twice."""
    turn = RoundRobin(Random(1))

    chosen = [turn.choose("t", QUEUES) for _ in range(8)]

    assert set(chosen[:4]) == set(QUEUES)
    assert chosen[:4] == chosen[4:]


def test_a_topic_that_was_forgotten_begins_anew():
    """Nothing is kept of it."""
    turn = RoundRobin(Random(1))
    turn.choose("t", QUEUES)
    turn.choose("u", QUEUES)

    turn.forget(["t", "never"])

    assert turn._next.keys() == {"u"}


def test_producers_begin_at_different_queues():
    """Chance spreads them."""
    assert len({RoundRobin(Random(seed)).choose("t", QUEUES) for seed in range(50)}) == 4


def test_a_retry_goes_to_another_broker():
    """If there is one."""
    turn = RoundRobin(Random(1))

    assert {turn.choose("t", QUEUES, "a").broker_name for _ in range(10)} == {"b"}
    assert turn.choose("t", QUEUES[:2], "a").broker_name == "a"


@pytest.mark.parametrize(
    ("error", "again", "stale"),
    [
        (BrokerRefused(1, ""), True, False),
        (BrokerRefused(2, ""), True, False),
        (BrokerRefused(14, ""), True, False),
        (BrokerRefused(16, ""), True, True),
        (BrokerRefused(17, ""), True, True),
        (BrokerRefused(501, ""), True, True),
        (BrokerRefused(13, ""), False, False),
        (BrokerRefused(26, ""), False, False),
        (ConnectionLost(""), True, True),
        (RequestTimeout(""), True, True),
        (RouteNotFound(""), False, True),
    ],
)
def test_what_may_help_is_tried(error: HoldfastError, again: bool, stale: bool):  # noqa: FBT001 - a table
    """Upstream's codes, and whatever is about the way rather than the message."""
    assert is_retryable(error) is again
    assert is_route_stale(error) is stale


def test_pauses_grow_and_end():
    """From 50 ms to a second."""
    assert [backoff_ms(attempt) for attempt in (1, 2, 3, 10)] == [50, 100, 200, 1000]


MOVED = BrokerRefused(501, "moved")
BUSY = BrokerRefused(2, "busy")
UNSENT = ConnectionLost("refused")
CLOSED = ConnectionLost("closed", was_sent=True)


def test_a_moved_queue_is_no_failure():
    """Every other refusal is."""
    assert is_not_leader(MOVED)
    assert not any(is_not_leader(error) for error in (BUSY, UNSENT, RequestTimeout("late")))


@pytest.mark.parametrize(
    ("error", "has_queue", "had_left", "stays", "is_static", "waits"),
    [
        (BUSY, False, False, False, False, True),  # a name server's: the topic is being made
        (BUSY, True, False, True, True, False),
        (UNSENT, True, False, False, False, False),  # there are other brokers
        (UNSENT, True, False, True, False, True),
        (CLOSED, True, True, True, False, False),  # it may be stored: once more costs an attempt
        (UNSENT, True, False, False, True, True),
        (CLOSED, True, True, False, True, True),
        (RouteNotFound("no leader"), True, False, False, True, True),
        (RouteNotFound("no topic"), False, False, False, True, False),
        (RequestTimeout("late"), True, True, True, True, False),
    ],
)
def test_some_failures_only_time_can_mend(
    error: HoldfastError,
    has_queue: bool,  # noqa: FBT001 - a table
    had_left: bool,  # noqa: FBT001 - a table
    stays: bool,  # noqa: FBT001 - a table
    is_static: bool,  # noqa: FBT001 - a table
    waits: bool,  # noqa: FBT001 - a table
):
    """They cost no attempt while there is time."""
    told = only_time_helps(error, has_queue=has_queue, maybe_sent=had_left, is_queue_fixed=stays, is_static=is_static)

    assert told == waits
