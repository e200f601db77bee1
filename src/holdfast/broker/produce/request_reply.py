"""Request and reply: a reply (324, 325) is stored and pushed (326) to the client that waits for it.

The reply names that client in a property. Its sender gets success once the waiting client has accepted the reply. If
the waiting client is connected to another broker, the reply is refused and its sender tries that broker.
"""

from __future__ import annotations

from typing import Final

from holdfast.broker.flow.awaitables import ClientCall
from holdfast.broker.flow.refusals import refuse_on_error
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.messages.writer import Draft, LogWriter
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.auto_create_guard import AutoCreateGuard
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.stats import BrokerStats
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.model.errors import LocalProtocolError, PeerFailed
from holdfast.model.queue import LogicalQueueId
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import format_message_id
from holdfast.wire.records.properties import format_properties, parse_properties
from holdfast.wire.requests.send import PushedReplyFields, SendAnswer, SendFields

_RECEIVER: Final = "REPLY_TO_CLIENT"
_PUSH_TIMEOUT_MS: Final = 3_000


class ReplyHandler(Component):
    """Stores replies and pushes them to the clients that wait for them."""

    def __init__(
        self,
        options: BrokerOptions,
        guard: AutoCreateGuard,
        clients: ClientTable,
        writer: LogWriter,
        stats: BrokerStats,
        turn: Turn,
        *,
        store_host: bytes,
    ) -> None:
        self._turn = turn
        self._options = options
        self._guard = guard
        self._clients = clients
        self._writer = writer
        self._stats = stats
        self._store_host = store_host

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        handle = refuse_on_error(self.handle_reply)
        return {RequestCode.SEND_REPLY_MESSAGE: handle, RequestCode.SEND_REPLY_MESSAGE_V2: handle}

    async def handle_reply(self, request: Request) -> Answer:
        """Store a reply and push it to its receiver (324, 325)."""
        fields = request.header_as(SendFields)
        config = self._guard.create_for_send(fields.topic, fields.default_topic, fields.default_topic_queue_nums)
        if isinstance(config, Refusal):
            return config
        queue_id = LogicalQueueId(fields.queue_id if 0 <= fields.queue_id < config.write_queues else 0)
        properties = parse_properties(fields.properties)
        stored = self._writer.append(self._to_draft(fields, queue_id, properties, request))
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
        push = self._to_push(fields, queue_id, properties, request)
        if await _is_accepted(client.call(push, _PUSH_TIMEOUT_MS)):
            return request.answer(fields=answer)
        return request.answer(ResponseCode.SYSTEM_ERROR, f"push reply message to {receiver} fail.", fields=answer)

    def _to_draft(
        self, fields: SendFields, queue_id: LogicalQueueId, properties: dict[str, str], request: Request
    ) -> Draft:
        try:
            born_host = pack_host(request.peer)
        except LocalProtocolError:  # a peer without a numeric address: a socket of the same machine
            born_host = pack_host("127.0.0.1:0")
        return Draft(
            topic=fields.topic,
            queue_id=LogicalQueueId(queue_id),
            body=request.command.body,
            properties=properties | {"CLUSTER": self._options.cluster},
            born_ms=fields.born_timestamp,
            born_host=born_host,
            flag=fields.flag,
            sys_flag=fields.sys_flag,
            reconsume_times=fields.reconsume_times,
        )

    def _to_push(
        self, fields: SendFields, queue_id: LogicalQueueId, properties: dict[str, str], request: Request
    ) -> Command:
        pushed = PushedReplyFields(
            producer_group=fields.producer_group,
            topic=fields.topic,
            default_topic=fields.default_topic,
            default_topic_queue_nums=fields.default_topic_queue_nums,
            queue_id=queue_id,
            sys_flag=fields.sys_flag,
            born_timestamp=fields.born_timestamp,
            flag=fields.flag,
            properties=format_properties(properties | {"PUSH_REPLY_TIME": str(self._turn.now_ms)}),
            reconsume_times=fields.reconsume_times,
            unit_mode=fields.unit_mode,
            born_host=request.peer,
            store_host=self._options.address,
            store_timestamp=self._turn.now_ms,
        )
        return Command(
            code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields=to_fields(pushed), body=request.command.body
        )


async def _is_accepted(push: ClientCall) -> bool:
    try:
        answer = await push
    except PeerFailed:
        return False
    return answer.code == ResponseCode.SUCCESS
