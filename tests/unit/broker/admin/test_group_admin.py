import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, join
from tests.support.broker_desk import BrokerDesk, a_pull, a_send

from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode


@pytest.fixture
def desk() -> BrokerDesk:
    desk = BrokerDesk()
    desk.make_topic("T", queues=2)
    return desk


def fill(desk: BrokerDesk, count: int = 3) -> None:
    for _ in range(count):
        desk.ask(a_send())
        desk.now_ms += 10


def rows(answer_body: bytes) -> list[dict[str, int]]:
    return list(java_json.loads(answer_body)["offsetTable"].values())


def test_a_group_is_created_and_described(desk: BrokerDesk) -> None:
    """In upstream's names."""
    body = java_json.encode({"groupName": "g", "retryMaxTimes": 3, "consumeBroadcastEnable": False})

    (made,) = desk.ask(a_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body))
    (known,) = desk.ask(a_request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g"))
    (unknown,) = desk.ask(a_request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="none"))

    config = java_json.loads(known.body)
    assert made.code == 0
    assert (config["groupName"], config["retryMaxTimes"], config["consumeBroadcastEnable"]) == ("g", 3, False)
    assert (config["retryQueueNums"], config["groupRetryPolicy"]) == (1, {"type": "CUSTOMIZED"})
    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_several_groups_are_created_at_once(desk: BrokerDesk) -> None:
    """All of them, or none when one cannot be."""
    good = {"groupConfigList": [{"groupName": "g1"}, {"groupName": "g2"}]}
    bad = {"groupConfigList": [{"groupName": "g3"}, {"groupName": "a b"}]}

    (made,) = desk.ask(a_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, java_json.encode(good)))
    (refused,) = desk.ask(a_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, java_json.encode(bad)))

    assert (made.code, refused.code) == (0, ResponseCode.INVALID_PARAMETER)
    assert {"g1", "g2"} <= desk.rooms.groups.all().keys()
    assert "g3" not in desk.rooms.groups.all()


@pytest.mark.parametrize(("clean", "offset"), [("true", None), ("false", 5)])
def test_a_deleted_group_takes_its_offsets_along_when_told_to(desk: BrokerDesk, clean: str, offset: int | None) -> None:
    """Otherwise they wait for its return."""
    desk.rooms.groups.ensure("g", desk.now_ms)
    desk.rooms.offsets.commit("g", "T", 0, 5)

    (answer,) = desk.ask(a_request(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset=clean))

    assert answer.code == 0
    assert desk.rooms.groups.find("g") is None
    assert desk.rooms.offsets.find("g", "T", 0) == offset


def test_all_groups_come_whole_or_in_pages(desk: BrokerDesk) -> None:
    """Pages put together are the whole."""
    (whole,) = desk.ask(a_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    names = set(java_json.loads(whole.body)["subscriptionGroupTable"])
    paged: set[str] = set()
    for start in range(0, len(names), 3):
        page = a_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groupSeq=start, maxGroupNum=3)
        (answer,) = desk.ask(page)
        assert answer.fields["totalGroupNum"] == str(len(names))
        paged |= set(java_json.loads(answer.body)["subscriptionGroupTable"])

    assert "TOOLS_CONSUMER" in names
    assert paged == names


