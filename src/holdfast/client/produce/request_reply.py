"""Requests that wait for a reply of another client, carried by ordinary messages.

    requester ── message with a correlation id and our client id ──> topic ──> consumer
    requester <── pushed by the broker (326) <── reply topic <── reply with the same id (325)

A reply that arrives after the timeout is dropped.
"""

from __future__ import annotations

import asyncio
import uuid

from holdfast.client.cluster.server_request import ServerRequest
from holdfast.client.messages.unpacking import LazyProperties
from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError, LocalProtocolError
from holdfast.model.message import Message, ReceivedMessage
from holdfast.model.queue import LogicalOffset, MessageQueue, Position
from holdfast.wire.frames.command import Command, response
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.compression import CODEC_MASK, COMPRESSED, decompress
from holdfast.wire.requests.send import PushedReplyFields

_REPLY = "reply"
_REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
_NO_HOST = bytes(8)


class PendingRequests:
    """The pending requests of one producer."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def begin(self) -> tuple[str, asyncio.Future[ReceivedMessage]]:
        """Return a new correlation id and the future of its reply."""
        correlation_id = str(uuid.uuid4())
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._pending[correlation_id] = reply
        reply.add_done_callback(lambda _: self._pending.pop(correlation_id, None))
        return correlation_id, reply

    async def handle_reply(self, request: ServerRequest) -> Command:
        """Complete the request that a pushed reply (326) answers, if it is still pending."""
        message = _read_reply(request.header_as(PushedReplyFields), request.command.body)
        pending = self._pending.get(message.properties.get(names.CORRELATION_ID, ""))
        if pending is not None and not pending.done():
            pending.set_result(message)
        return response(request.command)


def _read_reply(fields: PushedReplyFields, body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        fields.topic,
        decompress(body, fields.sys_flag),
        MessageQueue(fields.topic, "", fields.queue_id),
        LogicalOffset(0),
        LazyProperties(fields.properties.encode()),
        fields.born_timestamp,
        fields.store_timestamp,
        0,
        fields.flag,
        fields.sys_flag & ~(COMPRESSED | CODEC_MASK),
        Position(0),
        _host(fields.born_host),
        _host(fields.store_host),
    )


def _host(text: str) -> bytes:
    try:
        return pack_host(text)
    except HoldfastError:
        return _NO_HOST


def request_properties(correlation_id: str, client_id: str, timeout_s: float) -> dict[str, str]:
    """Return the properties that make a message a request."""
    return {
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: client_id,
        names.TIME_TO_LIVE: str(int(timeout_s * 1000)),
    }


def reply_to(request: ReceivedMessage, body: bytes) -> tuple[Message, dict[str, str]]:
    """Return the reply to *request* and the properties that route it back.

    Raises:
        LocalProtocolError: *request* does not ask for a reply.
    """
    routing = {
        name: request.properties.get(name, "")
        for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TIME_TO_LIVE)
    }
    cluster = request.properties.get(names.CLUSTER)
    if not cluster or not routing[names.CORRELATION_ID] or not routing[names.REPLY_TO_CLIENT]:
        raise LocalProtocolError(f"message {request.message_id} is no request: no client waits for a reply to it")
    return Message(cluster + _REPLY_TOPIC_SUFFIX, body), routing | {names.MESSAGE_TYPE: _REPLY}
