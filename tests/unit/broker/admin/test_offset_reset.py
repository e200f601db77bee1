import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, connect_client, pop_requests
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send

from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

T = a_subscription("T")
OLD, NEW = 407, 513


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T", queues=2)
    for _ in range(4):
        desk.call(a_send())
        desk.now_ms += 100
    return desk


def reset(desk: BrokerHarness, **fields: object) -> Command:
    asked = {"group": "g", "topic": "T", "queueId": -1, "offset": -1, "timestamp": -1, "isForce": "true"}
    (answer,) = desk.call(a_request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **(asked | fields)))
    return answer


def offsets(answer: Command) -> list[int]:
    return list(java_json.loads(answer.body)["offsetTable"].values())


def test_a_group_goes_to_the_end(desk: BrokerHarness) -> None:
    """Of every queue; the answer says where that is."""
    answer = reset(desk)

    assert offsets(answer) == [4, 0]
    assert desk.components.offsets.find("g", "T", 0) == 4


def test_a_group_goes_to_a_time(desk: BrokerHarness) -> None:
    """To the first message stored at or after it."""
    assert offsets(reset(desk, timestamp=desk.now_ms - 200)) == [2, 0]
    assert offsets(reset(desk, timestamp=0)) == [0, 0]


def test_one_queue_can_be_sent_to_an_offset(desk: BrokerHarness) -> None:
    """Within the queue; the others stay where they are."""
    desk.components.offsets.commit("g", "T", 1, 0)

    assert offsets(reset(desk, queueId=0, offset=3, timestamp=0, isForce="false")) == [3]
    assert reset(desk, queueId=0, offset=5).code == ResponseCode.SYSTEM_ERROR
    assert desk.components.offsets.find("g", "T", 0) == 3


def test_without_force_nothing_is_skipped(desk: BrokerHarness) -> None:
    """A time behind the group's own place leaves it there."""
    desk.components.offsets.commit("g", "T", 0, 1)

    assert offsets(reset(desk, timestamp=-1, isForce="false")) == [1, 0]
    assert offsets(reset(desk, timestamp=0, isForce="false")) == [0, 0]


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST), ({"queueId": 2}, ResponseCode.INVALID_PARAMETER)],
)
def test_what_is_not_there_cannot_be_gone_to(desk: BrokerHarness, fields: dict[str, object], code: int) -> None:
    """Nothing changes then."""
    assert reset(desk, **fields).code == code
    assert desk.components.offsets.find("g", "T", 0) is None


def test_a_consumer_is_sent_there_by_its_next_pull(desk: BrokerHarness) -> None:
    """Once, with upstream's code and word; its late commits do not undo it."""
    connect_client(desk, 2, a_heartbeat("c", consumer_group="g", topics=(T,), version=NEW))
    desk.components.offsets.commit("g", "T", 0, 4)

    reset(desk, timestamp=0)
    late = a_pull(consumerGroup="g", offset=4, sysFlag="3", commitOffset="4")
    (moved,) = desk.call(late, channel=2)
    (found,) = desk.call(a_pull(consumerGroup="g", offset=0, sysFlag="2"), channel=2)

    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert moved.fields["nextBeginOffset"] == "0"
    assert found.code == 0
    assert desk.components.offsets.find("g", "T", 0) == 0


def test_a_consumer_that_starts_later_begins_there(desk: BrokerHarness) -> None:
    """It asks for its offset first and is not sent on once more."""
    reset(desk, queueId=0, offset=2)
    connect_client(desk, 2, a_heartbeat("c", consumer_group="g", topics=(T,), version=NEW))

    (asked,) = desk.call(
        a_request(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=0), channel=2
    )
    (found,) = desk.call(a_pull(consumerGroup="g", offset=2, sysFlag="2"), channel=2)

    assert asked.fields["offset"] == "2"
    assert found.code == 0


def test_4_x_consumers_are_told_at_once(desk: BrokerHarness) -> None:
    """By a push with object keys; told by a pull they would wait ten seconds."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,), version=OLD))
    connect_client(desk, 3, a_heartbeat("c2", consumer_group="g", topics=(T,), version=OLD))

    answer = reset(desk, timestamp=0)

    for channel in (2, 3):
        (push,) = pop_requests(desk, channel)
        assert (push.code, push.is_one_way) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
        assert (push.fields["topic"], push.fields["group"], push.fields["isForce"]) == ("T", "g", "false")
        assert push.body == answer.body
        assert b'{{"topic":"T","brokerName":"broker-a","queueId":0}:0' in push.body
    (pulled,) = desk.call(a_pull(consumerGroup="g", offset=4, sysFlag="0"), channel=2)
    assert pulled.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("other", [{"version": NEW}, {"version": OLD, "language": "GO"}])
def test_a_mixed_group_is_told_by_its_pulls(desk: BrokerHarness, other: dict[str, object]) -> None:
    """Every client of every language understands that."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,), version=OLD))
    connect_client(desk, 3, a_heartbeat("c2", consumer_group="g", topics=(T,), **other))  # type: ignore[arg-type]

    reset(desk, timestamp=0)

    assert pop_requests(desk, 2) == pop_requests(desk, 3) == []
    (pulled,) = desk.call(a_pull(consumerGroup="g", offset=4, sysFlag="0"), channel=2)
    assert pulled.code == ResponseCode.PULL_OFFSET_MOVED
