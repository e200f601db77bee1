"""Where a static topic is fixed: in one cluster or in none; what is refused beside it, and what never leaves it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.support.client_stories import new_name
from tests.support.cluster.process_presets import units_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import KINDS, java_topic_fields, wait_until

_CREATE_STATIC = 513


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Two brokers in the east, two in the west, and one in a cluster that cannot be a scope."""
    brokers = {"e1": "east", "e2": "east", "w1": "west", "w2": "west", "odd": "north_pole"}
    with units_cluster(tmp_path_factory.mktemp("scopes"), brokers) as fleet:
        yield fleet


def create(fleet: ProcessCluster, scope: str, queues: int = 4, *more: str, topic: str = "") -> str:
    """Create a static topic; return its name."""
    topic = topic or new_name("topic")
    fleet.run("topic", "create", topic, "--logical-queues", str(queues), "--scope", scope, *more)
    return topic


def queues_of(scope: str, count: int) -> set[tuple[str, int]]:
    return {(f"__syslo__{scope}", number) for number in range(count)}


@pytest.mark.parametrize("kind", KINDS)
def test_two_clusters_have_a_topic_of_one_name_each(fleet: ProcessCluster, kind: str):
    """Independent: each has its own number of queues, its own broker that does not exist, and its own offsets."""
    topic = create(fleet, "east", 4)
    create(fleet, "west", 6, topic=topic)

    for unit, count in (("east", 4), ("west", 6)):
        told = fleet.route(topic, unit, kind=KINDS[kind])
        assert told.writes == told.reads == queues_of(unit, count)
        assert {leader[0] for leader in fleet.leaders(topic, unit).values()} == {unit[0]}

    fleet.run("send", topic, "only there", "--count", "8", "--unit", "west")

    found = [fleet.run("tail", topic, "--unit", unit, "--from", "earliest")["messages"] for unit in ("east", "west")]
    assert [len(messages) for messages in found] == [0, 8]


def test_a_name_that_is_taken_in_a_cluster_is_refused_there(fleet: ProcessCluster):
    """Once in each."""
    topic = create(fleet, "east")

    assert "already" in fleet.run_refused("topic", "create", topic, "--logical-queues", "4", "--scope", "east")


def test_a_global_topic_is_refused_where_a_cluster_has_one_of_the_name(fleet: ProcessCluster):
    """With the scope of the other."""
    topic = create(fleet, "east")

    said = fleet.run_refused("topic", "create", topic, "--logical-queues", "4", "--scope", "global")

    assert "east" in said
    assert fleet.mapping(topic)["scope"] == "east"


def test_a_clusters_topic_is_refused_where_there_is_a_global_one_of_the_name(fleet: ProcessCluster):
    """The reverse; and a second global one, too."""
    topic = create(fleet, "global")

    for scope in ("east", "global"):
        said = fleet.run_refused("topic", "create", topic, "--logical-queues", "4", "--scope", scope)
        assert ("a static topic of global already" if scope == "east" else "exists already") in said
    assert fleet.route(topic, "east").writes == fleet.route(topic).writes == queues_of("global__", 4)


@pytest.mark.parametrize("scope", ["east", "global"])
def test_a_normal_topic_of_a_static_ones_name_is_refused(fleet: ProcessCluster, scope: str):
    """By the command."""
    topic = create(fleet, scope)

    said = fleet.run_refused("topic", "create", topic, "--queues", "2", "--unit", "east")

    assert topic in said


def detail(topic: str, broker: str, scope: str, queues: int) -> bytes:
    home = {
        "bname": broker,
        "gen": 0,
        "logicOffset": 0,
        "startOffset": 0,
        "endOffset": -1,
        "timeOfStart": -1,
        "timeOfEnd": -1,
    }
    return json.dumps(
        {
            "bname": broker,
            "currIdMap": {},
            "dirty": False,
            "epoch": 1_800_000_000_000,
            "hostedQueues": {str(number): [{**home, "queueId": number}] for number in range(queues)},
            "scope": scope,
            "topic": topic,
            "totalQueues": queues,
        }
    ).encode()


