"""What a client of a unit is told of: the topics of its unit, of every kind, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.support.client_stories import Inbox, new_name, poll_until
from tests.support.cluster.process_presets import units_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import JAVA_5, KINDS, wait_until
from tests.support.java_heartbeat import heartbeat
from tests.support.watchers import connect_peer

from holdfast import Message, Producer, PushConsumer

_HEARTBEAT = 34
_ALL_TOPICS = 206


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """A broker in each of two units."""
    with units_cluster(tmp_path_factory.mktemp("filter"), {"e1": "east", "w1": "west"}) as fleet:
        yield fleet


def make_normal(fleet: ProcessCluster, topic: str, *units: str) -> None:
    """Make a normal topic in units."""
    for unit in units:
        fleet.run("topic", "create", topic, "--queues", "4", "--cluster", unit)


NAMES = {
    "normal": "{}",
    "retry": "%RETRY%{}",
    "dead letters": "%DLQ%{}",
    "of a namespace": "shop%{}",
    "retry of a namespace": "%RETRY%shop%{}",
    "dead letters of a namespace": "%DLQ%shop%{}",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_topics_of_every_kind_are_told_by_unit(fleet: ProcessCluster, name: str, kind: str):
    """What both units have is told to each as far as it is theirs; to others as if it were not there."""
    topic = NAMES[name].format(new_name("name"))
    lonely = NAMES[name].format(new_name("name"))
    for broker in ("e1", "w1"):
        create_raw(fleet, broker, topic)
    create_raw(fleet, "e1", lonely)
    how = KINDS[kind]

    assert fleet.route(topic, "east", kind=how).read_at == fleet.route(topic, "east", kind=how).brokers == {"e1"}
    assert fleet.route(topic, "west", kind=how).read_at == {"w1"}
    assert fleet.route(topic, kind=how).read_at == {"e1", "w1"}
    assert fleet.route(lonely, "east", kind=how).written_at == {"e1"}
    assert fleet.route(lonely, "west", kind=how).code == 17
    assert fleet.route(lonely, "nowhere", kind=how).code == 17


def create_raw(fleet: ProcessCluster, broker: str, topic: str) -> None:
    """Create a topic at one broker as Java's tools do; the name server knows of it then."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    assert fleet.request(broker, 17, fields).code == 0
    wait_until(lambda: broker in fleet.route(topic).brokers)


@pytest.mark.parametrize("kind", KINDS)
def test_static_topics_of_a_namespace_are_told_by_unit(fleet: ProcessCluster, kind: str):
    """A namespace is a prefix of names: two units may have the same ones."""
    topic = "shop%" + new_name("orders")
    for unit in ("east", "west"):
        fleet.run("topic", "create", topic, "--logical-queues", str(len(unit)), "--scope", unit)
        told = fleet.route(topic, unit, kind=KINDS[kind])
        assert told.writes == {(f"__syslo__{unit}", number) for number in range(len(unit))}


@pytest.mark.parametrize("kind", KINDS)
def test_the_template_of_new_topics_stays_in_its_unit(fleet: ProcessCluster, kind: str):
    """Nobody has a topic created in another unit because it is the only one where that is allowed."""
    assert fleet.route("TBW102", "east", kind=KINDS[kind]).brokers == {"e1"}
    assert fleet.route("TBW102", "west", kind=KINDS[kind]).brokers == {"w1"}
    assert fleet.route("TBW102", "nowhere", kind=KINDS[kind]).code == 17


@pytest.mark.parametrize("kind", KINDS)
def test_a_global_topic_belongs_to_every_unit_as_a_whole(fleet: ProcessCluster, kind: str):
    """Also to one that has no broker."""
    topic = new_name("topic")
    fleet.run("topic", "create", topic, "--logical-queues", "4", "--scope", "global")

    for unit in ("", "east", "west", "nowhere"):
        told = fleet.route(topic, unit, kind=KINDS[kind])
        assert told.writes == told.reads == {("__syslo__global__", number) for number in range(4)}


def test_a_zone_is_no_unit(fleet: ProcessCluster):
    """These brokers registered no zone: a client in zone mode sees none of them, whatever their clusters are called."""
    topic = new_name("topic")
    make_normal(fleet, topic, "east", "west")
    zone = {"__ZONE_NAME": "west", "__ZONE_MODE": "true"}

    assert fleet.route(topic, kind={**JAVA_5, "extFields": zone}).brokers == set()
    assert fleet.route(topic, kind={**JAVA_5, "extFields": {**zone, "__ZONE_MODE": "false"}}).brokers == {"e1", "w1"}


def test_a_static_topic_in_one_unit_does_not_hide_a_normal_one_in_another(fleet: ProcessCluster):
    """Each is seen as the unit has it."""
    topic = new_name("topic")
    fleet.run("topic", "create", topic, "--logical-queues", "4", "--scope", "east")
    fleet.run("topic", "create", topic, "--queues", "3", "--cluster", "west", "--unit", "west")

    assert fleet.route(topic, "east").writes == {("__syslo__east", number) for number in range(4)}
    assert fleet.route(topic, "west").writes == {("w1", number) for number in range(3)}


