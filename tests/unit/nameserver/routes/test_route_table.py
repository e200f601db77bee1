"""The route table: what changes, and what does not."""

import json

from tests.support.cluster.name_server_machine import a_topic, pop_changes
from tests.support.static_reports import a_leader_report, a_report, a_segment

from holdfast.machine.turn import Turn
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.wire.cluster.route import ClusterInfo, DepartedBroker
from holdfast.wire.frames import java_json


def a_table(*names: str) -> RouteTable:
    table = RouteTable(Turn(), RouteChanges())
    for number, name in enumerate(names):
        table.add_address(name, 0, f"10.0.0.{number}:10911", cluster="C1", zone=None, is_acting_master_allowed=False)
    return table


def test_only_topics_that_differ_are_changes():
    """Registering the same again changes nothing; one other number changes one topic."""
    table = a_table("a")
    table.update_topics("a", [a_topic("orders"), a_topic("bills")])
    assert pop_changes(table.changes) == {"orders", "bills"}

    table.update_topics("a", [a_topic("orders"), a_topic("bills")])
    assert pop_changes(table.changes) == set()

    table.update_topics("a", [a_topic("orders"), a_topic("bills", 5)])
    assert pop_changes(table.changes) == {"bills"}


def test_seating_the_same_address_again_changes_nothing():
    """A new address changes every topic of that broker, and no other."""
    table = a_table("a", "b")
    table.update_topics("a", [a_topic("orders")])
    table.update_topics("b", [a_topic("bills")])
    pop_changes(table.changes)

    table.add_address("a", 0, "10.0.0.0:10911", cluster="C1", zone=None, is_acting_master_allowed=False)
    assert pop_changes(table.changes) == set()

    table.add_address("a", 1, "10.0.0.9:10911", cluster="C1", zone=None, is_acting_master_allowed=False)
    assert pop_changes(table.changes) == {"orders"}


def test_topics_of_one_shape_share_one_value():
    """Ten thousand topics of four queues cost one description."""
    table = a_table("a")

    table.update_topics("a", [a_topic(f"topic-{number}") for number in range(100)])

    assert len({id(hosts["a"]) for hosts in table.topics.values()}) == 1


def test_a_broker_that_keeps_inventing_shapes_does_not_fill_the_memory():
    """Sharing starts over, routes stay right."""
    table = a_table("a")

    for queues in range(1, 5000):
        table.update_topics("a", [a_topic("orders", queues)])

    assert len(table.brokers["a"].shapes) <= 1024
    body = table.find_body("orders")
    assert body is not None
    assert json.loads(body)["queueDatas"][0]["writeQueueNums"] == 4999


def test_a_broker_name_without_addresses_leaves_with_its_topics():
    """Those that another broker has too stay."""
    table = a_table("a", "b")
    table.update_topics("a", [a_topic("orders"), a_topic("bills")])
    table.update_topics("b", [a_topic("orders")])
    pop_changes(table.changes)

    table.remove_address("a", "10.0.0.0:10911")

    assert set(table.topics) == {"orders"}
    assert set(table.topics["orders"]) == {"b"}
    assert pop_changes(table.changes) == {"orders", "bills"}


def test_a_broker_that_left_is_remembered_with_its_queues_until_it_is_back():
    """Without logical queues and deleted topics; not one that an operator removed."""
    table = a_table("a", "b", "c")
    table.update_mappings("a", {"orders": a_leader_report("a", 0)})
    table.update_topics("a", [a_topic("mails", 3), a_topic("bills", 5), a_topic("gone"), a_topic("orders")])
    for number, name in enumerate("abc"):
        if name != "b":
            table.remove_address(name, f"10.0.0.{number}:10911", is_down=name != "c")
    assert table.find_departed(["gone"])["a"].read_queues
    table.delete_topic("gone")

    found = table.find_departed(["mails", "gone", "orders", "never"])
    assert found == {"a": DepartedBroker("C1", {"mails": 3})}
    assert java_json.decode(table.cluster_body(departed=found), ClusterInfo).left_brokers == found
    assert b"leftBrokers" not in table.cluster_body()

    table.add_address("a", 0, "10.0.0.0:10911", cluster="C1", zone=None, is_acting_master_allowed=False)
    assert table.find_departed(["mails"]) == {}

    table.remove_address("a", "10.0.0.0:10911")
    table.forget_departed("a")
    assert table.find_departed(["mails"]) == {}


def test_unseating_a_stranger_changes_nothing():
    """Neither an unknown name nor an unknown address."""
    table = a_table("a")
    table.update_topics("a", [a_topic("orders")])
    pop_changes(table.changes)

    table.remove_address("x", "10.0.0.0:10911")
    table.remove_address("a", "10.0.0.8:10911")

    assert pop_changes(table.changes) == set()


