"""Which queues a reader sees, and under which names: those of its unit, and of others while they are open."""

import msgspec
from tests.support.static_topics import a_record, a_static_route

from holdfast.bulk.queue_directory import QueueDirectory
from holdfast.client.routes.route_table import RouteTable, TopicRoute
from holdfast.model.route import BrokerData, QueueData, Route


def a_directory(unit: str | None) -> QueueDirectory:
    """Return a directory that has asked nobody."""
    directory = QueueDirectory.__new__(QueueDirectory)
    directory._unit = unit
    return directory


def known(route: Route, unit: str | None) -> TopicRoute:
    table = RouteTable(unit=unit)
    table.put("t", route, 0)
    found = table.find("t")
    assert found is not None
    return found


def open_static() -> Route:
    records = (a_record("a", {0: 1}, total=1, scope="east"), a_record("b", {0: 1}, total=1, scope="west"))
    return msgspec.structs.replace(a_static_route(*records), order_topic_conf="__syslo__west:1")


def named(directory: QueueDirectory, found: TopicRoute) -> set[str]:
    """Return the names of the queues that are read, as if a name server had told the route."""
    directory.find_route = lambda topic: found  # type: ignore[method-assign]
    return {name for _, name in directory.queues("t")}


def test_logical_queues_keep_their_names_and_those_of_a_unit_that_is_open_have_its_name():
    """Checkpoints name queues: what they say stays true."""
    assert named(a_directory("west"), known(open_static(), "west")) == {"0", "east/0"}
    assert named(a_directory(None), known(open_static(), None)) == {"__syslo__east/0", "__syslo__west/0"}


def test_own_logical_queues_are_told_from_those_of_a_unit_that_is_open():
    """By their scope."""
    assert [queue.broker_name for queue in a_directory("west")._own_queues(known(open_static(), "west"))] == [
        "__syslo__west"
    ]
    assert len(a_directory(None)._own_queues(known(open_static(), None))) == 2


def test_own_normal_queues_too():
    """By the cluster of their broker."""
    route = Route(
        broker_datas=[
            BrokerData(cluster=cluster, broker_name=cluster[0], broker_addrs={0: f"{cluster}:1"})
            for cluster in ("east", "west")
        ],
        queue_datas=[QueueData(broker_name=name, read_queues=1, write_queues=1, permission=4) for name in "ew"],
    )

    assert [queue.broker_name for queue in a_directory("west")._own_queues(known(route, "west"))] == ["w"]


def test_a_global_topic_is_read_whole():
    """It belongs to every unit."""
    route = a_static_route(a_record("a", {0: 1}, total=2), a_record("b", {1: 1}, total=2))

    assert len(a_directory("west")._own_queues(known(route, "west"))) == 2
