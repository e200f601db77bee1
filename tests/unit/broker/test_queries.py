import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, join
from tests.support.broker_desk import BrokerDesk, a_send

from holdfast.model.java_hash import java_hash
from holdfast.wire import java_json
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.command import Command
from holdfast.wire.message_id import parse_message_id
from holdfast.wire.record import decode_records


@pytest.fixture
def desk() -> BrokerDesk:
    desk = BrokerDesk()
    desk.make_topic("T")
    return desk


def send(desk: BrokerDesk, number: int, key: str = "k", queue: int = 0) -> int:
    properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01{key} other\x02TAGS\x01TagA\x02"
    (answer,) = desk.ask(a_send(queue=queue, body=b"%d" % number, i=properties))
    return parse_message_id(answer.fields["msgId"]).position


def by_key(desk: BrokerDesk, key: str, **fields: object) -> Command:
    asked = {"topic": "T", "key": key, "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    (answer,) = desk.ask(a_request(RequestCode.QUERY_MESSAGE, **(asked | fields)))
    return answer


def bodies(answer: Command) -> list[bytes]:
    return [bytes(record.body) for record in decode_records(answer.body)]


def test_messages_are_found_by_their_keys(desk: BrokerDesk) -> None:
    """By any of them, newest first; the answer says how far the index reaches."""
    send(desk, 1, "a")
    send(desk, 2, "b")
    send(desk, 3, "a")

    answer = by_key(desk, "a")

    assert bodies(answer) == [b"3", b"1"]
    assert answer.fields.keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    assert bodies(by_key(desk, "U2", _UNIQUE_KEY_QUERY="true")) == [b"2"]
    assert len(bodies(by_key(desk, "other", maxNum=2))) == 2


def test_a_key_that_nobody_has_is_not_found(desk: BrokerDesk) -> None:
    """With the index's reach all the same: clients read it."""
    send(desk, 1)

    answer = by_key(desk, "nobody")

    assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
    assert "indexLastUpdateTimestamp" in answer.fields


def test_a_message_is_shown_by_its_position(desk: BrokerDesk) -> None:
    """Exactly that one."""
    send(desk, 1)
    position = send(desk, 2)

    (answer,) = desk.ask(a_request(RequestCode.VIEW_MESSAGE_BY_ID, offset=position))

    assert bodies(answer) == [b"2"]


@pytest.mark.parametrize("position", [-1, 3, 10**12])
def test_where_no_message_begins_none_is_shown(desk: BrokerDesk, position: int) -> None:
    """The client goes on to look for a unique key."""
    send(desk, 1)

    (answer,) = desk.ask(a_request(RequestCode.VIEW_MESSAGE_BY_ID, offset=position))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {position}"


def test_the_ends_of_a_queue_are_told(desk: BrokerDesk) -> None:
    """A queue without messages, and one that does not exist, end where they begin."""
    start_ms = desk.now_ms
    send(desk, 1)
    desk.now_ms += 5
    send(desk, 2)
    codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)

    full = desk.ask(*(a_request(code, topic="T", queueId=0) for code in codes))
    empty = desk.ask(*(a_request(code, topic="T", queueId=3) for code in codes))
    nowhere = desk.ask(*(a_request(code, topic="none", queueId=0) for code in codes))
    first, never = desk.ask(
        *(a_request(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="T", queueId=queue) for queue in (0, 3))
    )

    assert [answer.fields["offset"] for answer in full] == ["0", "2"]
    assert [answer.fields["offset"] for answer in empty + nowhere] == ["0"] * 4
    assert (first.fields["timestamp"], never.fields["timestamp"]) == (str(start_ms), "-1")


@pytest.mark.parametrize(
    ("after_ms", "boundary", "offset"),
    [(-1, "LOWER", 0), (0, "LOWER", 0), (5, "LOWER", 1), (10, "LOWER", 1), (11, "LOWER", 3), (10, "upper", 2)],
)
def test_offsets_are_found_by_time(desk: BrokerDesk, after_ms: int, boundary: str, offset: int) -> None:
    """The first at or after a time, or the last at or before it."""
    start_ms = desk.now_ms
    send(desk, 1)
    desk.now_ms += 10
    send(desk, 2)
    send(desk, 3)

    (answer,) = desk.ask(
        a_request(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            topic="T",
            queueId=0,
            timestamp=start_ms + after_ms,
            boundaryType=boundary,
        )
    )

    assert answer.fields["offset"] == str(offset)


def test_index_entries_are_shown(desk: BrokerDesk) -> None:
    """With what the group that asks subscribes to."""
    join(desk, 2, a_heartbeat("c", consumes="g", topics=(a_subscription("T"),)))
    positions = [send(desk, number) for number in range(3)]

    (answer,) = desk.ask(
        a_request(RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=1, count=5, consumerGroup="g")
    )

    body = java_json.loads(answer.body)
    assert [entry["physicOffset"] for entry in body["queueData"]] == positions[1:]
    assert {entry["tagsCode"] for entry in body["queueData"]} == {java_hash("TagA")}
    assert (body["minQueueIndex"], body["maxQueueIndex"], body["subscriptionData"]["topic"]) == (0, 3, "T")


def test_entries_of_a_queue_that_does_not_exist_are_an_error(desk: BrokerDesk) -> None:
    """Upstream's words."""
    (answer,) = desk.ask(a_request(RequestCode.QUERY_CONSUME_QUEUE, topic="none", queueId=4))

    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "4@none is not exist!")
