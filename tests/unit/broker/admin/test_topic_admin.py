import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.model.topic import TopicConfig
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command


@pytest.fixture
def desk() -> BrokerHarness:
    return BrokerHarness()


def a_creation(topic: str = "T", **fields: object) -> Command:
    asked = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": "",
    }
    return a_request(RequestCode.UPDATE_AND_CREATE_TOPIC, **(asked | fields))


def test_a_topic_is_created_as_asked(desk: BrokerHarness) -> None:
    """And changed by asking again."""
    (made,) = desk.call(a_creation(order="true", attributes="+message.type=FIFO"))
    (changed,) = desk.call(a_creation(perm=4, attributes="+reserve.time=3,-message.type"))

    assert (made.code, changed.code) == (0, 0)
    assert desk.components.topics.find("T") == TopicConfig(
        name="T", read_queues=4, write_queues=3, permission=4, attributes={"reserve.time": "3"}
    )


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"topic": "bad topic!"}, "bad topic!"),
        ({"topic": "TBW102"}, "TBW102"),
        ({"readQueueNums": -1}, "read"),
        ({"perm": 9}, "permission"),
        ({"attributes": "message.type=FIFO"}, "message.type=FIFO"),
        ({"attributes": "+queue.type=RocksCQ"}, "RocksCQ"),
        ({"readQueueNums": "many"}, "readQueueNums"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(desk: BrokerHarness, fields: dict[str, object], part: str) -> None:
    """Nothing is created then."""
    (answer,) = desk.call(a_creation(**fields))

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert part in (answer.remark or "")
    assert desk.components.topics.find("T") is None


def test_a_topic_is_indexed_by_batch_if_it_is_made_so(desk: BrokerHarness) -> None:
    """The file says so before the store does, and a start reads it there."""
    said: list[bytes] = []
    set_queue_type = desk.store.set_queue_type

    def look(topic: str, queue_type: str) -> None:
        file = desk.disk.open("config/topics.json")
        said.append(file.read(0, file.size))
        set_queue_type(topic, queue_type)

    desk.store.set_queue_type = look  # type: ignore[method-assign]
    (made,) = desk.call(a_creation(attributes="+queue.type=BatchCQ"))

    assert made.code == 0
    assert b"BatchCQ" in said[0]
    assert desk.store.queue("T", 0).accepts_batches
    assert BrokerHarness(disk=desk.disk).store.queue("T", 0).accepts_batches


@pytest.mark.parametrize(("made", "asked", "to"), [("BatchCQ", "SimpleCQ", "simple"), ("SimpleCQ", "BatchCQ", "batch")])
def test_how_a_topic_is_indexed_does_not_change(desk: BrokerHarness, made: str, asked: str, to: str) -> None:
    """Neither by saying so nor by leaving it out of a list; everything else does."""
    desk.call(a_creation(attributes=f"+queue.type={made}"))
    before = desk.components.topics.find("T")

    answers = desk.call(
        a_creation(attributes=f"+queue.type={asked}"),
        a_request(
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            java_json.encode({"topicConfigList": [{"topicName": "T", "attributes": {"+queue.type": asked}}]}),
        ),
    )

    assert {answer.code for answer in answers} == {ResponseCode.INVALID_PARAMETER}
    assert all(f"holdfast index convert T --to {to}" in (answer.remark or "") for answer in answers)
    assert desk.components.topics.find("T") == before
    (changed,) = desk.call(a_creation(perm=4))
    (listed,) = desk.call(
        a_request(
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            java_json.encode({"topicConfigList": [{"topicName": "T", "attributes": {"+a": "1"}}]}),
        )
    )
    assert (changed.code, listed.code) == (0, 0)
    config = desk.components.topics.find("T")
    assert config is not None
    assert config.attributes == {"queue.type": made, "a": "1"}


def test_a_batch_index_cannot_be_taken_off_a_topic(desk: BrokerHarness) -> None:
    """Removing the attribute would be a change, too."""
    desk.call(a_creation(attributes="+queue.type=BatchCQ"))

    (answer,) = desk.call(a_creation(attributes="-queue.type"))

    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_a_topic_that_was_deleted_comes_back_with_any_index(desk: BrokerHarness) -> None:
    """Nothing is left of it, in memory or on disk."""
    for kind in ("BatchCQ", "SimpleCQ", "BatchCQ"):
        desk.call(a_creation(attributes=f"+queue.type={kind}"))
        desk.call(a_send())
        assert desk.store.queue("T", 0).accepts_batches == (kind == "BatchCQ")
        assert desk.store.queue("T", 0).offset_max == 1

        desk.call(a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))

    assert BrokerHarness(disk=desk.disk).store.find_queue_type("T") is None


def test_queues_that_an_earlier_topic_left_are_not_taken_for_others(desk: BrokerHarness) -> None:
    """It says what is in the way."""
    desk.store.queue("T", 0)

    (refused,) = desk.call(a_creation(attributes="+queue.type=BatchCQ"))
    desk.call(a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))
    (made,) = desk.call(a_creation(attributes="+queue.type=BatchCQ"))

    assert (refused.code, made.code) == (ResponseCode.INVALID_PARAMETER, 0)
    assert "delete it first" in (refused.remark or "")


