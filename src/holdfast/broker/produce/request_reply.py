"""Request and reply: a reply (324, 325) is stored and pushed (326) to the client that waits for it.

The reply names that client in a property. Its sender gets success once the waiting client has accepted the reply. If
the waiting client is connected to another broker, the reply is refused and its sender tries that broker.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.messages.writer import Draft, LogWriter
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.client_calls import ClientCalls
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.stats import BrokerStats
from holdfast.broker.tables.topics import TopicTable
from holdfast.model.errors import LocalProtocolError
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import format_message_id
from holdfast.wire.records.properties import format_properties, parse_properties
from holdfast.wire.requests.send import SendAnswer, SendFields, send_header

_RECEIVER: Final = "REPLY_TO_CLIENT"
_PUSH_TIMEOUT_MS: Final = 3_000


class PushReplyFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 326: the fields of the reply, and where and when it was stored."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    born_host: str
    store_host: str
    store_timestamp: int


class ReplyHandler:
    """Stores replies and pushes them to the clients that wait for them."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        clients: ClientTable,
        client_calls: ClientCalls,
        writer: LogWriter,
        stats: BrokerStats,
        *,
        store_host: bytes,
    ) -> None:
        self._options = options
        self._topics = topics
        self._clients = clients
        self._client_calls = client_calls
        self._writer = writer
        self._stats = stats
        self._store_host = store_host

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.SEND_REPLY_MESSAGE: self.handle_reply, RequestCode.SEND_REPLY_MESSAGE_V2: self.handle_reply}

    def handle_reply(self, request: Request) -> Answer:
        """Store a reply and push it to its receiver (324, 325)."""
        header = send_header(request.command)
        fields = header.fields
        config = self._topics.create_for_send(
            fields.topic, fields.default_topic, fields.default_topic_queue_nums, request.now_ms
        )
        if isinstance(config, Refusal):
            return config
        queue_id = fields.queue_id if 0 <= fields.queue_id < config.write_queues else 0
        properties = parse_properties(fields.properties)
        stored = self._writer.append(self._to_draft(fields, queue_id, properties, request), request.now_ms)
        if isinstance(stored, Refusal):
            return stored
        self._stats.count_puts(fields.topic, 1, len(request.command.body))
        answer = to_fields(
            SendAnswer(
                msg_id=format_message_id(self._store_host, stored.position),
                queue_id=queue_id,
                queue_offset=stored.offset,
            )
        )
        receiver = properties.get(_RECEIVER)
        client = self._clients.find_producer(receiver) if receiver else None
        if client is None:
            return request.answer(
                ResponseCode.SYSTEM_ERROR,
                f"push reply message fail, channel of <{receiver or ''}> not found.",
                fields=answer,
            )

        def reply(pushed: Command | None) -> Answer:
            if pushed is not None and pushed.code == ResponseCode.SUCCESS:
                return request.answer(fields=answer)
            return request.answer(ResponseCode.SYSTEM_ERROR, f"push reply message to {receiver} fail.", fields=answer)

        push = self._to_push(fields, queue_id, properties, request)
        self._client_calls.call(request, client, push, reply, timeout_ms=_PUSH_TIMEOUT_MS)
        return None

    def _to_draft(self, fields: SendFields, queue_id: int, properties: dict[str, str], request: Request) -> Draft:
        try:
            born_host = pack_host(request.peer)
        except LocalProtocolError:  # a peer without a numeric address: a socket of the same machine
            born_host = pack_host("127.0.0.1:0")
        return Draft(
            topic=fields.topic,
            queue_id=queue_id,
            body=request.command.body,
            properties=properties | {"CLUSTER": self._options.cluster},
            born_ms=fields.born_timestamp,
            born_host=born_host,
            flag=fields.flag,
            sys_flag=fields.sys_flag,
            reconsume_times=fields.reconsume_times,
        )

    def _to_push(self, fields: SendFields, queue_id: int, properties: dict[str, str], request: Request) -> Command:
        pushed = PushReplyFields(
            producer_group=fields.producer_group,
            topic=fields.topic,
            default_topic=fields.default_topic,
            default_topic_queue_nums=fields.default_topic_queue_nums,
            queue_id=queue_id,
            sys_flag=fields.sys_flag,
            born_timestamp=fields.born_timestamp,
            flag=fields.flag,
            properties=format_properties(properties | {"PUSH_REPLY_TIME": str(request.now_ms)}),
            reconsume_times=fields.reconsume_times,
            unit_mode=fields.unit_mode,
            born_host=request.peer,
            store_host=self._options.address,
            store_timestamp=request.now_ms,
        )
        return Command(
            code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields=to_fields(pushed), body=request.command.body
        )
