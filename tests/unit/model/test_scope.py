"""The names that logical queues wear, on the wire and before people."""

import pytest

from holdfast.model import scope
from holdfast.model.errors import MappingRefused


@pytest.mark.parametrize(
    ("wire", "shown", "mock", "shown_mock"),
    [
        ("__global__", "global", "__syslo__global__", "__logic__global"),
        ("clusterA", "clusterA", "__syslo__clusterA", "__logic__clusterA"),
    ],
)
def test_a_scope_has_one_name_on_the_wire_and_one_for_people(wire: str, shown: str, mock: str, shown_mock: str):
    """Both are accepted, and lead to the same scope."""
    assert scope.to_shown_scope(wire) == shown
    assert {scope.to_wire_scope(text) for text in (shown, wire)} == {wire}
    assert scope.mock_broker(wire) == mock
    assert scope.shown_broker(wire) == shown_mock
    for name in (mock, shown_mock):
        assert scope.is_mock_broker(name)
        assert scope.find_scope(name) == wire
        assert scope.to_wire_broker(name) == mock
        assert scope.to_shown_broker(name) == shown_mock


def test_real_brokers_stand_for_no_scope():
    """Their names stay what they are."""
    assert not scope.is_mock_broker("broker-a")
    assert scope.find_scope("broker-a") is None
    assert scope.to_wire_broker("broker-a") == scope.to_shown_broker("broker-a") == "broker-a"


def test_a_queue_without_a_leader_belongs_to_nobody():
    """Upstream has a name for that, which is no scope."""
    assert scope.is_mock_broker(scope.NO_BROKER)
    assert scope.find_scope(scope.NO_BROKER) is None
    assert scope.to_shown_broker(scope.NO_BROKER) == scope.NO_BROKER
    assert scope.find_scope("__syslo__") is None


def test_a_set_of_clusters_can_be_read():
    """The proposal joins them by an underscore."""
    assert scope.find_scope("__logic__east_west") == "east_west"
    assert scope.mock_broker("east_west") == "__syslo__east_west"
    assert [scope.covers("east_west", cluster) for cluster in ("east", "west", "north")] == [True, True, False]


def test_a_scope_covers_its_cluster_and_the_global_one_all():
    """A cluster whose name Java would take for a set is still itself."""
    assert scope.covers("east", "east")
    assert not scope.covers("east", "west")
    assert scope.covers(scope.GLOBAL, "west")
    assert scope.covers("my_cluster", "my_cluster")


@pytest.mark.parametrize(
    ("one", "other", "is_so"),
    [
        ("east", "west", False),
        ("east", "east", True),
        ("east", scope.GLOBAL, True),
        ("east_west", "west_north", True),
        ("east_west", "north", False),
    ],
)
def test_scopes_overlap_where_they_share_a_cluster(one: str, other: str, *, is_so: bool):
    """Only then does it matter that two topics have one name."""
    assert scope.overlap(one, other) is scope.overlap(other, one) is is_so


def test_a_broker_outside_of_a_scope_is_told_where_the_topic_is():
    """In the words of people."""
    scope.require_in_scope("east", "east", "a", "orders")
    with pytest.raises(MappingRefused, match="orders is fixed in east, and b belongs to cluster west"):
        scope.require_in_scope("east", "west", "b", "orders")


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [("global", "means all clusters"), ("a_b", "separates names"), ("", "needs a name")],
)
def test_some_clusters_cannot_be_a_scope(cluster: str, reason: str):
    """Their mock names would be those of something else."""
    assert reason in (scope.find_scope_fault(cluster) or "")
    assert scope.find_scope_fault("east-1") is None


def test_what_people_write_is_judged():
    """`global` is fine there: it is not a cluster."""
    assert scope.to_wire_scope("global") == scope.GLOBAL
    assert scope.to_wire_scope("__logic__global") == scope.GLOBAL
    assert scope.to_wire_scope("__logic__east") == "east"
    with pytest.raises(MappingRefused, match="separates names"):
        scope.to_wire_scope("a_b")
