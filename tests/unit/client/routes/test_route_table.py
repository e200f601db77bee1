"""What a client knows about who serves which topic."""

import msgspec
from tests.support.static_topics import a_record, a_static_route, logical_queue

from holdfast.client.routes.route_table import RouteTable
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
    assert route.is_template
    assert len(route.publishable) == 4
    assert table.due(5_000) == ["new"]
    assert table.put("new", a_route("a", queues=4, permission=7), 6_000)
    found = table.find("new")
    assert found is not None
    assert not found.is_template


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

    table.suspect_broker("c:2")
    assert table.due(0) == ["broken"]
    table.put("broken", a_route("c"), 0)
    assert set(table.due(3_000)) == {"missing", "broken"}

    table.trust_broker("c:2")
    assert table.due(3_000) == ["missing"]
    table.mark_stale("calm")
    table.mark_stale("unknown")
    assert set(table.due(0)) == {"calm"}


A_LEADS = a_record("a", {0: 1, 1: 1}, epoch=1, total=2)
B_LEADS_0 = a_record("b", {0: 2}, epoch=2, total=2)


def leaders_of(table: RouteTable) -> list[str]:
    route = table.find("t")
    assert route is not None
    return [leader.broker for leader in route.leaders.values()]


def test_a_static_topic_has_logical_queues():
    """All of them are published to and read; each is served by its leader."""
    table = RouteTable()

    table.put("t", a_static_route(a_record("a", {1: 0}), a_record("b", {0: 0, 2: 0})), 0)

    route = table.find("t")
    assert route is not None
    assert route.publishable == route.readable == tuple(logical_queue(number) for number in range(4))
    assert route.sendable == (logical_queue(0), logical_queue(1), logical_queue(2))
    assert [route.broker_of(queue) for queue in route.publishable] == ["b", "a", "b", "__syslo__none__"]
    assert [route.address_of(queue) for queue in route.publishable] == ["b:1", "a:1", "b:1", None]
    assert route.broker_of(MessageQueue("u", "a", 0)) == "a"


def test_a_static_topic_without_queues_has_none():
    """Though brokers have queues for it: they are not to be used past the mapping."""
    table = RouteTable()

    table.put("t", a_static_route(a_record("a", {}, total=0)), 0)

    route = table.find("t")
    assert route is not None
    assert route.publishable == route.readable == route.sendable == ()


def test_what_is_ready_to_be_sent_to_is_up_and_may_be_written():
    """Every queue keeps its number all the same."""
    table = RouteTable()
    route = a_static_route(
        a_record("up", {0: 0}),
        a_record("closed", {1: 0}),
        a_record("down", {2: 0}),
        addresses={"up": "u", "closed": "c"},
    )
    closed = [
        msgspec.structs.replace(data, permission=4 if data.broker_name == "closed" else 6) for data in route.queue_datas
    ]

    table.put("t", msgspec.structs.replace(route, queue_datas=closed), 0)

    found = table.find("t")
    assert found is not None
    assert found.sendable == (logical_queue(0),)
    assert len(found.publishable) == 4


def test_a_late_route_does_not_bring_the_old_leader_back():
    """Nor is it a change."""
    table = RouteTable()
    table.put("t", a_static_route(A_LEADS), 0)
    assert table.put("t", a_static_route(A_LEADS, B_LEADS_0), 1)
    assert leaders_of(table) == ["b", "a"]

    table.put("t", a_static_route(A_LEADS), 2)

    assert leaders_of(table) == ["b", "a"]
    route = table.find("t")
    assert route is not None
    assert route.address_of(logical_queue(0)) == "b:1", (
        "it is remembered where a broker was that dropped out of a route"
    )


def test_of_several_name_servers_the_newest_word_counts():
    """One may know the new leader, another where it is."""
    table = RouteTable()
    stale, fresh = a_static_route(A_LEADS, addresses={"a": "a:1", "b": "b:1"}), a_static_route(A_LEADS, B_LEADS_0)
    homeless = msgspec.structs.replace(fresh, broker_datas=fresh.broker_datas[:1])

    assert table.put_all("t", [stale, homeless], 0, is_complete=False)

    route = table.find("t")
    assert route is not None
    assert (route.broker_of(logical_queue(0)), route.address_of(logical_queue(0))) == ("b", "b:1")


def test_a_name_server_that_knows_no_mapping_is_not_heard_beside_one_that_does():
    """It would make a normal topic of it."""
    table = RouteTable()

    table.put_all("t", [a_route("a"), a_static_route(A_LEADS)], 0, is_complete=True)

    assert leaders_of(table) == ["a", "a"]


