"""Deletion markers as values: which topic is deleted where, and that every server comes to the same table."""

import itertools

import pytest

from holdfast.model import deletion
from holdfast.model.deletion import DeletionMarker, Deletions, is_marked_when_deleted


def test_a_topic_is_deleted_until_it_is_created_again():
    """Then it may be deleted once more; versions rise though the clock goes back."""
    deletions = Deletions()
    assert not deletions.is_deleted("orders", "C")

    deletions.delete("orders", "", 1000)
    assert deletions.is_deleted("orders", "C")
    assert not deletions.is_deleted("bills", "C")

    assert deletions.lift("orders", "C", 5)
    assert not deletions.is_deleted("orders", "C")
    assert not deletions.lift("orders", "C", 6)

    deletions.delete("orders", "", 7)
    assert deletions.is_deleted("orders", "C")
    assert deletions.all() == [DeletionMarker("orders", 1002)]


def test_a_deletion_in_one_cluster_concerns_that_one():
    """A client without a unit sees the newest of all."""
    deletions = Deletions()
    deletions.delete("orders", "east", 10)

    assert deletions.is_deleted("orders", "east")
    assert not deletions.is_deleted("orders", "west")
    assert deletions.is_deleted("orders")

    deletions.delete("orders", "", 20)
    deletions.lift("orders", "west", 30)
    assert (deletions.is_deleted("orders", "east"), deletions.is_deleted("orders", "west")) == (True, False)


def test_servers_that_heard_the_same_have_the_same():
    """In whatever order it came; the deletion wins where a lifted marker has its version."""
    markers = [
        DeletionMarker("a", 1),
        DeletionMarker("a", 2, is_lifted=True),
        DeletionMarker("a", 2),
        DeletionMarker("a", 1, "east", is_lifted=True),
        DeletionMarker("a", 3, "west", is_lifted=True),
        DeletionMarker("b", 1),
    ]

    tables = {str(Deletions(order).all()) for order in itertools.permutations(markers)}

    assert tables == {
        str([DeletionMarker("a", 2), DeletionMarker("a", 3, "west", is_lifted=True), DeletionMarker("b", 1)])
    }


def test_merging_says_whether_something_is_new():
    """So that only news is written and carried on."""
    deletions = Deletions([DeletionMarker("a", 2)])

    assert not deletions.merge([DeletionMarker("a", 1), DeletionMarker("a", 2)])
    assert deletions.merge([DeletionMarker("a", 3)])


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Lifted markers go first, then the oldest: the same ones at every server."""
    monkeypatch.setattr(deletion, "MARKERS_MAX", 2)
    markers = [
        DeletionMarker("a", 1),
        DeletionMarker("b", 9, is_lifted=True),
        DeletionMarker("c", 3),
        DeletionMarker("d", 2),
    ]

    for order in itertools.permutations(markers):
        assert Deletions(order).all() == [DeletionMarker("c", 3), DeletionMarker("d", 2)]


@pytest.mark.parametrize(
    ("topic", "is_marked"),
    [
        ("orders", True),
        ("ns%orders", True),
        ("%RETRY%g", False),
        ("%DLQ%g", False),
        ("TBW102", False),
        ("rmq_sys_x", False),
        ("SCHEDULE_TOPIC_XXXX", False),
    ],
)
def test_what_brokers_make_for_themselves_is_not_marked(topic: str, *, is_marked: bool):
    """A group that was deleted and comes back needs its retry topic."""
    assert is_marked_when_deleted(topic) == is_marked
