"""Pulls over the border of two segments, as upstream's worked example has them, with exact ends and with its holes."""

from __future__ import annotations

from tests.support.cluster.broker_machines import EPOCH, TOPIC, StaticBrokers, records

from holdfast.model.mapping import LogicalQueue, Segment
from holdfast.wire.frames.command import Command


def numbers(answer: Command) -> tuple[int, int, int, int, int]:
    """Return code, next, min and max offset, and delta."""
    names = ("nextBeginOffset", "minOffset", "maxOffset", "offsetDelta")
    return (answer.code, *(int(answer.fields[name]) for name in names))  # type: ignore[return-value]


def with_hole() -> StaticBrokers:
    """Return 100 records on one broker and, from 10000 on, 10 on the next, as mqadmin leaves them: no end recorded."""
    desks = StaticBrokers("b1", "b2")
    desks.create("b1")
    desks.send(0, *(b"a%d" % at for at in range(100)))
    first = Segment(generation=0, broker="b1", queue_id=0, first=0)
    second = Segment(generation=1, broker="b2", queue_id=4, first=10_000)
    at_first = LogicalQueue(0, (first, Segment(generation=1, broker="b2", queue_id=4)))
    desks.record_at(desks["b1"], at_first.seal(100), total=1, epoch=EPOCH + 1)
    desks.record_at(desks["b2"], LogicalQueue(0, (first, second)), total=1, epoch=EPOCH + 1)
    desks.deliver_all()
    desks.send(0, *(b"b%d" % at for at in range(10)))
    return desks


def contiguous() -> StaticBrokers:
    """Return the same, moved by us: the second segment begins where the first ended."""
    desks = StaticBrokers("b1", "b2")
    desks.create("b1")
    desks.send(0, *(b"a%d" % at for at in range(100)))
    desks.move(0, "b2")
    assert desks.send(0, *(b"b%d" % at for at in range(10))) == list(range(100, 110))
    return desks


def test_the_worked_example_with_its_hole():
    """Each pull of the example has the numbers that upstream gives it, but the maximum, which is exact."""
    desks = with_hole()

    last_five = desks.pull(0, 95)
    behind = desks.pull(0, 100)
    second = desks.pull(0, 10_000)
    end = desks.pull(0, 10_010)
    in_the_hole = desks.pull(0, 5_000)

    assert numbers(last_five) == (0, 100, 0, 10_010, 0)
    assert [record.offset for record in records(last_five)] == [95, 96, 97, 98, 99]
    assert numbers(behind)[:2] == (20, 10_000)
    assert numbers(second) == (0, 10_010, 0, 10_010, 10_000)
    assert [record.offset for record in records(second)] == list(range(10))
    assert numbers(end)[:2] == (19, 10_010)
    assert numbers(in_the_hole)[:2] == (20, 10_000)


def test_what_is_older_than_everything_is_moved_to_the_lowest_offset():
    """When the first segment is cleaned, a reader of it is sent to the start of the second."""
    desks = with_hole()
    second = Segment(generation=1, broker="b2", queue_id=4, first=10_000)
    mapping = desks["b2"].components.mappings.find(TOPIC)
    assert mapping is not None
    gone = mapping.with_queues(LogicalQueue(0, (second,)), epoch=mapping.epoch + 1)
    desks["b2"].components.mappings.change(gone)

    assert numbers(desks.pull(0, 50))[:3] == (21, 10_000, 10_000)


def test_the_worked_example_with_exact_ends():
    """There is no hole: the reader crosses the border without noticing."""
    desks = contiguous()

    assert numbers(desks.pull(0, 95)) == (0, 100, 0, 110, 0)
    assert numbers(desks.pull(0, 100)) == (0, 110, 0, 110, 100)
    assert numbers(desks.pull(0, 110))[:2] == (19, 110)
    assert numbers(desks.pull(0, 111))[:2] == (21, 110)
    assert desks.read_all(0) == [
        *((at, b"a%d" % at) for at in range(100)),
        *((100 + at, b"b%d" % at) for at in range(10)),
    ]


def test_a_border_between_two_segments_of_one_broker_costs_no_round_trip():
    """What lies behind the end of a segment is in the same answer, if it is here."""
    desks = StaticBrokers("b1", "b2")
    desks.create("b1")
    desks.send(0, b"a")
    desks.move(0, "b2")
    desks.move(0, "b1")  # Nothing came meanwhile: the empty home on b2 is not kept.
    desks.send(0, b"b")

    answer = desks.pull(0, 1)

    assert [record.body for record in records(answer)] == [b"b"]
    assert desks.read_all(0) == [(0, b"a"), (1, b"b")]


def test_a_segment_whose_broker_is_down_is_an_error_that_names_it():
    """Only what lies there is unreadable; the rest goes on."""
    desks = contiguous()
    desks.kill("b1")

    down = desks.pull(0, 50)

    assert down.code == 1
    assert "b1" in (down.remark or "")
    assert numbers(desks.pull(0, 100))[:2] == (0, 110)


def test_a_reader_waits_at_a_forced_end_that_nobody_knows():
    """It reads what is there, and is then told whose word it waits for; never passed on in silence."""
    desks = StaticBrokers("b1", "b2")
    desks.create("b1")
    desks.send(0, b"a")
    forced = desks.queue(0).force("b2", 0)
    desks.record_at(desks["b2"], forced, total=1, epoch=EPOCH + 1000)
    desks.deliver_all()

    assert [record.body for record in records(desks.pull(0, 0, at="b2"))] == [b"a"]
    waiting = desks.pull(0, 1, at="b2")

    assert waiting.code == 1
    assert "b1" in (waiting.remark or "")
