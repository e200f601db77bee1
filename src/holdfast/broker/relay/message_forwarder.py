"""Forwards stored messages to the leader of their logical queue (7021).

    due, or committed ─> the queue is led elsewhere ─> 7021 to its leader, perhaps by way of others ─> stored once

A delayed message that is due, or a half message that was committed, is stored on the broker that accepted it. If its
queue has moved meanwhile, the message is forwarded to the current leader. If no answer comes, it is sent again, even
after a crash. The leader deduplicates it by its name: the position where it was stored first (`forward_dedup.py`). A
forced move may lose the names, and then the message may be stored twice.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.messages.send_gate import SendGate
from holdfast.broker.messages.writer import Draft, LogWriter
from holdfast.broker.relay.forward_dedup import ForwardedNames
from holdfast.broker.relay.relay import Relay
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.model.access.identity import Identity, IdentityKind
from holdfast.model.access.user import CLUSTER_USER
from holdfast.model.errors import LocalProtocolError
from holdfast.model.queue import LogicalQueueId
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.frames.host import format_host, pack_host
from holdfast.wire.records.properties import format_properties, parse_properties
from holdfast.wire.records.record import TRANSACTION_MASK
from holdfast.wire.requests.forward import ForwardFields, ForwardName

_NO_CHANNEL: Final = ChannelId(0)
_NO_HOST: Final = bytes(8)


class Origin(msgspec.Struct, frozen=True):
    """Where a forwarded message was stored first.

    Attributes:
        stream: A delay level, or the half messages.
        position: Its position in this broker's log.
        settled: No message of the stream before this position will be forwarded again.
    """

    stream: str
    position: int
    settled: int


class MessageForwarder(Component):
    """Forwards messages to other leaders, and stores those that other brokers forward here."""

    def __init__(
        self,
        broker: str,
        relay: Relay,
        writer: LogWriter,
        forwarded_names: ForwardedNames,
        gate: SendGate,
    ) -> None:
        self._broker = broker
        self._relay = relay
        self._writer = writer
        self._forwarded_names = forwarded_names
        self._gate = gate

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.FORWARD_MESSAGE: self.handle_forward}

    # Messages of this broker.

    def is_stored(self, origin: Origin) -> bool:
        """Return whether a previous leader stored this message, and its queue has moved here since."""
        return ForwardName(source=self._broker, stream=origin.stream, position=origin.position) in self._forwarded_names

    async def send(self, draft: Draft, origin: Origin) -> bool:
        """Send *draft* to the leader of its queue; return False if it cannot be reached, or refuses."""
        fields = ForwardFields(
            source=self._broker,
            stream=origin.stream,
            position=origin.position,
            settled=origin.settled,
            topic=draft.topic,
            queue_id=draft.queue_id,
            properties=format_properties(draft.properties),
            flag=draft.flag,
            sys_flag=draft.sys_flag & ~TRANSACTION_MASK,
            born_ms=draft.born_ms,
            reconsume_times=draft.reconsume_times,
        )
        command = Command(code=RequestCode.FORWARD_MESSAGE, opaque=1, fields=to_fields(fields), body=draft.body)
        queue_key = (draft.topic, draft.queue_id)
        sender = Identity(IdentityKind.CLUSTER, CLUSTER_USER, format_host(draft.born_host))
        answer = await self._relay.relay_to_leader(command, queue_key, _NO_CHANNEL, sender)
        return answer is not None and answer.code == ResponseCode.SUCCESS

    # Messages of other brokers.

    def handle_forward(self, request: Request) -> Answer:
        """Store a forwarded message (7021), unless it is stored already."""
        fields = request.header_as(ForwardFields)
        if fields in self._forwarded_names:
            if self._forwarded_names.is_pending(fields):
                return Refusal(ResponseCode.SYSTEM_BUSY, "the message is not durable yet; try again")
            return request.answer()
        refusal = self._gate.find_refusal()
        if refusal is not None:
            return refusal
        draft = Draft(
            topic=fields.topic,
            queue_id=LogicalQueueId(fields.queue_id),
            body=bytes(request.command.body),
            properties=parse_properties(fields.properties),
            born_ms=fields.born_ms,
            born_host=_born_host(request.peer),
            flag=fields.flag,
            sys_flag=fields.sys_flag & ~TRANSACTION_MASK,
            reconsume_times=fields.reconsume_times,
        )
        stored = self._writer.append(draft)
        if isinstance(stored, Refusal):
            return stored
        self._forwarded_names.add(fields, stored.position)
        return request.answer()


def _born_host(peer: str) -> bytes:
    """Return the born host: the host of the client that sent the message originally."""
    try:
        return pack_host(peer)
    except LocalProtocolError:
        return _NO_HOST