def test_the_groups_of_a_topic_are_those_that_consume_it_or_have(desk: BrokerDesk) -> None:
    """Sorted, each once."""
    join(desk, 2, a_heartbeat("c", consumes="living", topics=(a_subscription("T"),)))
    desk.rooms.offsets.commit("past", "T", 0, 1)
    desk.rooms.offsets.commit("living", "T", 0, 1)

    (answer,) = desk.ask(a_request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T"))

    assert java_json.loads(answer.body) == {"groupList": ["living", "past"]}


def test_the_topics_and_the_subscription_of_a_group_are_told(desk: BrokerDesk) -> None:
    """What it has consumed, and what it wants now."""
    join(desk, 2, a_heartbeat("c", consumes="g", topics=(a_subscription("T", "TagA"),)))
    desk.rooms.offsets.commit("g", "T", 0, 1)

    (topics,) = desk.ask(a_request(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g"))
    (wanted,) = desk.ask(a_request(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="T"))

    assert java_json.loads(topics.body) == {"topicList": ["T"], "brokerAddr": desk.options.address}
    body = java_json.loads(wanted.body)
    assert (body["group"], body["topic"], body["subscriptionData"]["subString"]) == ("g", "T", "TagA")


def test_how_far_a_group_is_behind_is_told_queue_by_queue(desk: BrokerDesk) -> None:
    """With the time of the last message that it consumed."""
    start_ms = desk.now_ms
    fill(desk)
    desk.rooms.offsets.commit("g", "T", 0, 2)

    (answer,) = desk.ask(a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g"))

    assert rows(answer.body) == [
        {"brokerOffset": 3, "consumerOffset": 2, "pullOffset": 2, "lastTimestamp": start_ms + 10},
        {"brokerOffset": 0, "consumerOffset": 0, "pullOffset": 0, "lastTimestamp": 0},
    ]


def test_what_a_group_has_pulled_and_not_committed_is_told(desk: BrokerDesk) -> None:
    """As where it pulls next; until it is committed it is under way."""
    fill(desk)

    desk.ask(a_pull("T", consumerGroup="g", maxMsgNums="2"))
    desk.rooms.offsets.commit("g", "T", 0, 1)
    *_, answer = desk.ask(a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="T"))

    assert [(row["consumerOffset"], row["pullOffset"]) for row in rows(answer.body)] == [(1, 2), (0, 0)]


def test_a_group_can_be_followed_in_chosen_topics(desk: BrokerDesk) -> None:
    """One, or several joined by semicolons; those that are not hosted are left out."""
    desk.make_topic("U", queues=1)
    ask = RequestCode.GET_CONSUME_STATS

    one, several, none = desk.ask(
        a_request(ask, consumerGroup="g", topic="U"),
        a_request(ask, consumerGroup="g", topicList="T;U;missing"),
        a_request(ask, consumerGroup="g"),
    )

    assert len(rows(one.body)) == 1
    assert len(rows(several.body)) == 3
    assert java_json.loads(none.body) == {"offsetTable": {}, "consumeTps": 0.0}


def test_a_topic_that_a_living_group_has_left_is_not_followed(desk: BrokerDesk) -> None:
    """Its old offsets would look like a lag that grows for ever."""
    desk.rooms.offsets.commit("g", "T", 0, 0)
    join(desk, 2, a_heartbeat("c", consumes="g", topics=(a_subscription("U"),)))

    (answer,) = desk.ask(a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g"))

    assert rows(answer.body) == []


def test_all_groups_are_followed_at_once(desk: BrokerDesk) -> None:
    """The lags add up; groups that have consumed nothing are there, too."""
    fill(desk)
    desk.rooms.groups.ensure("g", desk.now_ms)
    desk.rooms.groups.ensure("idle", desk.now_ms)
    desk.rooms.offsets.commit("g", "T", 0, 1)

    (answer,) = desk.ask(a_request(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))
    (ordered,) = desk.ask(a_request(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true"))

    body = java_json.loads(answer.body)
    stats = {group: rows_ for entry in body["consumeStatsList"] for group, rows_ in entry.items()}
    assert (body["totalDiff"], body["brokerAddr"]) == (2, desk.options.address)
    assert stats["idle"] == []
    assert len(stats["g"]) == 1
    assert java_json.loads(ordered.body)["totalDiff"] == 0


def test_a_group_can_be_followed_in_time(desk: BrokerDesk) -> None:
    """From when to when the messages are, where the group stands, and for how long the next one has waited."""
    start_ms = desk.now_ms
    fill(desk)
    desk.rooms.offsets.commit("g", "T", 0, 1)

    (answer,) = desk.ask(a_request(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="g"))

    first, empty = java_json.loads(answer.body)["consumeTimeSpanSet"]
    assert (first["minTimeStamp"], first["maxTimeStamp"]) == (start_ms, start_ms + 20)
    assert (first["consumeTimeStamp"], first["delayTime"]) == (start_ms, 20)
    assert first["minTimeStampStr"] == "2023-11-14#22:13:20:000"
    assert (empty["maxTimeStamp"], empty["delayTime"]) == (0, 0)


def test_a_group_can_be_put_where_another_stands(desk: BrokerDesk) -> None:
    """But not while it consumes: its next commit would undo it."""
    desk.rooms.offsets.commit("g", "T", 0, 2)
    desk.rooms.offsets.commit("g", "U", 0, 3)
    ask = RequestCode.CLONE_GROUP_OFFSET

    (answer,) = desk.ask(a_request(ask, srcGroup="g", destGroup="copy"))
    join(desk, 2, a_heartbeat("c", consumes="busy", topics=(a_subscription("T"),)))
    (refused,) = desk.ask(a_request(ask, srcGroup="g", destGroup="busy", topic="T"))

    assert answer.code == 0
    assert desk.rooms.offsets.topics_of("copy") == ["T", "U"]
    assert refused.code == ResponseCode.SYSTEM_ERROR


def test_what_a_group_gets_a_second_is_told(desk: BrokerDesk) -> None:
    """Over the last minute."""
    fill(desk, 6)
    desk.ask(a_pull(consumerGroup="g"))
    desk.rooms.offsets.commit("g", "T", 0, 6)
    for _ in range(6):
        desk.pass_time(10_000, "stats")

    (answer,) = desk.ask(a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g"))

    assert java_json.loads(answer.body)["consumeTps"] == pytest.approx(0.1, rel=0.01)
