"""The route of a topic, for people."""

from holdfast.admin.combined.route_view import RouteBroker, view_route
from holdfast.model.route import BrokerData, QueueData, Route


def test_brokers_are_listed_with_their_addresses():
    """By name; one that the name server has forgotten has neither cluster nor addresses."""
    route = Route(
        broker_datas=[BrokerData(broker_name="a", cluster="c", broker_addrs={1: "a:2", 0: "a:1"})],
        queue_datas=[
            QueueData(broker_name="b", read_queues=2, write_queues=0, permission=4),
            QueueData(broker_name="a", read_queues=4, write_queues=4, permission=6),
        ],
    )

    found = view_route("orders", route)

    assert found.brokers == [
        RouteBroker("a", "c", 4, 4, "rw", {0: "a:1", 1: "a:2"}),
        RouteBroker("b", None, 2, 0, "r", None),
    ]
    assert list(found.brokers[0].addresses or ()) == [0, 1]
    assert found.logical == []