def test_a_crash_amid_a_deletion_leaves_no_index_of_unknown_kind(desk: BrokerHarness) -> None:
    """The queues go before the topic does."""
    desk.call(a_creation(attributes="+queue.type=BatchCQ"))
    desk.call(a_send())
    desk.store.queue("T", 0).flush()
    gone: list[list[str]] = []

    def look(call: str, path: str) -> None:
        if call == "replace" and path.endswith("topics.json"):
            gone.append(desk.disk.list("batchconsumequeue/T"))

    desk.disk.before = look
    desk.call(a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))

    assert gone == [[]]


def test_several_topics_are_created_at_once(desk: BrokerHarness) -> None:
    """All of them, or none when one cannot be."""
    good = {"topicConfigList": [{"topicName": "T1"}, {"topicName": "T2", "readQueueNums": 2}]}
    bad = {"topicConfigList": [{"topicName": "T3"}, {"topicName": "a b"}]}

    (made,) = desk.call(a_request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, java_json.encode(good)))
    (refused,) = desk.call(a_request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, java_json.encode(bad)))

    assert (made.code, refused.code) == (0, ResponseCode.INVALID_PARAMETER)
    assert desk.components.topics.find("T2") == TopicConfig(name="T2", read_queues=2)
    assert desk.components.topics.find("T3") is None


def test_a_deleted_topic_leaves_nothing_behind(desk: BrokerHarness) -> None:
    """Made again, it is empty and its groups begin anew. Deleting twice is fine."""
    desk.make_topic("T")
    desk.call(a_send())
    desk.components.offsets.commit("g", "T", 0, 1)

    answers = desk.call(*[a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")] * 2)
    desk.make_topic("T")

    assert [answer.code for answer in answers] == [0, 0]
    queue = desk.store.find_queue("T", 0)
    assert queue is None or queue.offset_max == 0
    assert desk.components.offsets.find("g", "T", 0) is None
    (sent,) = desk.call(a_send())
    assert sent.fields["queueOffset"] == "0"


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "", "TRANS_CHECK_MAX_TIME_TOPIC"])
def test_what_the_broker_needs_cannot_be_deleted(desk: BrokerHarness, topic: str) -> None:
    """Nor can nothing."""
    (answer,) = desk.call(a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic))

    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_a_topic_is_described(desk: BrokerHarness) -> None:
    """In upstream's names; an unknown one with upstream's words."""
    desk.make_topic("T", queues=2)

    (known,) = desk.call(a_request(RequestCode.GET_TOPIC_CONFIG, topic="T", lo="true"))
    (unknown,) = desk.call(a_request(RequestCode.GET_TOPIC_CONFIG, topic="NoSuch", lo="true"))

    assert java_json.loads(known.body) == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 2,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 2,
    }
    assert (unknown.code, unknown.remark) == (ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker. topic: NoSuch")


def test_all_topics_come_whole_or_in_pages(desk: BrokerHarness) -> None:
    """Old callers want everything; pages put together are the whole."""
    (whole,) = desk.call(a_request(RequestCode.GET_ALL_TOPIC_CONFIG))
    names = set(java_json.loads(whole.body)["topicConfigTable"])
    paged: set[str] = set()
    for start in range(0, len(names), 5):
        page = a_request(RequestCode.GET_ALL_TOPIC_CONFIG, topicSeq=start, maxTopicNum=5, dataVersion="")
        (answer,) = desk.call(page)
        assert answer.fields["totalTopicNum"] == str(len(names))
        paged |= set(java_json.loads(answer.body)["topicConfigTable"])

    assert "TBW102" in names
    assert paged == names


def test_the_ends_of_every_queue_are_told(desk: BrokerHarness) -> None:
    """Also of those without messages; keys are objects, the only form that every Java client reads."""
    desk.make_topic("T", queues=2)
    desk.call(a_send(), a_send())

    (answer,) = desk.call(a_request(RequestCode.GET_TOPIC_STATS_INFO, topic="T"))
    (unknown,) = desk.call(a_request(RequestCode.GET_TOPIC_STATS_INFO, topic="none"))

    assert b'{"topic":"T","brokerName":"broker-a","queueId":0}:{' in answer.body
    table = java_json.loads(answer.body)["offsetTable"]
    assert [(row["minOffset"], row["maxOffset"], row["lastUpdateTimestamp"]) for row in table.values()] == [
        (0, 2, desk.now_ms),
        (0, 0, 0),
    ]
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


def test_the_brokers_own_topics_are_listed(desk: BrokerHarness) -> None:
    """Tools leave them out of what they show."""
    (answer,) = desk.call(a_request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))

    names = java_json.loads(answer.body)["topicList"]
    assert {"SCHEDULE_TOPIC_XXXX", "TBW102", "TRANS_CHECK_MAX_TIME_TOPIC"} <= set(names)


def test_queues_of_topics_that_are_gone_can_be_cleaned_up(desk: BrokerHarness) -> None:
    """Those of living topics stay."""
    desk.make_topic("T")
    desk.make_topic("gone")
    desk.call(a_send(), a_send("gone"))
    desk.components.topics.delete("gone")

    (answer,) = desk.call(a_request(RequestCode.CLEAN_UNUSED_TOPIC))

    assert answer.code == 0
    assert {queue.topic for queue in desk.store.list_queues() if queue.offset_max} == {"T"}
