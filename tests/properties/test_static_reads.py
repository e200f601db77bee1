"""Whatever moves happened, a logical queue reads as one: every record once, in order, at the offset it was answered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cluster.broker_machines import TOPIC, StaticBrokers, records

from holdfast.wire.frames.command import Command

BROKERS = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 40)),
        st.tuples(st.just("move"), st.sampled_from(BROKERS)),
        st.tuples(st.just("restart"), st.sampled_from(BROKERS)),
    ),
    max_size=14,
)


def play(desks: StaticBrokers, steps: list[tuple[str, object]]) -> list[tuple[int, bytes]]:
    """Do what *steps* say to queue 0; return the offsets that were answered, with the bodies."""
    ledger: list[tuple[int, bytes]] = []
    for kind, value in steps:
        if kind == "send":
            assert isinstance(value, int)
            bodies = [b"%d" % (len(ledger) + at) for at in range(value)]
            ledger += zip(desks.send(0, *bodies), bodies, strict=True)
        elif kind == "move" and value != desks.queue(0).leader.broker:
            desks.move(0, str(value))
        elif kind == "restart":
            desks.restart(str(value))
    return ledger


@settings(max_examples=40, deadline=None)
@given(STEPS, st.sampled_from(["1", "7", "32"]))
def test_reading_from_the_start_gives_everything_once_and_in_order(steps: list[tuple[str, object]], count: str):
    """Offsets are contiguous from 0, however often the queue moved, came back and lost its process."""
    desks = StaticBrokers(*BROKERS)
    desks.create("a", "b")

    ledger = play(desks, steps)

    assert [offset for offset, _ in ledger] == list(range(len(ledger)))
    assert desks.read_all(0, maxMsgNums=count) == ledger
    leader = desks[desks.queue(0).leader.broker]
    (highest,) = leader.call(Command(code=30, fields={"topic": TOPIC, "queueId": "0"}))
    (lowest,) = leader.call(Command(code=31, fields={"topic": TOPIC, "queueId": "0"}))
    assert (int(lowest.fields["offset"]), int(highest.fields["offset"])) == (0, len(ledger))


@settings(max_examples=20, deadline=None)
@given(STEPS)
def test_a_client_that_knows_no_delta_sees_the_same(steps: list[tuple[str, object]]):
    """Its records carry the logical queue and offset themselves, and there is nothing to add."""
    desks = StaticBrokers(*BROKERS)
    desks.create("b", "a")

    ledger = play(desks, steps)

    assert desks.read_all(0, **{"hf.mapping": "0"}) == ledger
    answer = desks.pull(0, 0, **{"hf.mapping": "0"})
    assert int(answer.fields["offsetDelta"]) == 0
    assert {record.queue_id for record in records(answer)} <= {0}


@settings(max_examples=20, deadline=None)
@given(STEPS, st.integers(0, 10_000))
def test_times_are_found_over_borders(steps: list[tuple[str, object]], chosen: int):
    """The first offset at or after a time is the one that a walk over all records finds."""
    desks = StaticBrokers(*BROKERS)
    desks.create("a", "b")
    for step in steps:
        for desk in desks.brokers.values():
            desk.now_ms += 700
        play(desks, [step])
    start_ms = 1_700_000_000_000
    leader = desks[desks.queue(0).leader.broker]
    stored: list[tuple[int, int]] = []
    offset = 0
    while (answer := desks.pull(0, offset)).code != 19:
        delta = int(answer.fields["offsetDelta"])
        stored += [(record.store_ms, record.offset + delta) for record in records(answer)]
        offset = int(answer.fields["nextBeginOffset"])

    for boundary in ("LOWER", "UPPER"):
        fields = {"topic": TOPIC, "queueId": "0", "timestamp": str(start_ms + chosen), "boundaryType": boundary}
        (found,) = leader.call(Command(code=29, fields=fields))
        if boundary == "LOWER":
            wanted = next((at for time, at in stored if time >= start_ms + chosen), len(stored))
        else:
            wanted = next((at for time, at in reversed(stored) if time <= start_ms + chosen), 0)
        assert int(found.fields["offset"]) == wanted
