import pytest

from holdfast.model.delay import DelayLevels
from holdfast.model.errors import ConfigError


def test_levels_are_numbered_from_one() -> None:
    """Level 1 is the first of the list."""
    levels = DelayLevels("1s 2m 3h 4d")

    assert [levels.delay_ms(level) for level in (1, 2, 3, 4)] == [1_000, 120_000, 10_800_000, 345_600_000]


def test_a_level_beyond_the_last_waits_as_long_as_the_last() -> None:
    """As upstream does."""
    assert DelayLevels("1s 5s").clamp(99) == 2


@pytest.mark.parametrize("text", ["", "1x", "s", "1s,5s", "-1s"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    """The error names what is wrong."""
    with pytest.raises(ConfigError):
        DelayLevels(text)