def test_a_static_topics_part_outlives_its_broker():
    """A queue whose leader is away still has its place."""
    table = a_table("a", "b")
    for number, name in enumerate("ab"):
        table.update_mappings(name, {"orders": a_leader_report(name, number)})
        table.update_topics(name, [a_topic("orders")])
    pop_changes(table.changes)

    table.remove_address("a", "10.0.0.0:10911")

    assert set(table.static.topics["orders"].reports) == {"a", "b"}
    assert set(table.topics["orders"]) == {"b"}
    assert pop_changes(table.changes) == {"orders"}


def test_whatever_changes_a_broker_changes_the_static_topics_it_has_a_part_in():
    """Also those of which it holds nothing but old records, and hosts no queue."""
    table = a_table("a", "b")
    homes = [a_segment("b", 0, end=7), a_segment("a", 0, generation=1, first=7)]
    table.update_mappings("a", {"orders": a_report("a", {0: homes}, total=1)})
    table.update_topics("a", [a_topic("orders")])
    pop_changes(table.changes)

    table.add_address("b", 0, "10.0.0.9:10911", cluster="C1", zone=None, is_acting_master_allowed=False)
    assert pop_changes(table.changes) == {"orders"}
    table.set_wiped("b", is_wiped=True)
    assert pop_changes(table.changes) == {"orders"}
    table.remove_address("b", "10.0.0.9:10911")
    assert pop_changes(table.changes) == {"orders"}


def test_refused_parts_of_static_topics_are_returned_with_the_reason():
    """Whatever a peer sends in their place; and nothing changes."""
    table = a_table("a")

    refused = table.update_mappings("a", {"orders": 7, "bills": {"bname": 7}, "mails": {}})

    assert refused.keys() == {"orders", "bills", "mails"}
    assert pop_changes(table.changes) == set()


def test_a_static_topic_is_no_normal_one():
    """It has no route of that kind, whatever queues are hosted; while it is being converted it has its old one."""
    table = a_table("a", "b", "c")
    table.update_mappings("a", {"orders": a_leader_report("a", 0, 1)})
    for name in "abc":
        table.update_topics(name, [a_topic("orders"), a_topic("bills")])
    table.update_mappings("b", {"bills": a_leader_report("b", 0) | {"topic": "bills"}})
    table.remove_address("c", "10.0.0.2:10911")
    table.add_address("d", 0, "10.0.0.3:10911", cluster="C1", zone=None, is_acting_master_allowed=False)
    table.update_topics("d", [a_topic("bills")])

    assert table.find_body("orders") is None
    body = table.find_body("bills")
    assert body is not None
    assert [queue["brokerName"] for queue in json.loads(body)["queueDatas"]] == ["a", "b"]


def test_zone_and_filter_servers_are_passed_on():
    """They are legacies; clients that use them find them."""
    table = RouteTable(Turn(), RouteChanges())
    table.add_address("a", 0, "10.0.0.1:10911", cluster="C1", zone="z1", is_acting_master_allowed=True)
    table.update_topics("a", [a_topic("orders")])
    table.set_filter_servers("a", "10.0.0.1:10911", ["10.0.0.1:5000"])

    body = table.find_body("orders")
    assert body is not None
    route = json.loads(body)
    assert route["filterServerTable"] == {"10.0.0.1:10911": ["10.0.0.1:5000"]}
    assert route["brokerDatas"][0]["zoneName"] == "z1"
    assert route["brokerDatas"][0]["enableActingMaster"] is True

    pop_changes(table.changes)
    table.set_filter_servers("a", "10.0.0.1:10911", [])
    assert pop_changes(table.changes) == {"orders"}
    body = table.find_body("orders")
    assert body is not None
    assert json.loads(body)["filterServerTable"] == {}


def test_names_are_escaped():
    """A broker cannot break out of its place in the route."""
    table = RouteTable(Turn(), RouteChanges())
    name = 'a":{"x\\'
    table.add_address(name, 0, 'h"ost:1', cluster='c"1', zone='z"', is_acting_master_allowed=False)
    table.update_topics(name, [a_topic("orders")])

    body = table.find_body("orders", order_topic_conf='a"b')

    assert body is not None
    route = json.loads(body)
    assert route["brokerDatas"][0]["brokerName"] == name
    assert route["orderTopicConf"] == 'a"b'
    assert json.loads(table.cluster_body().replace(b"{0:", b'{"0":'))["clusterAddrTable"] == {'c"1': [name]}


def test_a_replica_does_not_change_where_its_master_belongs():
    """It may be at another site, and say so by mistake: the master's queues stay in the master's cluster."""
    table = RouteTable(Turn(), RouteChanges())
    table.add_address("a", 0, "10.0.0.0:10911", cluster="C1", zone=None, is_acting_master_allowed=False)

    table.add_address("a", 1, "10.0.0.9:10911", cluster="C2", zone=None, is_acting_master_allowed=False)
    assert table.brokers["a"].cluster == "C1"
    table.remove_address("a", "10.0.0.0:10911")
    table.add_address("a", 1, "10.0.0.9:10911", cluster="C2", zone=None, is_acting_master_allowed=False)

    assert table.brokers["a"].cluster == "C1"
