"""Which messages tail shows."""

from typing import Any

import pytest
from tests.unit.cli.test_message_text import a_message

from holdfast.cli.commands.tail import _compile, _resolve_start, _Selection
from holdfast.model.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, "-10"),
        ({"last": 1}, "-1"),
        ({"count": 3}, "-3"),
        ({"start": "earliest", "count": 3}, "earliest"),
        ({"follow": True}, "latest"),
        ({"follow": True, "last": 2, "count": 5}, "-2"),
    ],
)
def test_without_a_place_the_newest_are_meant(options: dict[str, Any], place: str):
    """However few are asked for: never the oldest of the last ten."""
    assert _resolve_start(**{"start": None, "last": None, "count": None, "follow": False, **options}) == place


@pytest.mark.parametrize("contradiction", [{"start": "earliest"}, {"count": 3}])
def test_limits_that_contradict_each_other_are_refused(contradiction: dict[str, Any]):
    """With the choice that there is."""
    with pytest.raises(ConfigError, match="give one of them"):
        _resolve_start(**{"start": None, "last": 2, "count": None, "follow": False, **contradiction})


def test_a_pattern_is_looked_for_in_body_keys_and_properties():
    """Whatever a user can see of a message can be searched."""
    wanted = _Selection(_compile("blue"), None)

    assert wanted.matches(a_message(b"a blue sky"))
    assert wanted.matches(a_message(KEYS="k blue"))
    assert wanted.matches(a_message(colour="blue"))
    assert not wanted.matches(a_message(b"grey"))


def test_a_pattern_that_is_none_is_refused():
    """With the reason."""
    with pytest.raises(ConfigError, match="is not a regular expression"):
        _compile("(")
