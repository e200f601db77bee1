import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, connect_client
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send

from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T", queues=2)
    return desk


def fill(desk: BrokerHarness, count: int = 3) -> None:
    for _ in range(count):
        desk.call(a_send())
        desk.now_ms += 10


def rows(answer_body: bytes) -> list[dict[str, int]]:
    return list(java_json.loads(answer_body)["offsetTable"].values())


def test_a_group_is_created_and_described(desk: BrokerHarness) -> None:
    """In upstream's names."""
    body = java_json.encode({"groupName": "g", "retryMaxTimes": 3, "consumeBroadcastEnable": False})

    (made,) = desk.call(a_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body))
    (known,) = desk.call(a_request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g"))
    (unknown,) = desk.call(a_request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="none"))

    config = java_json.loads(known.body)
    assert made.code == 0
    assert (config["groupName"], config["retryMaxTimes"], config["consumeBroadcastEnable"]) == ("g", 3, False)
    assert (config["retryQueueNums"], config["groupRetryPolicy"]) == (1, {"type": "CUSTOMIZED"})
    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_several_groups_are_created_at_once(desk: BrokerHarness) -> None:
    """All of them, or none when one cannot be."""
    good = {"groupConfigList": [{"groupName": "g1"}, {"groupName": "g2"}]}
    bad = {"groupConfigList": [{"groupName": "g3"}, {"groupName": "a b"}]}

    (made,) = desk.call(a_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, java_json.encode(good)))
    (refused,) = desk.call(a_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, java_json.encode(bad)))

    assert (made.code, refused.code) == (0, ResponseCode.INVALID_PARAMETER)
    assert {"g1", "g2"} <= desk.components.groups.all().keys()
    assert "g3" not in desk.components.groups.all()


@pytest.mark.parametrize(("clean", "offset"), [("true", None), ("false", 5)])
def test_a_deleted_group_takes_its_offsets_along_when_told_to(
    desk: BrokerHarness, clean: str, offset: int | None
) -> None:
    """Otherwise they wait for its return."""
    desk.components.groups.ensure("g")
    desk.components.offsets.commit("g", "T", 0, 5)

    (answer,) = desk.call(a_request(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset=clean))

    assert answer.code == 0
    assert desk.components.groups.find("g") is None
    assert desk.components.offsets.find("g", "T", 0) == offset


def test_all_groups_come_whole_or_in_pages(desk: BrokerHarness) -> None:
    """Pages put together are the whole."""
    (whole,) = desk.call(a_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    names = set(java_json.loads(whole.body)["subscriptionGroupTable"])
    paged: set[str] = set()
    for start in range(0, len(names), 3):
        page = a_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groupSeq=start, maxGroupNum=3)
        (answer,) = desk.call(page)
        assert answer.fields["totalGroupNum"] == str(len(names))
        paged |= set(java_json.loads(answer.body)["subscriptionGroupTable"])

    assert "TOOLS_CONSUMER" in names
    assert paged == names


