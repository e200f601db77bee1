"""Messages of the broker's own making for logical queues that another broker leads (7021).

    due, or committed ─> the queue is led elsewhere ─> 7021 to its leader, by way of whoever knows ─> taken, once

A delayed message that is due, or a half message that was committed, stays where it was taken until then. Its queue may
have moved meanwhile: then it is sent to whoever leads it now. One that is not answered is sent again, also after a
crash: it has a name, the place where it stood, by which the leader recognises what it has (`forwarded.py`). After a
forced move nobody may know any more: then it may come twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.messages.writer import Draft, LogWriter
from holdfast.broker.relay.forward_dedup import Forwarded
from holdfast.broker.relay.relay import Relaying
from holdfast.machine.events import ChannelId
from holdfast.model.errors import LocalProtocolError
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.frames.host import format_host, pack_host
from holdfast.wire.records.properties import format_properties, parse_properties
from holdfast.wire.records.record import TRANSACTION_MASK
from holdfast.wire.requests.forward import ForwardFields, ForwardName

_NO_CHANNEL: Final = ChannelId(0)
_NO_HOST: Final = bytes(8)


class Origin(msgspec.Struct, frozen=True):
    """Where a message of our own making stood before.

    Attributes:
        stream: A level of the schedule, or the half messages.
        position: In our log.
        settled: Nothing of the stream before this position will be forwarded again.
    """

    stream: str
    position: int
    settled: int


class Forwards:
    """The way of our own messages to other leaders, and of others' to us."""

    def __init__(
        self,
        broker: str,
        relaying: Relaying,
        writer: LogWriter,
        forwarded: Forwarded,
        find_refusal: Callable[[int], Refusal | None],
    ) -> None:
        self._broker = broker
        self._relaying = relaying
        self._writer = writer
        self._forwarded = forwarded
        self._find_refusal = find_refusal

    def handlers(self) -> Handlers:
        """Return what this room answers."""
        return {RequestCode.FORWARD_MESSAGE: self.take}

    # Ours.

    def is_taken(self, origin: Origin) -> bool:
        """Return whether a leader before us took a message of ours, and its queue came back since."""
        return ForwardName(source=self._broker, stream=origin.stream, position=origin.position) in self._forwarded

    def send(self, draft: Draft, origin: Origin) -> Procedure[bool]:
        """Send *draft* to the leader of its queue; False when that cannot be reached, or does not take it."""
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
        place = (draft.topic, draft.queue_id)
        answer = yield from self._relaying.ask_leader(command, place, _NO_CHANNEL, format_host(draft.born_host))
        return answer is not None and answer.code == ResponseCode.SUCCESS

    # Others'.

    def take(self, request: Request) -> Answer:
        """Answer 7021: store a message, unless it is here."""
        fields = from_fields(ForwardFields, request.command.fields)
        if fields in self._forwarded:
            if self._forwarded.is_under_way(fields):
                return Refusal(ResponseCode.SYSTEM_BUSY, "it is on its way to the disk; try again")
            return request.answer()
        refusal = self._find_refusal(request.now_ms)
        if refusal is not None:
            return refusal
        draft = Draft(
            topic=fields.topic,
            queue_id=fields.queue_id,
            body=bytes(request.command.body),
            properties=parse_properties(fields.properties),
            born_ms=fields.born_ms,
            born_host=_born_host(request.peer),
            flag=fields.flag,
            sys_flag=fields.sys_flag & ~TRANSACTION_MASK,
            reconsume_times=fields.reconsume_times,
        )
        stored = self._writer.append(draft, request.now_ms)
        if isinstance(stored, Refusal):
            return stored
        self._forwarded.note(fields, stored.position, request.now_ms)
        return request.answer()


def _born_host(peer: str) -> bytes:
    """Return the host of who sent the message in the first place."""
    try:
        return pack_host(peer)
    except LocalProtocolError:
        return _NO_HOST
