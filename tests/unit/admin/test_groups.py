"""Operations on consumer groups, against a scripted cluster."""

import msgspec
import pytest
from tests.support.cluster.scripted import ScriptedAccess, ScriptedRequest
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.cluster_access import NotFound
from holdfast.admin.groups import DownQueue, DownQueues, Groups
from holdfast.model.errors import ConfigError, RequestTimeout
from holdfast.model.group import GroupConfig
from holdfast.wire.cluster.route import DEPARTED_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode

TWO = {"broker-a": "a:1", "broker-b": "b:1"}


def a_cluster(*groups: str) -> ScriptedAccess:
    """Two brokers that both know *groups*; nobody is online."""
    table = {"subscriptionGroupTable": {name: {"groupName": name, "retryMaxTimes": 5} for name in groups}}
    reach = ScriptedAccess(brokers_by_name=TWO)
    reach.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda _: msgspec.json.encode(table))
    reach.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: ResponseCode.CONSUMER_NOT_ONLINE)
    reach.on(RequestCode.GET_CONSUME_STATS, lambda _: b'{"consumeTps":0.0,"offsetTable":{}}')
    return reach


CONNECTED = {
    "connectionSet": [{"clientId": "me@1", "clientAddr": "x:5", "language": "JAVA", "version": 479}],
    "subscriptionTable": {"orders": {"topic": "orders", "subString": "a || b"}, "%RETRY%g": {"topic": "%RETRY%g"}},
    "consumeType": "CONSUME_PASSIVELY",
    "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
}


async def test_a_member_that_is_connected_to_every_broker_counts_once():
    """Membership is of the group, not of a broker."""
    reach = a_cluster("g").on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: msgspec.json.encode(CONNECTED))

    (summary,) = await Groups(reach).summaries()

    assert (summary.name, summary.members, summary.kind, summary.model) == ("g", 1, "push", "clustering")
    assert summary.topics == ["orders"]


async def test_a_group_without_members_is_listed_all_the_same():
    """A broker that says that nobody is online is no failure."""
    (summary,) = await Groups(a_cluster("g")).summaries()

    assert (summary.members, summary.kind) == (0, None)


async def test_groups_of_the_system_are_listed_only_on_request():
    """A newcomer sees their own."""
    groups = Groups(a_cluster("g", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"))

    assert [group.name for group in await groups.summaries()] == ["g"]
    assert len(await groups.summaries(with_system=True)) == 3


async def test_lag_is_the_sum_over_all_brokers():
    """Every queue counts from its committed offset; one that never committed from the beginning."""

    def stats(asked: ScriptedRequest) -> bytes:
        broker = "broker-a" if asked.address == "a:1" else "broker-b"
        return (
            b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"%b","queueId":0,"topic":"orders"}:'
            b'{"brokerOffset":10,"consumerOffset":%d,"lastTimestamp":7}}}'
            % (broker.encode(), 4 if broker == "broker-a" else -1)
        )

    found = await Groups(a_cluster("g").on(RequestCode.GET_CONSUME_STATS, stats)).lag("g")

    assert (found.lag, found.consumes_per_second) == (16, 3.0)
    assert [(queue.broker, queue.committed, queue.lag) for queue in found.queues] == [
        ("broker-a", 4, 6),
        ("broker-b", None, 10),
    ]


async def test_an_unknown_group_is_told_with_the_way_out():
    """Not an empty answer: a misspelt group would look as if it had caught up."""
    with pytest.raises(NotFound, match="holdfast group list"):
        await Groups(a_cluster("g")).lag("gg")


async def test_a_group_is_put_on_every_broker():
    """Wherever its members look it is the same."""
    reach = a_cluster().on(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, lambda _: {})

    brokers = await Groups(reach).put(GroupConfig(group_name="g", retry_max_times=3))

    assert brokers == ["broker-a", "broker-b"]
    bodies = [asked.body for asked in reach.requests_of(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)]
    assert [msgspec.json.decode(body)["retryMaxTimes"] for body in bodies] == [3, 3]


async def test_a_name_that_cannot_be_is_refused():
    """Before anybody is asked."""
    with pytest.raises(ConfigError, match="group name"):
        await Groups(a_cluster()).put(GroupConfig(group_name="a b"))


async def test_deleting_takes_offsets_and_retry_topic_and_leaves_dead_letters():
    """What failed for good may still be looked at."""
    reach = a_cluster("g")
    reach.topics = {"%RETRY%g": {"broker-a": 1}, "%DLQ%g": {"broker-a": 1}}
    for code in (
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
    ):
        reach.on(code, lambda _: {})

    await Groups(reach).delete("g")

    assert [asked.fields for asked in reach.requests_of(RequestCode.DELETE_SUBSCRIPTIONGROUP)] == [
        {"groupName": "g", "cleanOffset": "true"}
    ] * 2
    assert {asked.fields["topic"] for asked in reach.requests_of(RequestCode.DELETE_TOPIC_IN_BROKER)} == {"%RETRY%g"}


async def test_describing_joins_settings_members_and_subscriptions():
    """One answer about the whole group."""
    reach = a_cluster("g").on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: msgspec.json.encode(CONNECTED))

    found = await Groups(reach).describe("g")

    assert (found.config.retry_max_times, found.brokers) == (5, ["broker-a", "broker-b"])
    assert [member.client_id for member in found.members] == ["me@1"]
    assert found.subscriptions["orders"] == "a || b"


