"""What clients see of a topic: by their unit, and by what is open."""

import pytest

from holdfast.model.dr_switch import CLOSED, DrSwitch, UnitOpening
from holdfast.model.scope import GLOBAL
from holdfast.nameserver.routes.unit_visibility import (
    DEFAULT_VIEWER,
    FULL_VISIBILITY,
    Viewer,
    find_visibility,
    to_viewer,
)

EAST = Viewer("east")
ONLY_EAST = DrSwitch(1, (UnitOpening("east"),))


def test_without_a_unit_everything_is_seen():
    """As ever."""
    assert find_visibility(CLOSED, "orders", DEFAULT_VIEWER) is FULL_VISIBILITY
    assert FULL_VISIBILITY.is_plain


@pytest.mark.parametrize("text", ["", "global", GLOBAL])
def test_global_is_no_unit(text: str):
    """Nor is a group without one anything to go by."""
    assert to_viewer(text, "billing") is DEFAULT_VIEWER


@pytest.mark.parametrize("topic", ["orders", "%RETRY%billing", "%DLQ%billing", "shop%orders", "TBW102"])
def test_with_a_unit_only_its_own_is_seen(topic: str):
    """Whatever kind of topic it is."""
    vision = find_visibility(CLOSED, topic, EAST)

    assert [vision.shows(cluster) for cluster in ("east", "west")] == [True, False]
    assert [vision.shows_scope(scope) for scope in ("east", "west", GLOBAL, "east_west")] == [True, False, True, True]
    assert [vision.can_write_scope(scope) for scope in ("east", GLOBAL)] == [True, True]


@pytest.mark.parametrize("unit", ["east", "west", "north"])
def test_while_a_unit_is_open_all_units_see_the_same_and_write_their_own(unit: str):
    """So a group's members share the queues out alike, those of the lost site too."""
    vision = find_visibility(ONLY_EAST, "orders", Viewer(unit))

    clusters = ("east", "west", "north")
    assert all(vision.shows(cluster) and vision.shows_scope(cluster) for cluster in clusters)
    assert [cluster for cluster in clusters if vision.can_write(cluster)] == [unit]
    assert [cluster for cluster in clusters if vision.can_write_scope(cluster)] == [unit]


def test_whoever_has_no_unit_writes_nothing_into_one_that_is_open_by_name():
    """It may be lost. What belongs to all units is not."""
    vision = find_visibility(ONLY_EAST, "orders", DEFAULT_VIEWER)

    assert vision.shows("east")
    assert [cluster for cluster in ("east", "west") if vision.can_write(cluster)] == ["west"]
    assert [vision.can_write_scope(scope) for scope in ("east", "west", GLOBAL)] == [False, True, True]


def test_where_all_units_are_open_nobody_without_one_is_stopped():
    """None of them is said to be lost."""
    assert find_visibility(DrSwitch(1, (UnitOpening("*"),)), "orders", DEFAULT_VIEWER) is FULL_VISIBILITY


@pytest.mark.parametrize(
    ("opening", "seen"),
    [
        (UnitOpening("east"), {("orders", ""), ("orders", "billing"), ("bills", ""), ("%RETRY%billing", "billing")}),
        (UnitOpening("east", topic="orders"), {("orders", ""), ("orders", "billing"), ("%RETRY%billing", "billing")}),
        (UnitOpening("east", group="billing"), {("orders", "billing"), ("%RETRY%billing", "billing")}),
        (UnitOpening("east", group="audit"), set()),
        (UnitOpening("east", topic="orders", group="billing"), {("orders", "billing"), ("%RETRY%billing", "billing")}),
    ],
)
def test_an_opening_is_for_the_topics_and_groups_that_it_names(opening: UnitOpening, seen: set[tuple[str, str]]):
    """What a group retries belongs to every topic of it."""
    asked = [("orders", ""), ("orders", "billing"), ("bills", ""), ("%RETRY%billing", "billing")]

    found = {
        (topic, group)
        for topic, group in asked
        if find_visibility(DrSwitch(1, (opening,)), topic, Viewer("west", group)).sees_other_units
    }

    assert found == seen


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
def test_topics_of_the_system_are_never_opened(topic: str):
    """A template of another unit would have topics created there."""
    assert not find_visibility(ONLY_EAST, topic, Viewer("west")).shows("east")
    assert not find_visibility(ONLY_EAST, topic, DEFAULT_VIEWER).can_write("east")
