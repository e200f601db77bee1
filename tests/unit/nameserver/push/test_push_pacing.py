"""How often clients are told, by the readings."""

import pytest

from holdfast.machine.readings import Readings
from holdfast.nameserver.push.push_pacing import Pace, choose_pace


@pytest.mark.parametrize("name", ["memory", "load", "network"])
@pytest.mark.parametrize(
    ("percent", "pace"),
    [
        (0.0, Pace.FULL),
        (59.9, Pace.FULL),
        (60.0, Pace.SLOW),
        (75.0, Pace.SLOW),
        (90.0, Pace.SLOW),
        (90.1, Pace.PAUSED),
        (250.0, Pace.PAUSED),
    ],
)
def test_any_reading_alone_sets_the_pace(name: str, percent: float, pace: Pace):
    """Below 60 every second, up to 90 every 10 s, above not at all."""
    readings = Readings(memory=10.0, load=10.0, network=10.0)
    setattr(readings, name, percent)

    burden = choose_pace(readings)

    assert burden.pace is pace
    assert burden.reason.startswith(name) is (pace is not Pace.FULL)


def test_the_worst_reading_decides_and_the_reason_names_those_to_blame():
    """Of a pause those above 90, of a slow pace those from 60 on."""
    assert choose_pace(Readings(memory=72.3, load=61.0, network=5.0)).reason == "memory 73 %, load 61 %"
    paused = choose_pace(Readings(memory=72.3, load=147.0, network=95.0))
    assert (paused.pace, paused.reason) == (Pace.PAUSED, "load 147 %, network 95 %")


def test_the_reason_never_says_90_of_what_is_above_it():
    """Rounded it would contradict itself."""
    assert choose_pace(Readings(memory=90.2)).reason == "memory 91 %"


def test_what_is_unknown_does_not_count():
    """Neither as nothing nor as too much; all unknown is no burden that we know of."""
    assert choose_pace(Readings()).pace is Pace.FULL
    assert choose_pace(Readings(memory=None, load=95.0, network=None)).pace is Pace.PAUSED


def test_a_pace_says_how_long_it_is():
    """None where nothing is sent."""
    assert [pace.interval_ms for pace in Pace] == [1_000, 10_000, None]
