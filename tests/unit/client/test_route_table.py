"""What a client knows about who serves which topic."""

import msgspec

from holdfast.client.route_table import RouteTable
from holdfast.model.queue import MessageQueue
from holdfast.model.route import BrokerData, QueueData, Route


def a_route(*names: str, queues: int = 2, permission: int = 6) -> Route:
    return Route(
        broker_datas=[
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: f"{name}:1", 1: f"{name}:2"}) for name in names
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queues=queues, write_queues=queues, permission=permission)
            for name in names
        ],
    )


def test_a_route_is_worked_out_once():
    """Queues to write, queues to read, masters."""
    table = RouteTable()
    assert table.find("t") is None

    assert table.put("t", a_route("b", "a"), 0)

    route = table.find("t")
    assert route is not None
    assert route.publishable == route.readable == tuple(MessageQueue("t", name, q) for name in "ab" for q in (0, 1))
    assert route.masters == {"a": "a:1", "b": "b:1"}
    assert route.master_of("a") == "a:1"
    assert route.master_of("x") is None


def test_the_same_route_again_is_no_change():
    """Whoever kept something that follows from it may keep it."""
    table = RouteTable()
    table.put("t", a_route("a"), 0)
    before = table.find("t")

    assert not table.put("t", a_route("a"), 5)
    assert table.find("t") is before

    assert table.put("t", a_route("a", "b"), 10)
    assert table.find("t") is not before


def test_routes_are_polled_every_thirty_seconds():
    """Also of topics that were never found, once somebody is interested."""
    table = RouteTable()
    table.watch("missing")
    table.put("known", a_route("a"), 0)
    assert table.due(0) == ["missing"]

    table.put_missing("missing", 0)
    assert table.due(29_999) == []
    assert set(table.due(30_000)) == {"missing", "known"}


def test_a_route_that_is_gone_stays_known():
    """The brokers know better than a name server that has just started."""
    table = RouteTable()
    table.put("t", a_route("a"), 0)

    table.put_missing("t", 1)

    assert table.find("t") is not None


def test_a_topic_that_does_not_exist_borrows_the_template():
    """With no more queues than a broker will create; the real route is looked for soon."""
    table = RouteTable()

    table.put_template("new", a_route("a", queues=8, permission=7), 0, queues_max=4)

    route = table.find("new")
    assert route is not None
    assert route.is_borrowed
    assert len(route.publishable) == 4
    assert table.due(5_000) == ["new"]
    assert table.put("new", a_route("a", queues=4, permission=7), 6_000)
    found = table.find("new")
    assert found is not None
    assert not found.is_borrowed


def test_addresses_are_found_by_name():
    """Of one route, with the nearest that is up; or of any."""
    table = RouteTable()
    table.put("t", a_route("a"), 0)
    lonely = msgspec.structs.replace(
        a_route("s"), broker_datas=[BrokerData(cluster="c", broker_name="s", broker_addrs={1: "s:2"})]
    )
    table.put("u", lonely, 0)
    route, slave_only = table.find("t"), table.find("u")
    assert route is not None
    assert slave_only is not None

    assert (route.any_address_of("a"), route.any_address_of("a", 1), route.any_address_of("a", 7)) == (
        "a:1",
        "a:2",
        "a:1",
    )
    assert route.any_address_of("x") is None
    assert slave_only.any_address_of("s") == "s:2"
    assert table.find_address("a") == "a:1"
    assert table.find_address("s") is None
    assert table.broker_addresses(masters_only=True) == ["a:1"]
    assert table.broker_addresses(masters_only=False) == ["a:1", "a:2", "s:2"]


def test_a_broker_that_drops_out_of_a_route_is_remembered_for_a_while():
    """Its queues stay readable, so that their owners keep them; nothing new goes there."""
    table = RouteTable()
    table.put("t", a_route("a", "b"), 0)

    assert table.put("t", a_route("a"), 1000)

    route = table.find("t")
    assert route is not None
    assert {queue.broker_name for queue in route.readable} == {"a", "b"}
    assert {queue.broker_name for queue in route.publishable} == {"a"}
    assert route.masters == {"a": "a:1", "b": "b:1"}
    assert route.any_address_of("b") == table.find_address("b") == "b:1"
    assert "b:1" in table.broker_addresses(masters_only=True)
    assert [broker.broker_name for broker in route.route.broker_datas] == ["a"]


def test_a_broker_that_comes_back_in_time_was_never_gone():
    """Readers see no difference at any moment."""
    table = RouteTable()
    table.put("t", a_route("a", "b"), 0)
    before = table.find("t")
    table.put("t", a_route("a"), 1000)
    assert not table.put("t", a_route("a"), 20_000)

    assert table.put("t", a_route("a", "b"), 30_999)

    after = table.find("t")
    assert before is not None
    assert after is not None
    assert (after.readable, after.publishable) == (before.readable, before.publishable)
    table.put("t", a_route("a"), 31_000)
    assert not table.put("t", a_route("a"), 60_000), "it is remembered from its second absence on"


def test_a_broker_that_stays_away_is_forgotten():
    """One poll interval after it was missed first."""
    table = RouteTable()
    table.put("t", a_route("a", "b"), 0)
    table.put("t", a_route("a"), 1000)

    assert table.put("t", a_route("a"), 31_000)

    route = table.find("t")
    assert route is not None
    assert {queue.broker_name for queue in route.readable} == {"a"}
    assert route.any_address_of("b") is None


def test_queues_that_a_broker_gives_up_are_gone_at_once():
    """It is there, and says so itself."""
    table = RouteTable()
    table.put("t", a_route("a", queues=4), 0)

    table.put("t", a_route("a", queues=2), 1)

    route = table.find("t")
    assert route is not None
    assert len(route.readable) == 2


def test_a_route_of_which_news_is_expected_is_polled_often():
    """A broker is missing in it, or its connection broke, or somebody says so."""
    table = RouteTable()
    table.put("missing", a_route("a", "b"), 0)
    table.put("broken", a_route("c"), 0)
    table.put("calm", a_route("d"), 0)
    table.put("missing", a_route("a"), 0)
    assert table.due(2_999) == []

    table.suspect("c:2")
    assert table.due(0) == ["broken"]
    table.put("broken", a_route("c"), 0)
    assert set(table.due(3_000)) == {"missing", "broken"}

    table.trust("c:2")
    assert table.due(3_000) == ["missing"]
    table.doubt("calm")
    table.doubt("unknown")
    assert set(table.due(0)) == {"calm"}
