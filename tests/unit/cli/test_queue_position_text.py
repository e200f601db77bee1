"""Times and places as people write them."""

from datetime import UTC, datetime

import pytest

from holdfast.admin.offsets import OffsetTarget
from holdfast.cli.queue_position_text import parse_target, parse_time
from holdfast.model.errors import ConfigError

NOW = datetime(2026, 11, 15, 17, 50, 23, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-15", datetime(2026, 11, 15, tzinfo=UTC)),
        ("2026-11-15T09:30", datetime(2026, 11, 15, 9, 30, tzinfo=UTC)),
        ("2026-11-15 09:30:01.500", datetime(2026, 11, 15, 9, 30, 1, 500_000, tzinfo=UTC)),
        ("2026-11-15T09:30+02:00", datetime(2026, 11, 15, 7, 30, tzinfo=UTC)),
        ("9:30", datetime(2026, 11, 15, 9, 30, tzinfo=UTC)),
        ("09:30:05", datetime(2026, 11, 15, 9, 30, 5, tzinfo=UTC)),
        ("10m", datetime(2026, 11, 15, 17, 40, 23, tzinfo=UTC)),
        ("2h", datetime(2026, 11, 15, 15, 50, 23, tzinfo=UTC)),
        ("1d", datetime(2026, 11, 14, 17, 50, 23, tzinfo=UTC)),
    ],
)
def test_a_time_is_read(text: str, moment: datetime):
    """Dates, clock times of today and spans ago, in the zone of now unless they name their own."""
    assert parse_time(text, NOW) == int(moment.timestamp() * 1000)


def test_milliseconds_stand_behind_an_at_sign():
    """What programs have is taken as it is."""
    assert parse_time("@1763229023123", NOW) == 1763229023123


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "10x", "@", "-5"])
def test_what_is_no_time_is_refused_with_examples(text: str):
    """The complaint shows how to write one."""
    with pytest.raises(ConfigError, match="is not a time; examples:"):
        parse_time(text, NOW)


def test_a_place_is_an_end_an_offset_or_a_time():
    """A bare number is an offset, never a time."""
    assert parse_target("earliest", NOW) == OffsetTarget("earliest")
    assert parse_target("latest", NOW) == OffsetTarget("latest")
    assert parse_target("1763229023123", NOW) == OffsetTarget("offset", 1763229023123)
    assert parse_target("1s", NOW) == OffsetTarget("time", NOW_MS - 1000)


def test_what_is_no_place_is_refused():
    """The complaint says what a place can be."""
    with pytest.raises(ConfigError, match="'erliest' is not a place; give earliest, latest"):
        parse_target("erliest", NOW)
