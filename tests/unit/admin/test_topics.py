"""Operations on topics, against a scripted cluster."""

import msgspec
import pytest
from tests.support.cluster.scripted import ScriptedAccess, ScriptedRequest
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.topics import Topics, kind_of, permission_from, permission_text
from holdfast.model.errors import ConfigError, RouteNotFound
from holdfast.wire.frames.codes import RequestCode, ResponseCode

TWO = {"broker-a": "a:1", "broker-b": "b:1"}


def a_config(**changes: object) -> bytes:
    config = {"topicName": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": False}
    return msgspec.json.encode(config | changes)


def put_into(reach: ScriptedAccess) -> None:
    """Let the cluster carry out what it is told."""

    def put(asked: ScriptedRequest) -> dict[str, str]:
        name = next(name for name, address in reach.brokers_by_name.items() if address == asked.address)
        reach.topics.setdefault(asked.fields["topic"], {})[name] = int(asked.fields["writeQueueNums"])
        return {}

    reach.on(RequestCode.UPDATE_AND_CREATE_TOPIC, put)


async def test_only_the_users_topics_are_summed_up():
    """Topics of the system, of retries and of dead letters are left out unless asked for."""
    names = ["orders", "%RETRY%g", "%DLQ%g", "TBW102", "broker-a", "c", "c_REPLY_TOPIC", "rmq_sys_x", "RMQ_SYS_Y"]
    reach = ScriptedAccess(topics={name: {"broker-a": 2} for name in names})

    summaries = await Topics(reach).summaries()
    everything = await Topics(reach).summaries(with_system=True)

    assert [(topic.name, topic.queues, topic.permission) for topic in summaries] == [("orders", 2, "rw")]
    assert {topic.name: topic.kind for topic in everything} == {
        "orders": "normal",
        "%RETRY%g": "retry",
        "%DLQ%g": "dead-letter",
        **dict.fromkeys(("TBW102", "broker-a", "c", "c_REPLY_TOPIC", "rmq_sys_x", "RMQ_SYS_Y"), "system"),
    }


async def test_a_new_topic_is_planned_on_every_master():
    """Nothing is asked to change; the plan says what would be new where."""
    reach = ScriptedAccess(brokers_by_name=TWO).on(RequestCode.GET_TOPIC_CONFIG, lambda _: 17)

    changes = await Topics(reach).plan("t", queues=3)

    assert [(change.broker, change.before, change.after.write_queues) for change in changes] == [
        ("broker-a", None, 3),
        ("broker-b", None, 3),
    ]
    assert reach.requests_of(RequestCode.UPDATE_AND_CREATE_TOPIC) == []


async def test_a_change_keeps_what_is_not_named():
    """Only the permission changes; queues and order stay."""
    reach = ScriptedAccess().on(RequestCode.GET_TOPIC_CONFIG, lambda _: a_config(order=True))

    (change,) = await Topics(reach).plan("t", permission=4)

    assert (change.after.write_queues, change.after.permission, change.after.order) == (4, "r", True)


async def test_a_broker_of_before_5_tells_about_all_its_topics():
    """Where the question for one topic is unknown, the one for all of them is asked."""
    table = {"topicConfigTable": {"t": msgspec.json.decode(a_config(writeQueueNums=9))}}
    reach = ScriptedAccess().on(RequestCode.GET_ALL_TOPIC_CONFIG, lambda _: msgspec.json.encode(table))

    (change,) = await Topics(reach).plan("t")

    assert change.before is not None
    assert change.before.write_queues == 9


async def test_a_name_that_cannot_be_is_refused_before_anybody_is_asked():
    """Blanks and slashes are no topic."""
    reach = ScriptedAccess()

    with pytest.raises(ConfigError, match="may only contain"):
        await Topics(reach).plan("a/b", queues=1)
    assert reach.requests == []


async def test_applying_waits_until_the_name_server_shows_it():
    """What runs next can rely on the route."""
    reach = ScriptedAccess(brokers_by_name=TWO).on(RequestCode.GET_TOPIC_CONFIG, lambda _: 17)
    put_into(reach)
    topics = Topics(reach)

    await topics.apply("t", await topics.plan("t", queues=3))

    assert reach.topics["t"] == {"broker-a": 3, "broker-b": 3}
    assert reach.requests_of(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    (first, _) = reach.requests_of(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert (first.fields["perm"], first.fields["order"], first.fields["readQueueNums"]) == ("6", "false", "3")


async def test_an_ordered_topic_has_its_queue_counts_written_down():
    """Keys keep their queues while a broker is away."""
    reach = ScriptedAccess(brokers_by_name=TWO).on(RequestCode.GET_TOPIC_CONFIG, lambda _: 17)
    reach.on(RequestCode.PUT_KV_CONFIG, lambda _: {})
    put_into(reach)
    topics = Topics(reach)

    await topics.apply("t", await topics.plan("t", queues=3, order=True))

    (written,) = reach.requests_of(RequestCode.PUT_KV_CONFIG)
    assert written.fields == {"namespace": "ORDER_TOPIC_CONFIG", "key": "t", "value": "broker-a:3;broker-b:3"}


async def test_deleting_begins_with_the_brokers():
    """A name server that forgets first would be told again by the next registration."""
    reach = ScriptedAccess(brokers_by_name=TWO, topics={"t": {"broker-a": 1, "broker-b": 1}})
    for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.DELETE_KV_CONFIG):
        reach.on(code, lambda _: {})

    await Topics(reach).delete("t")

    order = [asked.code for asked in reach.requests if asked.fields.get("topic") == "t"]
    assert order[-3:] == [
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
    ]


async def test_a_deletion_that_was_interrupted_can_be_repeated():
    """The brokers have deleted the topic, but no name server has heard of it."""
    reach = ScriptedAccess(brokers_by_name=TWO, topics={"t": {"broker-a": 1, "broker-b": 1}})
    for code in (
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.DELETE_TOPIC_IN_BROKER,
    ):
        reach.on(code, lambda _: ResponseCode.TOPIC_NOT_EXIST)
    for code in (RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.DELETE_KV_CONFIG):
        reach.on(code, lambda _: {})
    reach.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, lambda _: b"{}")

    found = await Topics(reach).describe("t")
    assert (found.hosts, found.queues) == ([], [])
    await Topics(reach).delete("t")

    assert len(reach.requests_of(RequestCode.DELETE_TOPIC_IN_NAMESRV)) == 1


async def test_a_topic_of_one_unit_is_deleted_in_that_unit_alone():
    """Name servers would forget it for all of them; how it is ordered elsewhere is kept, too."""
    clusters = {"broker-a": "east", "broker-b": "west"}
    topics = {"t": {"broker-a": 1, "broker-b": 1}}
    reach = ScriptedAccess(brokers_by_name=TWO, topics=topics, clusters=clusters)
    reach.unit = "east"
    for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.DELETE_KV_CONFIG):
        reach.on(code, lambda _: {})

    await Topics(reach).delete("t")

    assert [asked.address for asked in reach.requests_of(RequestCode.DELETE_TOPIC_IN_BROKER)] == [TWO["broker-a"]]
    assert [asked.fields for asked in reach.requests_of(RequestCode.DELETE_TOPIC_IN_NAMESRV)] == [
        {"topic": "t", "clusterName": "east"}
    ]
    assert reach.requests_of(RequestCode.DELETE_KV_CONFIG) == []


