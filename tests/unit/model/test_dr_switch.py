"""The switch for the loss of a site, as a value."""

import pytest

from holdfast.model.dr_switch import (
    CLOSED,
    EVERY_UNIT,
    OPENINGS_MAX,
    DrSwitch,
    SwitchRefused,
    UnitOpening,
    group_of_topic,
)

EAST = UnitOpening("east")
ORDERS = UnitOpening("east", topic="orders")


def test_a_switch_remembers_what_is_open_and_rises():
    """Also when the clock goes back."""
    switch = CLOSED.open(EAST, now_ms=1000)
    again = switch.open(UnitOpening("west"), now_ms=5)

    assert switch == DrSwitch(1000, (EAST,))
    assert again == DrSwitch(1001, (EAST, UnitOpening("west")))
    assert again.is_newer(switch)
    assert not switch.is_newer(switch)


@pytest.mark.parametrize("known", [EAST, UnitOpening(EVERY_UNIT), ORDERS])
def test_what_would_change_nothing_is_refused(known: UnitOpening):
    """The text says what is open."""
    switch = DrSwitch(1, (known,))

    with pytest.raises(SwitchRefused, match=f"nothing would change: {known} is open already"):
        switch.open(ORDERS, 2)
    with pytest.raises(SwitchRefused, match="nothing would change: unit west is not open"):
        CLOSED.close(UnitOpening("west"), 2)


def test_what_is_wider_takes_the_place_of_what_is_in_it():
    """One line is enough."""
    assert DrSwitch(1, (ORDERS,)).open(EAST, 2).openings == (EAST,)
    assert DrSwitch(1, (EAST, UnitOpening("west"))).open(UnitOpening(EVERY_UNIT), 2).openings == (
        UnitOpening(EVERY_UNIT),
    )


def test_closing_ends_what_was_opened_and_what_is_narrower():
    """A part of something larger is not closed by itself: the text says what to do."""
    assert DrSwitch(1, (EAST, UnitOpening("west"))).close(EAST, 2).openings == (UnitOpening("west"),)
    assert DrSwitch(1, (ORDERS,)).close(EAST, 2).openings == ()
    assert DrSwitch(1, (EAST, UnitOpening(EVERY_UNIT))).close(UnitOpening(EVERY_UNIT), 2).openings == ()
    with pytest.raises(SwitchRefused, match="unit east is open as a whole: close that"):
        DrSwitch(1, (EAST,)).close(ORDERS, 2)


def test_of_two_changes_at_once_all_choose_the_same():
    """In whatever order they hear of them."""
    one, other = DrSwitch(5, (EAST,)), DrSwitch(5, (UnitOpening("west"),))

    assert one.is_newer(other) is not other.is_newer(one)


def test_there_is_an_end_to_what_is_kept():
    """It travels in a header field."""
    full = DrSwitch(1, tuple(UnitOpening("east", topic=f"t{number}") for number in range(OPENINGS_MAX)))

    with pytest.raises(SwitchRefused, match="are the maximum"):
        full.open(UnitOpening("west"), 2)


@pytest.mark.parametrize(
    ("topic", "owner"), [("%RETRY%billing", "billing"), ("%DLQ%shop%billing", "shop%billing"), ("orders", None)]
)
def test_retries_and_dead_letters_have_an_owner(topic: str, owner: str | None):
    """Within a namespace the group has its prefix."""
    assert group_of_topic(topic) == owner


def test_an_opening_reads_as_a_sentence():
    """For whoever is refused something because of it."""
    assert str(UnitOpening(EVERY_UNIT, "orders", "billing")) == "all units, topic orders, group billing"


@pytest.mark.parametrize(
    ("topic", "group", "is_open"),
    [
        ("orders", "billing", True),
        ("orders", "audit", False),
        ("clicks", "billing", False),
        ("%RETRY%billing", "billing", True),
        ("%RETRY%billing", "", True),
        ("%RETRY%audit", "audit", False),
    ],
)
def test_an_opening_for_a_group_is_open_for_no_other(topic: str, group: str, *, is_open: bool):
    """Except the group's own retry topic, which names it."""
    assert UnitOpening("east", topic="orders", group="billing").opens_for(topic, group) is is_open