async def test_offsets_without_messages_are_no_lag():
    """A broker tells how many of them lie before the group; older brokers, and Java's, tell of none."""
    place = '{\\"brokerName\\":\\"__syslo__global__\\",\\"queueId\\":%d,\\"topic\\":\\"t\\"}'
    rows = (
        f'"{place % 0}":{{"brokerOffset":1000,"consumerOffset":4,"gap":990}},'
        f'"{place % 1}":{{"brokerOffset":9,"consumerOffset":4}}'
    )
    reach = a_cluster("g").on(
        RequestCode.GET_CONSUME_STATS,
        lambda asked: f'{{"offsetTable":{{{rows if asked.address == "a:1" else ""}}}}}'.encode(),
    )

    lag = await Groups(reach).lag("g")

    assert [(queue.lag, queue.gap) for queue in lag.queues] == [(6, 990), (5, 0)]
    assert lag.lag == 11


async def test_queues_whose_leader_is_down_are_named_and_not_taken_for_consumed():
    """Nobody can tell how far the group is behind there."""
    cluster = ScriptedTopics(forgotten={"b"})
    cluster.put_topic("orders", {0: "a", 1: "b"})
    table = {"subscriptionGroupTable": {"g": {"groupName": "g"}}}
    cluster.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda _: msgspec.json.encode(table))
    cluster.on(RequestCode.GET_CONSUME_STATS, lambda _: b'{"consumeTps":0.0,"offsetTable":{}}')

    found = await Groups(cluster).lag("g", "orders")

    assert found.unknown == [DownQueue("orders", 1, "b")]


def stats_of(rows: dict[tuple[str, str], list[tuple[str, int, int]]], asked: ScriptedRequest) -> bytes:
    """Answer 208 from rows by address and topic: broker name, end, committed. Without a topic: those of the address."""
    found = {
        f'{{"brokerName":"{broker}","queueId":0,"topic":"{topic}"}}': {"brokerOffset": end, "consumerOffset": committed}
        for (address, topic), pairs in rows.items()
        for broker, end, committed in pairs
        if address == asked.address and asked.fields.get("topic") in ({topic} if committed < 0 else {None, topic})
    }
    return msgspec.json.encode({"consumeTps": 0.0, "offsetTable": found})