def test_what_no_name_server_says_any_more_is_forgotten():
    """The topic was made anew: its generations begin again. As long as one was not asked, nothing is forgotten."""
    table = RouteTable()
    table.put("t", a_static_route(a_record("b", {0: 7, 1: 7, 2: 7}, epoch=9, total=3)), 0)
    anew = a_static_route(a_record("a", {0: 0}, epoch=20, total=2), addresses={"a": "a:1", "b": "b:1"})

    table.put_all("t", [anew], 1, is_complete=False)
    assert leaders_of(table) == ["b", "b", "b"]

    table.put_all("t", [anew], 2, is_complete=True)
    assert leaders_of(table) == ["a", "b"], "where nobody is said to lead, the last one known may"


def test_a_topic_that_is_normal_again_has_no_leaders():
    """It was deleted and made anew."""
    table = RouteTable()
    table.put("t", a_static_route(A_LEADS), 0)

    table.put("t", a_route("a"), 1)

    route = table.find("t")
    assert route is not None
    assert route.leaders == {}
    assert {queue.broker_name for queue in route.readable} == {"a"}


def test_a_queue_without_a_leader_is_looked_for_often():
    """Somebody waits for it."""
    table = RouteTable()
    table.put("t", a_static_route(a_record("a", {0: 0}, total=2)), 0)

    assert table.due(2_999) == []
    assert table.due(3_000) == ["t"]


def test_brokers_are_found_by_address():
    """According to any route."""
    table = RouteTable()
    table.put("t", a_static_route(A_LEADS), 0)

    assert (table.find_broker("a:1"), table.find_broker("x:1")) == ("a", None)


def test_a_topic_that_nobody_uses_expires():
    """Whether it exists or not; a send begins its time anew."""
    table = RouteTable()
    table.put("idle", a_route("a"), 0)
    table.put("busy", a_route("a"), 0)
    table.put_missing("nowhere", 0)
    for topic in ("idle", "busy", "nowhere"):
        table.use(topic, 100.0)

    assert table.expire(399.9, 300) == []
    assert table.use("busy", 399.9) is table.find("busy")
    assert table.expire(400.0, 300) == ["idle", "nowhere"]

    assert not table.has_topic("idle")
    assert not table.is_missing("nowhere")
    assert table.due(60_000) == ["busy"]


def test_the_time_of_a_topic_that_was_never_used_begins_when_it_is_first_looked_at():
    """It was looked up for somebody, who is about to use it."""
    table = RouteTable()
    table.put("t", a_route("a"), 0)

    assert table.expire(1000.0, 300) == []
    assert table.expire(1300.0, 300) == ["t"]


def test_a_topic_that_is_kept_does_not_expire():
    """However long nobody uses it."""
    table = RouteTable()
    table.put("t", a_route("a"), 0)
    table.use("t", 0.0)
    table.keep("t")
    table.keep("never")

    assert table.expire(10_000.0, 300) == []


def test_a_topic_is_missing_until_it_is_found():
    """One that was known before is not: brokers may still take what they took a moment ago."""
    table = RouteTable()
    table.put("known", a_route("a"), 0)
    table.put_missing("known", 1)
    table.put_missing("new", 1)
    assert (table.is_missing("known"), table.is_missing("new"), table.is_missing("never")) == (False, True, False)

    table.put("new", a_route("a"), 2)
    assert not table.is_missing("new")


def test_a_topic_is_deleted_until_it_is_found():
    """What was known of it is dropped with it, and leaders of its next life may be of an older generation."""
    table = RouteTable()
    table.put("t", a_route("a"), 0)
    table.put_missing("t", 1, is_deleted=True)
    assert (table.is_unlisted("t"), table.is_deleted("t"), table.is_missing("t")) == (True, True, False)

    assert table.drop("t") == []
    assert (table.find("t"), table.is_missing("t")) == (None, True)

    table.put("t", a_route("b"), 2)
    assert (table.is_unlisted("t"), table.is_deleted("t"), table.is_missing("t")) == (False, False, False)
    assert [broker.broker_name for broker in table.find("t").extended_route.broker_datas] == ["b"]
    assert (table.is_unlisted("never"), table.is_deleted("never"), table.drop("never")) == (False, False, [])