def put_record(fleet: ProcessCluster, broker: str, topic: str, scope: str, queues: int, bname: str = "") -> int:
    """Give a broker a record as Java's tools do, behind the back of our command; return the code of the answer."""
    fields = java_topic_fields(topic, queues) | {"force": "false"}
    body = detail(topic, bname or broker, scope, queues)
    return fleet.request(broker, _CREATE_STATIC, fields, body).code


@pytest.mark.parametrize(("broker", "scope", "bname"), [("w1", "east", "w1"), ("w1", "west", "e1")])
def test_a_record_of_another_broker_or_cluster_is_refused_by_the_broker(
    fleet: ProcessCluster, broker: str, scope: str, bname: str
):
    """Whoever brings it."""
    topic = new_name("topic")

    assert put_record(fleet, broker, topic, scope, 2, bname) != 0
    assert fleet.route(topic).code == 17


@pytest.mark.parametrize(("first", "second"), [("east", "__global__"), ("__global__", "east")])
def test_the_name_server_goes_on_serving_the_one_it_knew_first(fleet: ProcessCluster, first: str, second: str):
    """Where the other was made behind the back of the command, at a broker that knows nothing of the first."""
    topic = create(fleet, first.strip("_"), 2, "--brokers", "e1")
    before = fleet.route(topic).writes

    put_record(fleet, "e2", topic, second, 7)

    for kind in KINDS.values():
        assert fleet.route(topic, kind=kind).writes == fleet.route(topic, "east", kind=kind).writes == before
    assert "north" not in fleet.attempt("queue", "list", topic).out


@pytest.mark.parametrize("scope", ["north_pole", "nowhere", "__global__", "east_west", ""])
def test_what_cannot_be_a_scope_is_refused_with_the_reason(fleet: ProcessCluster, scope: str):
    """A cluster with `_` in its name, and one that is not there."""
    topic = new_name("topic")

    said = fleet.attempt("topic", "create", topic, "--logical-queues", "2", "--scope", scope)

    if scope == "__global__":
        assert said.status == 0
    else:
        assert said.status in {1, 2}
        assert scope in said.err
        assert "_" in said.err or "cluster" in said.err
        assert fleet.route(topic).code == 17


def test_a_broker_of_another_cluster_is_no_place_for_a_topic(fleet: ProcessCluster):
    """Not when it is made, not when it grows, not when it moves."""
    topic = create(fleet, "east", 2)
    new = new_name("topic")

    for words in (
        ("topic", "create", new, "--logical-queues", "2", "--scope", "east", "--brokers", "e1,w1"),
        ("queue", "migrate", topic, "0", "--to", "w1"),
        ("queue", "migrate", topic, "0", "--to", "w1", "--force", "--even-if-alive", "--yes"),
        ("topic", "move", topic, "--to", "e1,w1"),
    ):
        said = fleet.run_refused(*words)
        assert "w1" in said, words
        assert "east" in said or "e1, e2" in said, words
    assert fleet.route(new).code == 17
    assert set(fleet.leaders(topic).values()) <= {"e1", "e2"}


def test_draining_growing_spreading_and_evening_out_stay_inside(fleet: ProcessCluster):
    """All queues are with brokers of the cluster; of a global topic they may be anywhere."""
    topic = create(fleet, "east", 4)
    everywhere = create(fleet, "global", 5)

    fleet.run("broker", "drain", "e1")

    assert set(fleet.leaders(topic).values()) == {"e2"}
    assert "e1" not in fleet.leaders(everywhere).values()
    fleet.run("topic", "grow", topic, "--logical-queues", "6")
    assert set(fleet.leaders(topic).values()) == {"e2"}
    fleet.run("broker", "spread", "w1")
    assert set(fleet.leaders(topic).values()) == {"e2"}
    fleet.run("broker", "spread", "e1")
    assert sorted(fleet.leaders(topic).values()) == ["e1"] * 3 + ["e2"] * 3
    fleet.run("topic", "move", topic, "--to", "e1")
    fleet.run("cluster", "rebalance")
    assert sorted(fleet.leaders(topic).values()) == ["e1"] * 3 + ["e2"] * 3


