"""Transactions whose half message is on one broker, and whose producers are connected to others.

    decision (37) at a broker without the half ─> found by its id ─> passed on to the broker that has it
    question (39) of a broker without producers ─> a broker that has some ─> put to one of them
    committed message of another leader's queue ─> sent to that leader

A half message stays where it was taken; its producer may since know another broker only, as the queue moved, or as the
broker that passed everything on for it is another one. Nothing happens here while there is no static topic.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from holdfast.broker.consume.delivered_ranges import HandedOut
from holdfast.broker.flow.awaitables import PeerCall, Procedure
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.flow.turn import Errands
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.messages.record_lookup import properties_of
from holdfast.broker.messages.writer import Draft
from holdfast.broker.relay.group_gossip import GroupMembers
from holdfast.broker.relay.message_forwarder import Forwards, Origin
from holdfast.broker.relay.record_locator import Whereabouts
from holdfast.broker.tables.clients import ClientTable
from holdfast.machine.effects import SendBytes
from holdfast.model.errors import CorruptRecord, PeerFailed
from holdfast.model.property_names import PRODUCER_GROUP
from holdfast.model.topic import HALF_TOPIC
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command
from holdfast.wire.records.record import decode_record
from holdfast.wire.requests.offsets import EndTransactionFields

_RECENT_MAX: Final = 1_024  # committed messages that may have to be sent again: their decisions are hardly on disk


class FarTransactions:
    """The way between a half message and its producers."""

    def __init__(
        self,
        clients: ClientTable,
        members: GroupMembers,
        whereabouts: Whereabouts,
        handed: HandedOut,
        view: ClusterView,
        forwards: Forwards,
        errands: Errands,
    ) -> None:
        self._clients = clients
        self._members = members
        self._whereabouts = whereabouts
        self._handed = handed
        self._view = view
        self._forwards = forwards
        self._errands = errands
        self._recent: deque[int] = deque(maxlen=_RECENT_MAX)

    def handlers(self) -> Handlers:
        """Return what this room answers."""
        return {RequestCode.CHECK_TRANSACTION_STATE: self.put_question}

    @property
    def now_ms(self) -> int:
        """The time, for work that has waited."""
        return self._errands.now_ms

    # Decisions.

    def is_forwarded(self, first: int) -> bool:
        """Return whether the message of a half message, first stored at *first*, was taken by who led its queue."""
        return self._forwards.is_taken(self._origin(first))

    def forward(self, draft: Draft, first: int) -> Procedure[bool]:
        """Send a committed message to whoever leads its logical queue; False when that does not take it now.

        However often it is sent, it is taken once: it is known by where its half message was first stored.
        """
        origin = self._origin(first)
        self._recent.append(first)
        return self._forwards.send(draft, origin)

    def _origin(self, first: int) -> Origin:
        return Origin("halves", first, min([first, *self._recent]))

    def _find_handed_id(self, request: Request, fields: EndTransactionFields) -> str | None:
        """Return the id of the half message at that position that its sender sent by way of this broker, if any."""
        known = self._handed.find(request.channel, fields.commit_log_offset)
        return next((message_id for topic, message_id in known if topic == HALF_TOPIC), None)

    def pass_on(self, request: Request, fields: EndTransactionFields) -> Procedure[Answer]:
        """Let the broker that has the half message decide it; None when that is nobody's, or was passed on before."""
        message_id = fields.transaction_id or fields.msg_id or self._find_handed_id(request, fields)
        if not message_id or fields.is_logical is False:
            return None
        found = yield from self._whereabouts.find(fields.commit_log_offset, message_id)
        if found is None or found.address is None or found.record.topic != HALF_TOPIC:
            return None
        passed = Command(code=RequestCode.END_TRANSACTION, fields=request.command.fields | {"lo": "false"})
        try:
            answer: Command = yield PeerCall(found.address, passed)
        except PeerFailed as error:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"the broker of the half message does not answer: {error}")
        return request.answer(answer.code, answer.remark)

    # Questions.

    def find_broker(self, group: str) -> str | None:
        """Return a broker to which producers of *group* are connected, by its own word."""
        return self._members.find_producing(group)

    def ask(self, broker: str, question: Command) -> None:
        """Let a broker put a question to a producer. If that fails, it is asked again when its time comes again."""
        self._errands.work.append(self._ask(broker, msgspec.structs.replace(question, flag=0)))

    def _ask(self, broker: str, question: Command) -> Procedure[None]:
        try:
            address = yield from self._view.find_address(broker)
            yield PeerCall(address, question)
        except PeerFailed:
            return

    def put_question(self, request: Request) -> Answer:
        """Answer 39 of another broker: one of the producers here is asked, and answers here."""
        question = request.command
        try:
            group = properties_of(decode_record(question.body)).get(PRODUCER_GROUP, "")
        except CorruptRecord as error:
            return Refusal(ResponseCode.INVALID_PARAMETER, f"no half message: {error}")
        producers = self._clients.producers(group)
        if not producers:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"no producer of {group} is connected")
        client = producers[question.opaque % len(producers)]
        passed = msgspec.structs.replace(question, flag=ONE_WAY, serializer=client.serializer)
        request.effects.append(SendBytes(client.channel, [encode_command(passed)]))
        return request.answer()