def test_a_borrowed_route_can_be_dropped():
    """When no broker creates topics any more."""
    table = RouteTable()
    table.put_missing("t", 0)
    table.put_template("t", a_route("a"), 0, queues_max=4)
    assert not table.is_missing("t")
    table.put_missing("t", 1)
    assert not table.is_missing("t")

    table.drop("t")

    assert (table.find("t"), table.is_missing("t"), table.drop("never")) == (None, True, [])


def test_too_many_missing_topics_are_forgotten():
    """The oldest first, and wholly: they are not polled either."""
    table = RouteTable(missing_max=2)

    assert [table.put_missing(topic, 0) for topic in ("a", "b", "c")] == [[], [], ["a"]]
    assert table.due(30_000) == ["b", "c"]


def test_everything_can_be_in_doubt():
    """Nobody tells of changes any more."""
    table = RouteTable()
    table.put("t", a_route("a"), 0)
    table.put_missing("nowhere", 0)

    table.mark_all_stale()

    assert table.due(0) == ["t", "nowhere"]


# Units.

OPEN = "__syslo__west:2"


def a_unit_route(*scopes: str, order: str | None = None) -> Route:
    """Return a route of unit west with a broker of each scope, whose cluster has that name."""
    records = [a_record(f"in-{scope}", {0: 1, 1: 1}, total=2, scope=scope) for scope in scopes]
    route = a_static_route(*records)
    datas = [msgspec.structs.replace(data, cluster=data.broker_name.removeprefix("in-")) for data in route.broker_datas]
    return msgspec.structs.replace(route, broker_datas=datas, order_topic_conf=order)


def scopes_of(queues: tuple[MessageQueue, ...]) -> set[str]:
    return {queue.broker_name.removeprefix("__syslo__") for queue in queues}


def test_what_another_unit_has_is_read_while_it_is_open_and_never_written():
    """When it is closed its queues are gone at once, as it did not crash; its brokers when the queues are given up."""
    table = RouteTable(unit="west")
    table.put("t", a_unit_route("west"), 0)
    assert table.put("t", a_unit_route("east", "west", order=OPEN), 1)

    route = table.find("t")
    assert route is not None
    assert scopes_of(route.readable) == {"east", "west"}
    assert scopes_of(route.publishable) == scopes_of(route.sendable) == {"west"}

    assert table.put("t", a_unit_route("west"), 2)

    route = table.find("t")
    assert route is not None
    assert scopes_of(route.readable) == scopes_of(route.publishable) == scopes_of(route.sendable) == {"west"}
    assert route.address_of(MessageQueue("t", "__syslo__east", 0)) == "in-east:1"
    assert table.due(3_002) == ["t"]
    assert table.put("t", a_unit_route("west"), 3_002)
    route = table.find("t")
    assert route is not None
    assert route.address_of(MessageQueue("t", "__syslo__east", 0)) is None
    assert table.broker_addresses(masters_only=True) == ["in-west:1"]


def test_brokers_of_the_unit_and_of_global_topics_are_remembered_as_ever():
    """They may have crashed."""
    table = RouteTable(unit="west")
    for topic in ("west", "__global__"):
        table.put(topic, a_unit_route(topic), 0)
        table.put(topic, msgspec.structs.replace(a_unit_route(topic), broker_datas=[]), 1)

    assert table.broker_addresses(masters_only=True) == ["in-west:1", "in-__global__:1"]


def test_queues_of_a_normal_topic_of_another_unit_are_forgotten_at_once():
    """The same without mappings."""
    table = RouteTable(unit="c")
    foreign = BrokerData(cluster="other", broker_name="x", broker_addrs={0: "x:1"})
    both = a_route("a", "x")
    table.put("t", msgspec.structs.replace(both, broker_datas=[both.broker_datas[0], foreign]), 0)

    table.put("t", a_route("a"), 1)

    route = table.find("t")
    assert route is not None
    assert {queue.broker_name for queue in route.readable} == {"a"}


def test_which_units_are_written_to_is_never_put_together_from_two_name_servers():
    """One has heard that east is open, the other has not: together they would let producers write there."""
    aware, late = a_unit_route("east", "west", order=OPEN), a_unit_route("west")
    late = msgspec.structs.replace(
        late, mappings={name: msgspec.structs.replace(record, epoch=9) for name, record in late.mappings.items()}
    )

    for routes in ([aware, late], [late, aware]):
        table = RouteTable(unit="west")
        table.put_all("t", routes, 0, is_complete=True)
        route = table.find("t")
        assert route is not None
        assert scopes_of(route.publishable) == {"west"}
