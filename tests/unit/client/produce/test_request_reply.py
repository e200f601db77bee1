"""Requests that wait for another client's reply."""

import asyncio
import zlib

import msgspec
import pytest
from tests.support.deliveries import a_received_message

from holdfast.client.cluster.server_request import ServerRequest, decode_request
from holdfast.client.produce.request_reply import PendingRequests, reply_to, request_properties
from holdfast.model.errors import LocalProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.command import Command

REQUEST = a_received_message(MessageQueue("t", "b", 0), 5)


def pushed(correlation_id: str, body: bytes = b"reply", sys_flag: int = 0) -> ServerRequest:
    """What a broker pushes, with the fields that were recorded."""
    fields = {
        "topic": "C1_REPLY_TOPIC",
        "queueId": "0",
        "sysFlag": str(sys_flag),
        "bornTimestamp": "1",
        "storeTimestamp": "2",
        "bornHost": "127.0.0.1:45554",
        "storeHost": "nonsense",
        "properties": f"CORRELATION_ID\x01{correlation_id}\x02",
    }
    request = decode_request("address", Command(code=326, opaque=9, fields=fields, body=body))
    assert request is not None
    return request


async def test_a_reply_finds_who_asked():
    """By its correlation id; one that nobody waits for is acknowledged and dropped."""
    desk = PendingRequests()
    (one, first), (two, second) = desk.begin(), desk.begin()

    answer = await desk.handle_reply(pushed(two, zlib.compress(b"two"), 0x301))
    await desk.handle_reply(pushed(one))
    await desk.handle_reply(pushed(one))
    await desk.handle_reply(pushed("unknown"))

    assert ((await first).body, (await second).body) == (b"reply", b"two")
    assert ((await second).born_host, (await second).store_host) == (bytes.fromhex("7f0000010000b1f2"), bytes(8))
    assert (answer.code, answer.opaque, answer.is_response) == (0, 9, True)
    await asyncio.sleep(0)
    assert not desk._pending


def test_a_request_says_whom_to_answer():
    """And for how long."""
    assert request_properties("id", "me", 1.5) == {"CORRELATION_ID": "id", "REPLY_TO_CLIENT": "me", "TTL": "1500"}


def test_a_reply_goes_to_the_reply_topic_of_the_requests_cluster():
    """With the request's own marks."""
    asked = {"CLUSTER": "C1", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "me", "TTL": "1500", "KEYS": "k"}
    request = msgspec.structs.replace(REQUEST, properties=asked)

    message, properties = reply_to(request, b"body")

    assert (message.topic, message.body) == ("C1_REPLY_TOPIC", b"body")
    assert properties == {"CORRELATION_ID": "id", "REPLY_TO_CLIENT": "me", "TTL": "1500", "MSG_TYPE": "reply"}


def test_what_is_no_request_cannot_be_replied_to():
    """Nobody waits."""
    with pytest.raises(LocalProtocolError, match="no request"):
        reply_to(REQUEST, b"")
