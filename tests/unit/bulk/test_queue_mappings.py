"""Which segments a reader knows: those that brokers of its unit registered."""

import pytest
from tests.support.static_topics import a_record, a_static_route

from holdfast.bulk.queue_mappings import QueueMappings
from holdfast.client.routes.route_table import RouteTable


def known(*brokers: str, unit: str | None = None) -> tuple[RouteTable, QueueMappings]:
    """Return what a reader knows when each broker leads queue 0 of its unit in generation 1."""
    table = RouteTable(unit=None)
    records = [a_record(name, {0: 1}, total=1, scope=scope) for name, _, scope in (b.partition("@") for b in brokers)]
    table.put("t", a_static_route(*records), 0)
    return table, QueueMappings(table, unit)


@pytest.mark.parametrize(("name", "is_found"), [("0", True), ("1", False), ("broker-a/0", False)])
def test_logical_queues_are_found_by_their_number(name: str, *, is_found: bool):
    """Queues of normal topics have no segments."""
    _, mappings = known("a@east", unit="east")

    assert (mappings.find(("t", name)) is not None) is is_found
    assert mappings.find(("other", name)) is None


@pytest.mark.parametrize(("unit", "broker"), [("east", "a"), ("west", "b")])
def test_only_the_own_unit_counts(unit: str, broker: str):
    """The same number is another queue in each unit."""
    _, mappings = known("a@east", "b@west", unit=unit)

    queue = mappings.find(("t", "0"))

    assert queue is not None
    assert queue.leader.broker == broker


def test_a_segment_must_fit_the_answer():
    """An answer names its delta: with another one, its records are from another segment."""
    _, mappings = known("a@east", unit="east")

    assert mappings.find_segment(("t", "0"), 5, 0) is not None
    assert mappings.find_segment(("t", "0"), 5, 7) is None
    assert mappings.find_segment(("t", "9"), 5, 0) is None


def test_a_new_route_is_merged_again():
    """A move changes who leads."""
    table, mappings = known("a@east")
    assert mappings.find(("t", "0")) is not None

    table.put("t", a_static_route(a_record("b", {0: 2}, epoch=2, total=1, scope="east")), 1)

    queue = mappings.find(("t", "0"))
    assert queue is not None
    assert queue.leader.broker == "b"