async def test_a_watching_client_is_told_of_changes_that_it_sees_alone(fleet: ProcessCluster):
    """What changes in another unit is no news."""
    topic, fence = new_name("topic"), new_name("fence")
    await asyncio.to_thread(make_normal, fleet, topic, "east", "west")
    await asyncio.to_thread(make_normal, fleet, fence, "east", "west")

    async with connect_peer(fleet.name_servers[0]) as east, connect_peer(fleet.name_servers[0]) as west:
        for peer, unit in ((east, "east"), (west, "west")):
            for name in (topic, fence):
                answer = await peer.request_route(name, watch="true", scope=unit)
                assert answer.fields["watching"] == "true"
        await asyncio.to_thread(fleet.run, "topic", "update", topic, "--queues", "9", "--unit", "east")
        assert topic in await east.next_notice()
        await asyncio.to_thread(fleet.run, "topic", "update", fence, "--queues", "9")
        assert await west.notices_until(fence) == {fence}


def test_commands_see_what_their_unit_sees(fleet: ProcessCluster):
    """Lists too; by option, by environment."""
    topic = new_name("topic")
    make_normal(fleet, topic, "east")

    assert topic in fleet.attempt("topic", "list", "--unit", "east").out
    assert topic not in fleet.attempt("topic", "list", "--unit", "west").out
    assert topic not in fleet.attempt("topic", "list", unit="west").out
    assert topic in fleet.attempt("topic", "list").out
    assert topic in fleet.run_refused("topic", "describe", topic, "--unit", "west")


def test_a_topic_that_one_unit_deletes_stays_with_the_others(fleet: ProcessCluster):
    """Clients of the west are told of theirs all the time."""
    topic = new_name("topic")
    make_normal(fleet, topic, "east", "west")

    fleet.run("topic", "delete", topic, "--unit", "east", "--yes")

    for kind in KINDS.values():
        assert fleet.route(topic, "west", kind=kind).brokers == {"w1"}
        assert fleet.route(topic, "east", kind=kind).code == 17


def test_a_cluster_makes_a_topic_that_another_has_already(fleet: ProcessCluster):
    """Once: what is there is not made again."""
    topic = new_name("topic")
    make_normal(fleet, topic, "east", "west")

    assert "exists already" in fleet.run_refused("topic", "create", topic, "--queues", "2", "--cluster", "west")
    assert fleet.run("topic", "create", topic, "--queues", "2", "--cluster", "west", "--exist-ok")["created"] is False


def test_a_unit_that_is_not_there_is_said_to_be_none(fleet: ProcessCluster):
    """A word that was mistyped does not look like an empty cluster."""
    topic = new_name("topic")
    make_normal(fleet, topic, "east", "west")

    said = fleet.run_refused("topic", "describe", topic, "--unit", "easst")

    assert "no unit 'easst'; did you mean 'east'?" in said


async def test_the_members_of_a_group_are_a_crowd_by_unit_and_one_on_a_global_topic(fleet: ProcessCluster):
    """Each crowd shares out the queues of its unit, with offsets of its own; a global topic is shared by all."""
    topic, everywhere, group = new_name("topic"), new_name("global"), new_name("group")
    for unit in ("east", "west"):
        await asyncio.to_thread(fleet.run, "topic", "create", topic, "--logical-queues", "4", "--scope", unit)
    await asyncio.to_thread(fleet.run, "topic", "create", everywhere, "--logical-queues", "4", "--scope", "global")

    def queues(consumer: PushConsumer, name: str) -> set[tuple[str, int]]:
        return {(queue.broker_name, queue.queue_id) for queue in consumer.assignment if queue.topic == name}

    def consumer(unit: str, name: str, inbox: Inbox) -> PushConsumer:
        made = PushConsumer(fleet.namesrv, f"{group}-{name}", listener=inbox, unit=unit, start="earliest")
        made.subscribe(name)
        return made

    east, west, both = Inbox(), Inbox(), Inbox()
    async with (
        consumer("east", topic, east) as first,
        consumer("west", topic, west) as second,
        consumer("east", everywhere, both) as third,
        consumer("west", everywhere, both) as fourth,
        Producer(fleet.namesrv, unit="west") as producer,
    ):
        await poll_until(lambda: queues(first, topic) == {("__syslo__east", number) for number in range(4)})
        await poll_until(lambda: queues(second, topic) == {("__syslo__west", number) for number in range(4)})
        await poll_until(lambda: len(queues(third, everywhere)) == len(queues(fourth, everywhere)) == 2)
        assert not queues(third, everywhere) & queues(fourth, everywhere)
        await producer.send_many([Message(topic, b"%d" % number) for number in range(8)])
        await west.wait_for(8)
        assert not east.messages


def test_the_retry_topic_that_a_heartbeat_makes_is_of_its_unit(fleet: ProcessCluster):
    """A group that is only in the west has nothing to retry in the east."""
    group, topic = new_name("group"), new_name("topic")
    make_normal(fleet, topic, "east", "west")

    assert fleet.request("w1", _HEARTBEAT, {}, heartbeat(group, topic)).code == 0

    wait_until(lambda: fleet.route(f"%RETRY%{group}", "west").brokers == {"w1"})
    assert fleet.route(f"%RETRY%{group}", "east").code == 17
