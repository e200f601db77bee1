"""Stories that once went wrong. Each is a plan that makes the same thing likely again, and a few seeds of it."""

import pytest

from holdfast.sim.orders import Taste
from holdfast.sim.plan import Plan
from holdfast.sim.run import run_seed

SCENARIOS: dict[str, Plan] = {
    # A broker is killed with records in the page cache that were never synced. The next one reads and serves them:
    # a power cut right after must not take back what consumers have seen.
    "a recovered tail outlives the next power cut": Plan(
        brokers=2, messages=300, storm_ms=20_000, faults=("relapse",), pause_ms=1_500
    ),
    # The message of a transaction and the note that it was delivered are written together, but a power cut can keep
    # the note and tear the message.
    "a committed message survives its own torn delivery": Plan(
        brokers=1,
        messages=400,
        storm_ms=20_000,
        faults=("power", "slow disk", "slow disk"),
        pause_ms=1_500,
        taste=Taste(transactions=0.7),
    ),
    # While the schedule waits for cold bytes, new messages arrive: it must not judge them by the time it began at.
    "a slow disk delivers no delayed message early": Plan(
        brokers=1, messages=200, storm_ms=20_000, hot_window=0, faults=("slow disk",), taste=Taste(delayed=0.6)
    ),
    # The very first record of a log lies at position 0, which looks like no position at all.
    "a delayed message is delivered once, also the first of all": Plan(
        brokers=1, messages=100, storm_ms=20_000, faults=("kill",), pause_ms=1_500, taste=Taste(delayed=1.0)
    ),
    # Under asynchronous flush a checkpoint must not claim what another sync has not finished.
    "a checkpoint claims nothing that is still on its way to disk": Plan(
        flush="async",
        brokers=2,
        messages=300,
        storm_ms=30_000,
        checkpoint_interval_ms=1_000,
        faults=("slow disk", "power"),
        pause_ms=1_500,
    ),
    # Damage in the log is covered by a record that takes no place in time: retention must not think it old.
    "a mended log is not taken for an old one": Plan(
        brokers=1,
        messages=400,
        log_file_size=16 * 1024,
        storm_ms=20_000,
        faults=("power", "slow disk", "slow disk"),
        pause_ms=1_500,
        taste=Taste(size_max=2_000),
    ),
    # The disk refuses the last words of a broker that is told to stop, or the topic that a request needs.
    "a failing disk stops the writes and not the broker": Plan(
        brokers=2, messages=150, storm_ms=30_000, faults=("disk error", "stop", "kill"), pause_ms=1_500
    ),
    # A name server comes back where a half-open connection still ends.
    "a broker finds back to a name server that lost its power": Plan(
        name_servers=2, brokers=2, messages=60, storm_ms=40_000, faults=("name server", "partition"), pause_ms=1_500
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("story", SCENARIOS)
def test_the_story_ends_well(story: str, seed: int):
    """Every promise holds where it once did not."""
    verdict = run_seed(seed, plan=SCENARIOS[story])

    assert verdict.violation is None, "\n".join([verdict.line(), *verdict.tail[-20:], verdict.detail or ""])
    assert verdict.faults or "disk" in story
