from holdfast.sim.world.trace import Trace
from holdfast.sim.world.world import EPOCH_MS, World


def test_things_happen_in_the_order_of_their_times():
    """Whatever order they were scheduled in."""
    world = World(1)
    seen: list[str] = []
    world.schedule(lambda: seen.append("late"), delay_ms=20)
    world.schedule(lambda: seen.append("early"), delay_ms=10)

    world.run(until_ms=EPOCH_MS + 100)

    assert seen == ["early", "late"]
    assert world.elapsed_ms == 100


def test_things_of_one_moment_happen_in_the_order_in_which_they_were_scheduled():
    """Never in the order of their addresses in memory."""
    world = World(1)
    seen: list[int] = []
    for number in range(50):
        world.schedule(lambda number=number: seen.append(number), delay_ms=5)

    world.run(until_ms=EPOCH_MS + 5)

    assert seen == list(range(50))


def test_what_lies_behind_the_end_stays_on_the_agenda():
    """A run can be continued."""
    world = World(1)
    seen: list[str] = []
    world.schedule(lambda: seen.append("later"), delay_ms=11)

    world.run(until_ms=EPOCH_MS + 10)
    assert seen == []

    world.run(until_ms=EPOCH_MS + 11)
    assert seen == ["later"]


def test_a_run_ends_as_soon_as_it_has_what_it_waits_for():
    """And says so."""
    world = World(1)
    seen: list[int] = []
    for number in range(10):
        world.schedule(lambda number=number: seen.append(number), delay_ms=number)

    assert world.run(until_ms=EPOCH_MS + 100, until=lambda: len(seen) == 3)
    assert seen == [0, 1, 2]
    assert not world.run(until_ms=EPOCH_MS + 100, until=lambda: len(seen) == 30)


def test_every_check_looks_after_every_step():
    """A broken promise is seen where it breaks."""
    world = World(1)
    steps: list[int] = []
    world.checks.append(lambda: steps.append(world.trace.step))
    for _ in range(3):
        world.schedule(lambda: None, delay_ms=1)

    world.run(until_ms=EPOCH_MS + 1)

    assert steps == [1, 2, 3]


def test_chance_is_the_same_for_the_same_seed_and_owner_only():
    """One who asks more often does not shift what others get."""
    draws = [World(7).rng("network").random(), World(7).rng("network").random()]

    assert draws[0] == draws[1]
    assert World(7).rng("nemesis").random() != draws[0]
    assert World(8).rng("network").random() != draws[0]


def test_a_trace_has_fixed_columns_and_a_digest_of_all_of_it():
    """Lines that are not kept count as well."""
    shown: list[str] = []
    trace, other = Trace(shown.append), Trace()
    trace.step, trace.time_ms = 17, 203

    trace.note("broker-a", "frames", "channel 3")

    assert shown == ["     17       203  broker-a     frames           channel 3"]
    assert list(trace.tail) == shown
    assert trace.digest() != other.digest()