def test_the_last_broker_of_a_cluster_cannot_be_drained_of_its_topics(fleet: ProcessCluster):
    """Nothing moves abroad: the refusal names the cluster."""
    topic = create(fleet, "west", 3)
    fleet.run("broker", "drain", "w2")
    try:
        said = fleet.run_refused("broker", "drain", "w1")
        assert "west" in said
        assert set(fleet.leaders(topic).values()) == {"w1"}
    finally:
        fleet.run("broker", "spread", "w2")


def test_forced_moves_stay_inside_too(fleet: ProcessCluster):
    """Behind a dead broker its own cluster takes over, and nobody else."""
    topic = create(fleet, "west", 4)
    everywhere = create(fleet, "global", 5)
    fleet.kill("w2", until_gone=True)
    try:
        said = fleet.run_refused("queue", "migrate", topic, "0", "--to", "e1", "--force", "--yes", "--unit", "west")
        assert "west" in said
        fleet.run("broker", "evacuate", "w2", "--force", "--yes")
        assert set(fleet.leaders(topic).values()) == {"w1"}
        assert "w2" not in fleet.leaders(everywhere).values()
    finally:
        fleet.restart("w2")


def test_people_are_shown_the_names_of_the_proposal(fleet: ProcessCluster):
    """On the wire they are upstream's, which Java's clients work out by themselves."""
    topic = create(fleet, "east", 2)
    everywhere = create(fleet, "global", 2)

    for name, shown, wire in ((topic, "east", "__syslo__east"), (everywhere, "global", "__syslo__global__")):
        assert fleet.route(name).written_at == {wire}
        for verb in ("route", "describe"):
            out = fleet.attempt("topic", verb, name).out
            assert f"__logic__{shown}" in out, verb
            assert "__syslo__" not in out, verb
        sent = fleet.run("send", name, "hello")["messages"]
        assert {message["broker"] for message in sent} == {f"__logic__{shown}"}
        assert f"scope                {shown}\n" in fleet.attempt("queue", "list", name).out


def test_where_a_name_means_two_topics_commands_ask_for_the_unit(fleet: ProcessCluster):
    """With it they see what that unit sees, by an option or by the environment."""
    topic = create(fleet, "east", 2)
    create(fleet, "west", 3, topic=topic)

    for words in (
        ("topic", "describe", topic),
        ("queue", "list", topic),
        ("topic", "grow", topic, "--logical-queues", "9"),
        ("topic", "delete", topic, "--yes"),
        ("queue", "migrate", topic, "0", "--to", "e1"),
    ):
        said = fleet.run_refused(*words)
        assert "--unit" in said, words
        assert "east" in said, words
        assert "west" in said, words
    assert len(fleet.run("queue", "list", topic, unit="west")["mapping"]["queues"]) == 3
    fleet.run("topic", "delete", topic, "--yes", "--unit", "east")
    wait_until(lambda: fleet.route(topic, "east").code == 17)
    assert fleet.route(topic, "west").writes == queues_of("west", 3)


def test_a_scope_may_be_written_as_its_queues_are_shown(fleet: ProcessCluster):
    """What people are shown is accepted from them."""
    topic = create(fleet, "__logic__west", 2)

    assert fleet.route(topic).writes == queues_of("west", 2)


def test_a_scope_is_for_static_topics(fleet: ProcessCluster):
    """A normal one has `--cluster`; the error says so."""
    said = fleet.run_refused("topic", "create", new_name("topic"), "--queues", "2", "--scope", "east", status=2)

    assert "--logical-queues" in said


def test_a_topic_that_becomes_static_is_fixed_somewhere_as_well(fleet: ProcessCluster):
    """A name that has a meaning in one unit already is refused for all of them."""
    topic = create(fleet, "east", 2)

    fleet.run("topic", "create", topic, "--queues", "2", "--cluster", "west", "--unit", "west")
    said = fleet.attempt("topic", "make-static", topic, "--pause", "0", "--yes", "--unit", "west")

    assert said.status == 0, said.err
    assert fleet.mapping(topic, "west")["scope"] == "west"
    assert fleet.mapping(topic, "east")["scope"] == "east"
