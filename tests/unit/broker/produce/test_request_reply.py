import pytest
from tests.support.broker_clients import a_heartbeat, connect_client, pop_requests
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send

from holdfast.broker.flow.rpc import TIMER
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import RESPONSE, Command
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import decode_records

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
def desk() -> BrokerHarness:
    return BrokerHarness()


def a_reply(receiver: str = "asker") -> Command:
    properties = f"MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01{receiver}\x02CORRELATION_ID\x01c-1\x02TTL\x013000\x02"
    return a_send(REPLY_TOPIC, code=RequestCode.SEND_REPLY_MESSAGE_V2, body=b"the answer", i=properties, opaque=5)


def test_a_reply_reaches_the_client_that_waits_for_it(desk: BrokerHarness) -> None:
    """With everything that lets it find its question; it is stored as well."""
    connect_client(desk, 2, a_heartbeat("asker", producer_group="p"))

    assert desk.call(a_reply()) == []

    (push,) = pop_requests(desk, 2)
    properties = parse_properties(push.fields["properties"])
    assert (push.code, push.is_one_way, push.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, False, b"the answer")
    assert (properties["CORRELATION_ID"], properties["MSG_TYPE"]) == ("c-1", "reply")
    assert properties["PUSH_REPLY_TIME"] == push.fields["storeTimestamp"] == str(desk.now_ms)
    assert (push.fields["bornHost"], push.fields["storeHost"]) == ("10.0.0.1:5000", desk.options.address)
    (stored,) = desk.call(a_pull(REPLY_TOPIC))
    assert [bytes(record.body) for record in decode_records(stored.body)] == [b"the answer"]


def test_the_sender_hears_when_the_reply_was_taken(desk: BrokerHarness) -> None:
    """Not before, and where it is stored."""
    connect_client(desk, 2, a_heartbeat("asker", producer_group="p"))
    desk.call(a_reply())
    (push,) = pop_requests(desk, 2)

    desk.call(Command(code=0, opaque=push.opaque, flag=RESPONSE), channel=2)

    (answer,) = desk.answers[1]
    assert (answer.code, answer.opaque) == (0, 5)
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0")


def test_a_reply_for_somebody_who_is_not_here_is_refused(desk: BrokerHarness) -> None:
    """The sender tries another broker; the fields are there all the same, clients read them."""
    (answer,) = desk.call(a_reply("stranger"))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "push reply message fail, channel of <stranger> not found."
    assert "msgId" in answer.fields


@pytest.mark.parametrize("how", ["refuses", "goes away", "says nothing"])
def test_a_reply_that_was_not_taken_failed(desk: BrokerHarness, how: str) -> None:
    """Whatever the reason, the sender hears of it once."""
    connect_client(desk, 2, a_heartbeat("asker", producer_group="p"))
    desk.call(a_reply())
    (push,) = pop_requests(desk, 2)

    if how == "refuses":
        desk.call(Command(code=1, opaque=push.opaque, flag=RESPONSE), channel=2)
    elif how == "goes away":
        desk.disconnect(2)
    else:
        desk.pass_time(3_000, TIMER)

    (answer,) = desk.answers[1]
    assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_ERROR, 5)