async def test_a_topic_that_nobody_has_is_told_with_the_way_out():
    """The text names the command that lists topics."""
    with pytest.raises(RouteNotFound, match="holdfast topic list"):
        await Topics(ScriptedAccess()).describe("t")


async def test_queue_states_are_read_from_object_keys():
    """Java writes a map whose keys are objects."""
    body = (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"t"}:{"lastUpdateTimestamp":0,"maxOffset":9,'
        b'"minOffset":4},{"brokerName":"broker-a","queueId":0,"topic":"t"}:{"lastUpdateTimestamp":5,"maxOffset":2,'
        b'"minOffset":0}},"topicPutTps":0.0}'
    )
    reach = ScriptedAccess(topics={"t": {"broker-a": 2}}).on(RequestCode.GET_TOPIC_STATS_INFO, lambda _: body)

    stats = await Topics(reach).stats("t")

    assert [(state.queue, state.messages, state.last_stored_ms) for state in stats.queues] == [(0, 2, 5), (1, 5, None)]
    assert stats.messages == 7


@pytest.mark.parametrize(("number", "text"), [(6, "rw"), (4, "r"), (2, "w"), (0, "-"), (7, "rw")])
def test_a_permission_is_shown_as_letters(number: int, text: str):
    """Inheritance is the system's business and not shown."""
    assert permission_text(number) == text
    assert permission_from(text) == number & 6


def test_a_permission_that_is_none_is_refused():
    """The choices are named."""
    with pytest.raises(ConfigError, match="none of rw, r, w"):
        permission_from("x")


def test_the_kind_of_a_topic_follows_from_its_name():
    """A topic named like a broker is that broker's."""
    assert kind_of("orders", set()) == "normal"
    assert kind_of("orders", {"orders"}) == "system"


async def test_a_static_topic_is_listed_with_its_logical_queues():
    """The brokers are those that lead; one that is withheld is listed as incomplete."""
    cluster = ScriptedTopics()
    cluster.put_topic("t", {0: "a", 1: "a", 2: "a"})

    (whole,) = await Topics(cluster).summaries()
    cluster.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _: 2)
    (withheld,) = await Topics(cluster).summaries()

    assert (whole.kind, whole.queues, whole.brokers) == ("static", 3, ["a"])
    assert withheld.kind == "static, incomplete"


async def test_topics_that_keep_batches_whole_are_known_as_such():
    """Whoever hosts them knows; a broker that does not answer is left out."""
    reach = ScriptedAccess(topics={"orders": {"broker-a": 2}, "plain": {"broker-a": 2}})
    assert not any(topic.batches for topic in await Topics(reach).summaries())
    table = {"topicConfigTable": {"orders": {"topicName": "orders", "attributes": {"queue.type": "BatchCQ"}}}}
    reach.on(RequestCode.GET_ALL_TOPIC_CONFIG, lambda _: msgspec.json.encode(table))

    summaries = await Topics(reach).summaries()

    assert {topic.name: topic.batches for topic in summaries} == {"orders": True, "plain": False}


def test_the_topic_of_mapping_records_is_the_systems():
    """Users do not see it among theirs."""
    assert kind_of("SYS_HOLDFAST_MAPPING", set()) == "system"