async def test_a_broker_where_nothing_was_committed_is_asked_for_the_topics_of_the_others():
    """And for those that a member subscribes to; what waits for a retry is told apart."""
    rows = {
        ("a:1", "orders"): [("broker-a", 10, 4)],
        ("b:1", "orders"): [("broker-b", 7, -1)],
        ("b:1", "bills"): [("broker-b", 5, -1)],
        ("a:1", "%RETRY%g"): [("broker-a", 3, 1)],
    }
    reach = a_cluster("g").on(RequestCode.GET_CONSUME_STATS, lambda asked: stats_of(rows, asked))
    member = CONNECTED | {"subscriptionTable": {"bills": {"topic": "bills"}}}
    reach.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: msgspec.json.encode(member))

    found = await Groups(reach).lag("g")
    described = await Groups(reach).describe("g")

    assert [(row.topic, row.broker, row.lag) for row in found.queues] == [
        ("bills", "broker-b", 5),
        ("orders", "broker-a", 6),
        ("orders", "broker-b", 7),
    ]
    assert (found.lag, found.retry_lag) == (described.lag, described.retry_lag) == (18, 2)
    assert [row.topic for row in found.retries] == ["%RETRY%g"]


async def test_a_queue_for_which_two_brokers_answer_counts_once():
    """As during a move, or when a leader returns that was replaced by force: the newer leader knows a higher end."""
    rows = {
        ("a:1", "orders"): [("__syslo__global__", 10, 4)],
        ("b:1", "orders"): [("__syslo__global__", 12, 4)],
    }
    reach = a_cluster("g").on(RequestCode.GET_CONSUME_STATS, lambda asked: stats_of(rows, asked))

    found = await Groups(reach).lag("g")

    assert [(row.end, row.lag) for row in found.queues] == [(12, 8)]


LEFT = {"broker-c": {"cluster": "c", "readQueues": {"orders": 4, "%RETRY%g": 1}}, "x": {"cluster": "elsewhere"}}


def with_left(reach: ScriptedAccess) -> ScriptedAccess:
    """Let the name server remember brokers that left, one of them in another cluster."""
    table = {name: {"cluster": "c", "brokerName": name, "brokerAddrs": {"0": TWO[name]}} for name in TWO}

    def tell(asked: ScriptedRequest) -> bytes:
        wanted = msgspec.json.decode(asked.body or b"[]", type=list[str])
        left = {
            name: each | {"readQueues": {t: n for t, n in each.get("readQueues", {}).items() if t in wanted}}
            for name, each in LEFT.items()
        }
        told = {"brokerAddrTable": table, "clusterAddrTable": {"c": list(TWO)}}
        return msgspec.json.encode(told | ({"leftBrokers": left} if DEPARTED_FIELD in asked.fields else {}))

    return reach.on(RequestCode.GET_BROKER_CLUSTER_INFO, tell)


async def test_queues_of_a_normal_topic_whose_broker_is_down_are_named():
    """They are no longer in the route: without a word the group looks as if it had caught up."""
    reach = with_left(a_cluster("g"))

    of_topic = await Groups(reach).lag("g", "orders")
    of_all = await Groups(reach).lag("g")

    assert of_topic.down == [DownQueues("orders", "broker-c", 4)]
    assert of_all.down == [DownQueues("%RETRY%g", "broker-c", 1)]
    assert of_topic.lag == 0


async def test_so_are_those_of_a_broker_that_does_not_answer_while_it_is_still_listed():
    """The name server notices later that it hangs."""
    reach = a_cluster("g")
    reach.topics = {"orders": {"broker-a": 2, "broker-b": 3}}
    known = reach.scripts[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]
    reach.on(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        lambda asked: RequestTimeout("hangs") if asked.address == "b:1" else known(asked),
    )

    assert (await Groups(reach).lag("g", "orders")).down == [DownQueues("orders", "broker-b", 3)]


async def test_a_group_that_only_a_broker_knows_that_is_down_is_not_taken_for_misspelt():
    """Its retry topic was there. Where nothing tells of the group, the error says who may know it."""
    reach = with_left(a_cluster("gg"))

    found = await Groups(reach).lag("g")

    assert (found.lag, found.down) == (None, [DownQueues("%RETRY%g", "broker-c", 1)])
    assert (await Groups(reach).lag("g", "orders")).down == [
        DownQueues("%RETRY%g", "broker-c", 1),
        DownQueues("orders", "broker-c", 4),
    ]
    with pytest.raises(NotFound, match="knows group 'other', and broker-c, x are down"):
        await Groups(reach).lag("other")
