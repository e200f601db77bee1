from random import Random

from holdfast.sim.world.workload import Kind, MessageMix, PlannedMessage, SendSequence, Workload, uid_of


def jobs(count: int) -> list[PlannedMessage]:
    return [PlannedMessage(uid=f"m{number}", topic="t", kind=Kind.PLAIN, size=30) for number in range(count)]


def test_a_lane_lets_only_so_many_be_under_way():
    """The next goes out when one is acknowledged."""
    first, second, third = jobs(3)
    lane = SendSequence([first, second, third], window=2, pause_ms=1)

    assert (lane.begin_next(), lane.begin_next(), lane.begin_next()) == (first, second, None)
    lane.finish(first)
    assert lane.begin_next() == third


def test_a_producer_that_begins_again_sends_what_was_not_acknowledged_first():
    """In the order in which it was sent before."""
    first, second, third = jobs(3)
    lane = SendSequence([first, second, third], window=2, pause_ms=1)
    lane.begin_next()
    lane.begin_next()

    lane.requeue_in_flight()

    assert (lane.begin_next(), lane.begin_next()) == (first, second)
    assert not lane.is_done


def test_a_body_tells_whose_it_is():
    """Padded to the size that was asked for."""
    (job,) = jobs(1)

    assert len(job.body) == 30
    assert uid_of(job.body) == "m0"
    assert uid_of(b"\xff\xfe") not in {"m0", ""}


def test_orders_hold_every_message_that_will_be_stored():
    """The parts of batches, not the batches."""
    orders = Workload(
        Random(1),
        producers=["a", "b"],
        message_count=200,
        storm_ms=1_000,
        message_mix=MessageMix(batches=0.5, delayed=0.2),
    )

    kinds = {job.kind for job in orders.messages.values()}
    assert kinds == {Kind.PLAIN, Kind.KEYED, Kind.DELAYED}
    assert not any(job.parts for job in orders.messages.values())
    assert len(orders.messages) > 200