def test_the_groups_of_a_topic_are_those_that_consume_it_or_have(desk: BrokerHarness) -> None:
    """Sorted, each once."""
    connect_client(desk, 2, a_heartbeat("c", consumer_group="living", topics=(a_subscription("T"),)))
    desk.components.offsets.commit("past", "T", 0, 1)
    desk.components.offsets.commit("living", "T", 0, 1)

    (answer,) = desk.call(a_request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T"))

    assert java_json.loads(answer.body) == {"groupList": ["living", "past"]}


def test_the_topics_and_the_subscription_of_a_group_are_told(desk: BrokerHarness) -> None:
    """What it has consumed, and what it wants now."""
    connect_client(desk, 2, a_heartbeat("c", consumer_group="g", topics=(a_subscription("T", "TagA"),)))
    desk.components.offsets.commit("g", "T", 0, 1)

    (topics,) = desk.call(a_request(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g"))
    (wanted,) = desk.call(a_request(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="T"))

    assert java_json.loads(topics.body) == {"topicList": ["T"], "brokerAddr": desk.options.address}
    body = java_json.loads(wanted.body)
    assert (body["group"], body["topic"], body["subscriptionData"]["subString"]) == ("g", "T", "TagA")


def test_how_far_a_group_is_behind_is_told_queue_by_queue(desk: BrokerHarness) -> None:
    """With the time of the last message that it consumed."""
    start_ms = desk.now_ms
    fill(desk)
    desk.components.offsets.commit("g", "T", 0, 2)

    (answer,) = desk.call(a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g"))

    assert rows(answer.body) == [
        {"brokerOffset": 3, "consumerOffset": 2, "pullOffset": 2, "lastTimestamp": start_ms + 10},
        {"brokerOffset": 0, "consumerOffset": 0, "pullOffset": 0, "lastTimestamp": 0},
    ]


def test_what_a_group_has_pulled_and_not_committed_is_told(desk: BrokerHarness) -> None:
    """As where it pulls next; until it is committed it is under way."""
    fill(desk)

    desk.call(a_pull("T", consumerGroup="g", maxMsgNums="2"))
    desk.components.offsets.commit("g", "T", 0, 1)
    *_, answer = desk.call(a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="T"))

    assert [(row["consumerOffset"], row["pullOffset"]) for row in rows(answer.body)] == [(1, 2), (0, 0)]


def test_a_group_can_be_followed_in_chosen_topics(desk: BrokerHarness) -> None:
    """One, or several joined by semicolons; those that are not hosted are left out."""
    desk.make_topic("U", queues=1)
    ask = RequestCode.GET_CONSUME_STATS

    one, several, none = desk.call(
        a_request(ask, consumerGroup="g", topic="U"),
        a_request(ask, consumerGroup="g", topicList="T;U;missing"),
        a_request(ask, consumerGroup="g"),
    )

    assert len(rows(one.body)) == 1
    assert len(rows(several.body)) == 3
    assert java_json.loads(none.body) == {"offsetTable": {}, "consumeTps": 0.0}


def test_a_topic_that_a_living_group_has_left_is_not_followed(desk: BrokerHarness) -> None:
    """Its old offsets would look like a lag that grows for ever."""
    desk.components.offsets.commit("g", "T", 0, 0)
    connect_client(desk, 2, a_heartbeat("c", consumer_group="g", topics=(a_subscription("U"),)))

    (answer,) = desk.call(a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g"))

    assert rows(answer.body) == []


def test_all_groups_are_followed_at_once(desk: BrokerHarness) -> None:
    """The lags add up; groups that have consumed nothing are there, too."""
    fill(desk)
    desk.components.groups.ensure("g")
    desk.components.groups.ensure("idle")
    desk.components.offsets.commit("g", "T", 0, 1)

    (answer,) = desk.call(a_request(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))
    (ordered,) = desk.call(a_request(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true"))

    body = java_json.loads(answer.body)
    stats = {group: rows_ for entry in body["consumeStatsList"] for group, rows_ in entry.items()}
    assert (body["totalDiff"], body["brokerAddr"]) == (2, desk.options.address)
    assert stats["idle"] == []
    assert len(stats["g"]) == 1
    assert java_json.loads(ordered.body)["totalDiff"] == 0


def test_a_group_can_be_followed_in_time(desk: BrokerHarness) -> None:
    """From when to when the messages are, where the group stands, and for how long the next one has waited."""
    start_ms = desk.now_ms
    fill(desk)
    desk.components.offsets.commit("g", "T", 0, 1)

    (answer,) = desk.call(a_request(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="g"))

    first, empty = java_json.loads(answer.body)["consumeTimeSpanSet"]
    assert (first["minTimeStamp"], first["maxTimeStamp"]) == (start_ms, start_ms + 20)
    assert (first["consumeTimeStamp"], first["delayTime"]) == (start_ms, 20)
    assert first["minTimeStampStr"] == "2023-11-14#22:13:20:000"
    assert (empty["maxTimeStamp"], empty["delayTime"]) == (0, 0)


def test_a_group_can_be_put_where_another_stands(desk: BrokerHarness) -> None:
    """But not while it consumes: its next commit would undo it."""
    desk.components.offsets.commit("g", "T", 0, 2)
    desk.components.offsets.commit("g", "U", 0, 3)
    ask = RequestCode.CLONE_GROUP_OFFSET

    (answer,) = desk.call(a_request(ask, srcGroup="g", destGroup="copy"))
    connect_client(desk, 2, a_heartbeat("c", consumer_group="busy", topics=(a_subscription("T"),)))
    (refused,) = desk.call(a_request(ask, srcGroup="g", destGroup="busy", topic="T"))

    assert answer.code == 0
    assert desk.components.offsets.topics_of("copy") == ["T", "U"]
    assert refused.code == ResponseCode.SYSTEM_ERROR


def test_what_a_group_gets_a_second_is_told(desk: BrokerHarness) -> None:
    """Over the last minute."""
    fill(desk, 6)
    desk.call(a_pull(consumerGroup="g"))
    desk.components.offsets.commit("g", "T", 0, 6)
    for _ in range(6):
        desk.pass_time(10_000, "stats")

    (answer,) = desk.call(a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g"))

    assert java_json.loads(answer.body)["consumeTps"] == pytest.approx(0.1, rel=0.01)
