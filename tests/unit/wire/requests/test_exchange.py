"""Requests that wait for their answers."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.requests.exchange import Exchange


def test_an_answer_finds_who_waits_for_it():
    """In any order, once."""
    exchange: Exchange[str] = Exchange()
    first, second = exchange.begin("first", 100), exchange.begin("second", 100)

    assert exchange.finish(second) == "second"
    assert exchange.finish(first) == "first"
    assert exchange.finish(first) is None


def test_numbers_in_flight_are_not_given_out_again():
    """Also when they wrap."""
    exchange: Exchange[str] = Exchange()
    held = exchange.begin("held", 100)
    exchange._last = 0x7FFFFFFF

    assert exchange.next_opaque() != held
    assert 0 < exchange.next_opaque() <= 0x7FFFFFFF


def test_what_is_overdue_is_given_up():
    """At its deadline, not before; the others wait on."""
    exchange: Exchange[str] = Exchange()
    exchange.begin("late", 100)
    on_time = exchange.begin("on time", 200)

    assert exchange.next_deadline_ms == 100
    assert exchange.expire(99) == []
    assert exchange.expire(100) == ["late"]
    assert exchange.next_deadline_ms == 200
    assert exchange.finish(on_time) == "on time"
    assert exchange.next_deadline_ms is None


def test_a_request_can_be_looked_at_without_ending_it():
    exchange = Exchange()
    opaque = exchange.begin("one", 100)

    assert (exchange.find(opaque), exchange.find(opaque + 1), len(exchange)) == ("one", None, 1)


def test_some_requests_are_cancelled_and_the_others_stay():
    """By what their waiters have in common, or by age."""
    exchange = Exchange()
    for name in ("a1", "b1", "a2", "b2"):
        exchange.begin(name, 100)

    assert exchange.cancel(lambda waiter: waiter.startswith("a")) == ["a1", "a2"]
    assert exchange.cancel_oldest() == "b1"
    assert exchange.expire(100) == ["b2"]


def test_everybody_is_told_when_the_connection_is_gone():
    """And nobody waits any more."""
    exchange: Exchange[str] = Exchange()
    exchange.begin("a", 1)
    exchange.begin("b", 2)

    assert exchange.cancel_all() == ["a", "b"]
    assert len(exchange) == 0
    assert exchange.expire(1000) == []


@given(st.lists(st.tuples(st.sampled_from(["begin", "finish", "expire"]), st.integers(0, 50)), max_size=60))
def test_nobody_waits_beyond_a_deadline_and_nobody_is_told_twice(steps: list[tuple[str, int]]):
    """Compared with a plain list of who waits until when."""
    exchange: Exchange[int] = Exchange()
    waiting: dict[int, int] = {}
    now = 0
    for step, number in steps:
        if step == "begin":
            waiting[exchange.begin(number, now + number)] = now + number
        elif step == "finish" and waiting:
            opaque = list(waiting)[number % len(waiting)]
            del waiting[opaque]
            assert exchange.finish(opaque) is not None
        elif step == "expire":
            now += number
            late = [opaque for opaque, deadline in waiting.items() if deadline <= now]
            assert len(exchange.expire(now)) == len(late)
            for opaque in late:
                del waiting[opaque]
        assert len(exchange) == len(waiting)
        deadline_ms = exchange.next_deadline_ms
        assert deadline_ms is None or deadline_ms <= min(waiting.values())
