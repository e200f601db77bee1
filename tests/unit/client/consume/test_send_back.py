"""Failed messages that go back to their broker, or to the retry topic."""

import msgspec
import pytest
from tests.support.deliveries import a_received_message
from tests.support.queue_calls import queue_calls

from holdfast.client.consume.send_back import send_back
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode

QUEUE = MessageQueue("t", "broker-a", 0)


async def test_a_message_is_given_back_by_its_position():
    """With how much later it shall come."""
    async with queue_calls() as (server, calls):
        server.on(RequestCode.CONSUMER_SEND_MSG_BACK)

        await send_back(calls, a_received_message(QUEUE, 5), 3, 16)

        (back,) = server.requests_of(RequestCode.CONSUMER_SEND_MSG_BACK)
        wanted = {"offset": "1005", "group": "g", "delayLevel": "3", "originTopic": "t", "maxReconsumeTimes": "16"}
        assert wanted.items() <= back.fields.items()


@pytest.mark.parametrize(
    ("capabilities", "properties", "is_returned"),
    [("innerBatch", {"UNIQ_KEY": "U5"}, True), ("innerBatch", {}, False), ("", {"UNIQ_KEY": "U5"}, False)],
    ids=["by its id", "without an id", "to a broker of Java's"],
)
async def test_a_message_of_a_batch_is_given_back_where_it_can_be_told_from_the_others(
    capabilities: str, properties: dict[str, str], *, is_returned: bool
):
    """Elsewhere it goes to the retry topic by itself, as it would be refused, or come back with the whole batch."""
    message = msgspec.structs.replace(a_received_message(QUEUE, 5), sys_flag=0xC0, properties=properties)

    async with queue_calls() as (server, calls):
        server.on(RequestCode.CONSUMER_SEND_MSG_BACK)
        server.on(RequestCode.SEND_MESSAGE_V2)
        server.serve_topic("%RETRY%g")
        server.on(RequestCode.HEART_BEAT, capabilities=capabilities)
        await calls.client.beat()

        await send_back(calls, message, 3, 16)

        returned, sent = (
            server.requests_of(code) for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)
        )
        assert (len(returned), len(sent)) == ((1, 0) if is_returned else (0, 1))
        if sent:
            assert (sent[0].fields["b"], sent[0].body, sent[0].fields["f"]) == ("%RETRY%g", b"5", "0")
