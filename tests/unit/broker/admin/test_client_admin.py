import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, connect_client, pop_requests
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.inner_batches import host_batches, make_items, put_batch
from tests.support.stores import HOST

from holdfast.broker.flow.awaitables import CLIENT_TIMEOUT_MS as TIMEOUT_MS
from holdfast.broker.flow.rpc import TIMER
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import RESPONSE, Command
from holdfast.wire.records.message_id import format_message_id
from holdfast.wire.records.record import decode_record

T = a_subscription("T")


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,), producer_group="p", version=513))
    return desk


def reply(desk: BrokerHarness, channel: int, question: Command, body: bytes, code: int = 0) -> None:
    desk.call(Command(code=code, opaque=question.opaque, flag=RESPONSE, body=body, remark="said so"), channel=channel)


def test_the_consumers_of_a_group_are_shown(desk: BrokerHarness) -> None:
    """With what the group subscribes to; a group that is not there has a code of its own."""
    (answer,) = desk.call(a_request(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g"))
    (missing,) = desk.call(a_request(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="none"))

    body = java_json.loads(answer.body)
    assert body["connectionSet"] == [
        {"clientId": "c1", "clientAddr": "10.0.0.2:5000", "language": "JAVA", "version": 513}
    ]
    assert body["subscriptionTable"]["T"]["subString"] == "*"
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert (missing.code, missing.remark) == (
        ResponseCode.CONSUMER_NOT_ONLINE,
        "the consumer group[none] not online",
    )


def test_producers_are_shown_by_group_and_altogether(desk: BrokerHarness) -> None:
    """Including the group that every Java client has inside."""
    (of_group,) = desk.call(a_request(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p"))
    (missing,) = desk.call(a_request(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="none"))
    (table,) = desk.call(a_request(RequestCode.GET_ALL_PRODUCER_INFO))

    assert [row["clientId"] for row in java_json.loads(of_group.body)["connectionSet"]] == ["c1"]
    assert missing.code == ResponseCode.SYSTEM_ERROR
    data = java_json.loads(table.body)["data"]
    assert data.keys() == {"p", "CLIENT_INNER_PRODUCER"}
    assert data["p"] == [
        {
            "clientId": "c1",
            "remoteIP": "/10.0.0.2:5000",
            "language": "JAVA",
            "version": 513,
            "lastUpdateTimestamp": desk.now_ms,
        }
    ]


def test_a_tool_hears_from_a_client_what_it_says_of_itself(desk: BrokerHarness) -> None:
    """The question is passed on as it is, and so is the answer."""
    asked = a_request(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId="c1", jstackEnable="false")

    assert desk.call(asked) == []
    (question,) = pop_requests(desk, 2)
    reply(desk, 2, question, b'{"mqTable":{}}')

    (answer,) = desk.answers[1]
    assert (question.code, question.fields) == (307, asked.fields)
    assert (answer.code, answer.opaque, answer.body, answer.remark) == (0, 7, b'{"mqTable":{}}', "said so")


def test_a_client_that_does_not_answer_is_reported(desk: BrokerHarness) -> None:
    """The tool is not kept waiting for ever."""
    desk.call(a_request(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId="c1"))

    desk.pass_time(TIMEOUT_MS, TIMER)

    assert [answer.code for answer in desk.answers[1]] == [ResponseCode.CONSUME_MSG_TIMEOUT]


def test_only_connected_clients_can_be_asked(desk: BrokerHarness) -> None:
    """Upstream's words for the others; one of before 3.1.8 would not understand."""
    connect_client(desk, 3, a_heartbeat("ancient", consumer_group="g", topics=(T,), version=61))
    ask = RequestCode.GET_CONSUMER_RUNNING_INFO

    (nobody,) = desk.call(a_request(ask, consumerGroup="g", clientId="nobody"))
    (ancient,) = desk.call(a_request(ask, consumerGroup="g", clientId="ancient"))

    assert (nobody.code, nobody.remark) == (ResponseCode.SYSTEM_ERROR, "The Consumer <g> <nobody> not online")
    assert ancient.code == ResponseCode.SYSTEM_ERROR


def test_a_message_can_be_given_to_one_client(desk: BrokerHarness) -> None:
    """The stored record goes along with the question."""
    (sent,) = desk.call(a_send(body=b"look at this"))
    message_id = sent.fields["msgId"]

    desk.call(
        a_request(RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="g", clientId="c1", msgId=message_id, topic="T")
    )
    (question,) = pop_requests(desk, 2)
    reply(desk, 2, question, b'{"consumeResult":"CR_SUCCESS"}')

    assert bytes(decode_record(question.body).body) == b"look at this"
    assert (question.fields["msgId"], question.fields["brokerName"]) == (message_id, "broker-a")
    assert desk.answers[1][0].body == b'{"consumeResult":"CR_SUCCESS"}'


def test_a_message_that_is_not_there_cannot_be_given_to_anybody(desk: BrokerHarness) -> None:
    """A malformed id is refused, too."""
    ask = RequestCode.CONSUME_MESSAGE_DIRECTLY
    gone = "7F00000100002A9F" + "0000000000FFFFFF"

    (unknown,) = desk.call(a_request(ask, consumerGroup="g", clientId="c1", msgId=gone))
    (malformed,) = desk.call(a_request(ask, consumerGroup="g", clientId="c1", msgId="xyz"))

    assert unknown.code == ResponseCode.SYSTEM_ERROR
    assert malformed.code == ResponseCode.INVALID_PARAMETER


def test_a_batch_is_given_to_nobody(desk: BrokerHarness) -> None:
    """An id that says where a record lies does not say which of its messages is meant."""
    host_batches(desk, "batched")
    position = put_batch(desk, make_items(0, 3), topic="batched")

    (answer,) = desk.call(
        a_request(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup="g",
            clientId="c1",
            msgId=format_message_id(HOST, position),
        )
    )

    assert (answer.code, pop_requests(desk, 2)) == (ResponseCode.SYSTEM_ERROR, [])
    assert "a batch" in (answer.remark or "")


def test_the_progress_of_all_members_is_collected(desk: BrokerHarness) -> None:
    """One answer when the last has spoken; object keys pass through."""
    connect_client(desk, 3, a_heartbeat("c2", consumer_group="g", topics=(T,)))
    table = b'{"messageQueueTable":{{"brokerName":"a","queueId":%d,"topic":"T"}:%d}}'

    desk.call(a_request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="g"))
    (first,), (second,) = pop_requests(desk, 2), pop_requests(desk, 3)
    reply(desk, 2, first, table % (0, 11))
    assert desk.answers[1] == []
    reply(desk, 3, second, table % (1, 22))

    (answer,) = desk.answers[1]
    assert (first.code, first.fields) == (221, {"topic": "T", "group": "g"})
    assert b'"c1":{{"brokerName":"a","queueId":0,"topic":"T"}:11}' in answer.body
    assert b'"c2":{{"brokerName":"a","queueId":1,"topic":"T"}:22}' in answer.body


def test_one_member_can_be_asked_for_its_progress(desk: BrokerHarness) -> None:
    """By its id; one that is not there is an error."""
    connect_client(desk, 3, a_heartbeat("c2", consumer_group="g", topics=(T,)))
    ask = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

    desk.call(a_request(ask, topic="T", group="g", clientAddr="c2"))
    (nobody,) = desk.call(a_request(ask, topic="T", group="g", clientAddr="c9"))

    assert pop_requests(desk, 2) == []
    assert len(pop_requests(desk, 3)) == 1
    assert nobody.code == ResponseCode.SYSTEM_ERROR


def test_a_member_that_talks_nonsense_spoils_only_this_question(desk: BrokerHarness) -> None:
    """The tool hears who it was."""
    desk.call(a_request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="g"))
    (question,) = pop_requests(desk, 2)

    reply(desk, 2, question, b"nonsense")

    (answer,) = desk.answers[1]
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "c1" in (answer.remark or "")


def test_a_tool_gets_one_answer_when_one_of_two_members_talks_nonsense(desk: BrokerHarness) -> None:
    """When both have answered."""
    connect_client(desk, 3, a_heartbeat("c2", consumer_group="g", topics=(T,)))
    desk.call(a_request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="g"))
    (first,), (second,) = pop_requests(desk, 2), pop_requests(desk, 3)

    reply(desk, 2, first, b"nonsense")
    reply(desk, 3, second, b'{"messageQueueTable":{}}')

    assert [answer.code for answer in desk.answers[1]] == [ResponseCode.SYSTEM_ERROR]


def test_a_consumer_that_asks_for_its_queues_is_told_to_choose_them_itself(desk: BrokerHarness) -> None:
    """5.x clients do so when a broker says that it does not know the question."""
    (answer,) = desk.call(a_request(RequestCode.QUERY_ASSIGNMENT, b'{"topic":"T","consumerGroup":"g"}'))

    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
