"""Which queues of a route can be used for what."""

import msgspec
from tests.support.static_topics import a_record, a_static_route, logical_queue

from holdfast.model.queue import MessageQueue
from holdfast.model.route import BrokerData, QueueData, Route


def a_route(*brokers: tuple[str, dict[int, str], int], order: str | None = None) -> Route:
    """Return a route of brokers with (name, addresses, permission), three queues to read and two to write each."""
    return Route(
        broker_datas=[BrokerData(cluster="c", broker_name=name, broker_addrs=where) for name, where, _ in brokers],
        queue_datas=[
            QueueData(broker_name=name, read_queues=3, write_queues=2, permission=permission)
            for name, _, permission in brokers
        ],
        order_topic_conf=order,
    )


def names(queues: list[MessageQueue]) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.queue_id) for queue in queues]


def test_messages_go_to_writable_queues_of_brokers_with_a_master():
    """By broker name, then by number."""
    route = a_route(("b", {0: "h:2"}, 6), ("a", {0: "h:1"}, 2), ("readonly", {0: "h:3"}, 4), ("slave", {1: "h:4"}, 6))

    assert names(route.publishable("t")) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert {queue.topic for queue in route.publishable("t")} == {"t"}


def test_messages_are_read_where_reading_is_allowed_master_or_not():
    """A slave is enough to read from."""
    route = a_route(("b", {1: "h:2"}, 4), ("a", {0: "h:1"}, 2))

    assert names(route.readable("t")) == [("b", 0), ("b", 1), ("b", 2)]


def test_an_order_configuration_decides_where_messages_go():
    """Its brokers and counts, in its order, whatever else the route says."""
    route = a_route(("a", {0: "h:1"}, 6), order="b:1;a:2;")

    assert names(route.publishable("t")) == [("b", 0), ("a", 0), ("a", 1)]


def test_what_is_wrong_in_an_order_configuration_counts_nothing():
    """An operator typed it."""
    route = a_route(("a", {0: "h:1"}, 6), order="b;c:;d:x;e:-1;a:1")

    assert names(route.publishable("t")) == [("a", 0)]


def test_an_address_is_found_by_name_and_id():
    """None when the route does not know it."""
    route = a_route(("a", {0: "h:1", 1: "h:2"}, 6))

    assert route.address_of("a") == "h:1"
    assert route.address_of("a", 1) == "h:2"
    assert route.address_of("a", 2) is None
    assert route.address_of("x") is None


def test_a_static_topic_has_logical_queues_only():
    """Whatever queues its brokers have for it, and whatever an order configuration says."""
    route = msgspec.structs.replace(a_static_route(a_record("a", {0: 1}, total=2)), order_topic_conf="a:7")

    assert route.publishable("t") == route.readable("t") == [logical_queue(0), logical_queue(1)]
    assert [leader.broker for leader in route.leaders("t").values()] == ["a", "__syslo__none__"]


def test_a_normal_topic_has_no_leaders():
    """Each of its queues is its broker's."""
    assert Route().leaders("t") == {}


def test_of_several_units_only_the_queues_that_are_named_take_messages():
    """The others are there to be read; where none is named, none takes any."""
    records = (a_record("a", {0: 1}, total=1, scope="east"), a_record("b", {0: 1, 1: 1}, total=2, scope="west"))
    west = [MessageQueue("t", "__syslo__west", number) for number in (0, 1)]

    for order, expected in (("__syslo__west:2", west), ("__syslo__none__:0", [])):
        route = msgspec.structs.replace(a_static_route(*records), order_topic_conf=order)
        assert route.publishable("t") == expected
        assert route.readable("t") == [MessageQueue("t", "__syslo__east", 0), *west]
