from random import Random

from holdfast.sim.world.workload import Job, Kind, Lane, Orders, Taste, uid_of


def jobs(count: int) -> list[Job]:
    return [Job(uid=f"m{number}", topic="t", kind=Kind.PLAIN, size=30) for number in range(count)]


def test_a_lane_lets_only_so_many_be_under_way():
    """The next goes out when one is acknowledged."""
    first, second, third = jobs(3)
    lane = Lane([first, second, third], window=2, pause_ms=1)

    assert (lane.take(), lane.take(), lane.take()) == (first, second, None)
    lane.finish(first)
    assert lane.take() == third


def test_a_producer_that_begins_again_sends_what_was_not_acknowledged_first():
    """In the order in which it was sent before."""
    first, second, third = jobs(3)
    lane = Lane([first, second, third], window=2, pause_ms=1)
    lane.take()
    lane.take()

    lane.resume()

    assert (lane.take(), lane.take()) == (first, second)
    assert not lane.is_done


def test_a_body_tells_whose_it_is():
    """Padded to the size that was asked for."""
    (job,) = jobs(1)

    assert len(job.body) == 30
    assert uid_of(job.body) == "m0"
    assert uid_of(b"\xff\xfe") not in {"m0", ""}


def test_orders_hold_every_message_that_will_be_stored():
    """The parts of batches, not the batches."""
    orders = Orders(
        Random(1), producers=["a", "b"], messages=200, storm_ms=1_000, taste=Taste(batches=0.5, delayed=0.2)
    )

    kinds = {job.kind for job in orders.jobs.values()}
    assert kinds == {Kind.PLAIN, Kind.KEYED, Kind.DELAYED}
    assert not any(job.parts for job in orders.jobs.values())
    assert len(orders.jobs) > 200
