"""The list of brokers, and what needs attention."""

from tests.support.cluster.scripted import Reply, ScriptedRequest
from tests.support.cluster.scripted_admin import scripted_admin
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.cluster import BrokerStatus
from holdfast.admin.combined.broker_list import BrokerList, find_broker_problems, list_brokers
from holdfast.wire.frames.codes import RequestCode


def a_cluster(runtime: dict[str, str]) -> ScriptedTopics:
    def reply(_: ScriptedRequest) -> Reply:
        pairs = ",".join(f'"{name}":"{text}"' for name, text in runtime.items())
        return f'{{"table":{{{pairs}}}}}'.encode()

    cluster = ScriptedTopics()
    return cluster.on(RequestCode.GET_BROKER_RUNTIME_INFO, reply)


def a_status(name: str, **values: object) -> BrokerStatus:
    return BrokerStatus(name, "c", 0, f"{name}:1", **values)  # type: ignore[arg-type]


async def test_a_broker_that_is_gone_is_listed_with_what_it_leads():
    """The name server has forgotten it; its segments remain."""
    cluster = a_cluster({"logicalQueuesLed": "1"})
    cluster.put_topic("orders", {0: "a", 1: "b", 2: "b"})
    cluster.forgotten.add("b")
    cluster.kill("b")

    found = await list_brokers(scripted_admin(cluster))

    assert [broker.name for broker in found.brokers] == ["a"]
    assert found.down == {"b": 2}


async def test_mappings_are_not_read_where_no_broker_has_logical_queues():
    """As with Java brokers, which would be asked topic by topic."""
    cluster = a_cluster({})

    assert (await list_brokers(scripted_admin(cluster))).down == {}
    assert cluster.requests_of(RequestCode.GET_MAPPINGS) == []


def test_what_needs_attention_is_said_with_the_remedy():
    """A silent broker, one that is down, a full disk, and a cluster that takes no new queues."""
    found = BrokerList(
        [a_status("a", fault="no answer", draining=True), a_status("b", disk_used_percent=91.0, draining=True)],
        {"c": 2, "d": 0},
    )

    assert find_broker_problems(found) == [
        "a does not answer: no answer",
        "c is down and leads 2 logical queues: start it, or `holdfast broker evacuate c --force`",
        "d is down and has older messages: they cannot be read until it returns",
        "the disk of b is 91 % full",
        "every broker is drained: none gets new logical queues (`holdfast broker spread BROKER`)",
    ]
    assert find_broker_problems(BrokerList([a_status("a", disk_used_percent=79.9)], {})) == []
