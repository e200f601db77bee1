"""Transactions whose half message is on one broker, and whose producers are connected to others.

    decision (37) at a broker without the half ─> found by its id ─> relayed to the broker that has it
    check (39) of a broker without producers ─> a broker that has some ─> sent to one of them
    committed message for another leader's queue ─> forwarded to that leader

A half message stays on the broker that accepted it. Later its producer may know another broker only, because the queue
moved, or because a different broker relays for it now. Unused while there is no static topic.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from holdfast.access.door import Door
from holdfast.broker.consume.delivered_ranges import DeliveredRanges
from holdfast.broker.flow.awaitables import PeerCall, Procedure
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.messages.record_lookup import properties_of
from holdfast.broker.messages.writer import Draft
from holdfast.broker.relay.group_gossip import GroupMembers
from holdfast.broker.relay.message_forwarder import MessageForwarder, Origin
from holdfast.broker.relay.record_locator import RecordLocator
from holdfast.broker.tables.clients import Client, ClientTable
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import IdentityKind
from holdfast.model.access.resource import Action
from holdfast.model.errors import CorruptRecord, PeerFailed
from holdfast.model.property_names import PRODUCER_GROUP
from holdfast.model.topic import HALF_TOPIC
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.record import decode_record
from holdfast.wire.requests.offsets import CLIENT_FIELD, USER_FIELD, EndTransactionFields
from holdfast.wire.requests.permissions import for_topic

_RECENT_MAX: Final = 1_024  # committed messages that may be forwarded again: their decisions may not be durable yet


class RemoteTransactions(Component):
    """Connects half messages with producers and leaders at other brokers."""

    def __init__(
        self,
        clients: ClientTable,
        members: GroupMembers,
        record_locator: RecordLocator,
        delivered: DeliveredRanges,
        view: ClusterView,
        forwarder: MessageForwarder,
        door: Door,
        turn: Turn,
    ) -> None:
        self._clients = clients
        self._door = door
        self._members = members
        self._record_locator = record_locator
        self._delivered = delivered
        self._view = view
        self._forwarder = forwarder
        self._turn = turn
        self._recent: deque[int] = deque(maxlen=_RECENT_MAX)

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.CHECK_TRANSACTION_STATE: self.handle_check}

    # Decisions.

    def is_forwarded(self, first: int) -> bool:
        """Return whether an earlier leader stored the committed message of the half first stored at *first*."""
        return self._forwarder.is_stored(self._origin(first))

    def forward(self, draft: Draft, first: int) -> Procedure[bool]:
        """Forward a committed message to the leader of its logical queue; return False if it is not stored there.

        The leader deduplicates it by the position where its half message was first stored, so repeating is safe.
        """
        origin = self._origin(first)
        self._recent.append(first)
        return self._forwarder.send(draft, origin)

    def _origin(self, first: int) -> Origin:
        return Origin("halves", first, min([first, *self._recent]))

    def _find_delivered_id(self, request: Request, fields: EndTransactionFields) -> str | None:
        """Return the id of the half message that the client sent through this broker to that position, or None."""
        known = self._delivered.find(request.channel, fields.commit_log_offset)
        return next((message_id for topic, message_id in known if topic == HALF_TOPIC), None)

    async def relay_decision(self, request: Request, fields: EndTransactionFields) -> Answer:
        """Relay a decision to the broker of the half message; None if no other has it, or it was relayed before."""
        message_id = fields.transaction_id or fields.msg_id or self._find_delivered_id(request, fields)
        if not message_id or fields.is_logical is False:
            return None
        found = await self._record_locator.find(fields.commit_log_offset, message_id)
        if found is None or found.address is None or found.record.topic != HALF_TOPIC:
            return None
        sender = request.sender
        relayed_fields = {"lo": "false", USER_FIELD: sender.proven_user, CLIENT_FIELD: sender.address}
        relayed = Command(code=RequestCode.END_TRANSACTION, fields=request.command.fields | relayed_fields)
        try:
            answer = await PeerCall(found.address, relayed)
        except PeerFailed as error:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"the broker of the half message does not answer: {error}")
        return request.answer(answer.code, answer.remark)

    def find_refusal(self, request: Request, fields: EndTransactionFields, topic: str) -> Refusal | None:
        """Return why the sender of a decision may not decide about a message to *topic*, or None.

        The topic that the request names proves nothing: its half message may be for another topic.
        """
        sender = request.identity
        if sender.kind is IdentityKind.CLUSTER and fields.user is not None:  # Another broker relays it.
            sender = self._door.vouch(fields.user, fields.client or "")
        return self._door.find_refusal(sender, (for_topic(topic, frozenset({Action.PUB})),), request.command.code)

    # Checks.

    def find_producers(self, group: str, topic: str) -> list[Client]:
        """Return the producers of *group* connected here that may send to *topic*: a check contains the message."""
        needed = for_topic(topic, frozenset({Action.PUB}))
        return [client for client in self._clients.producers(group) if self._door.permits(client.sender, needed)]

    def find_broker(self, group: str) -> str | None:
        """Return a broker that reported producers of *group*, or None."""
        return self._members.find_producer_broker(group)

    def send_check(self, broker: str, check: Command) -> None:
        """Send a check to a broker that has producers. If that fails, the check is repeated when it is due again."""
        self._turn.spawn(self._send_check(broker, check))

    async def _send_check(self, broker: str, check: Command) -> None:
        try:
            address = await self._view.find_address(broker)
            await PeerCall(address, check)
        except PeerFailed:
            return

    def handle_check(self, request: Request) -> Answer:
        """Send the check of another broker (39) to a producer connected here, which sends its decision here."""
        check = request.command
        try:
            record = decode_record(check.body)
            group = properties_of(record).get(PRODUCER_GROUP, "")
        except CorruptRecord as error:
            return Refusal(ResponseCode.INVALID_PARAMETER, f"no half message: {error}")
        producers = self.find_producers(group, record.topic)
        if not producers:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"no producer of {group} is connected")
        client = producers[check.opaque % len(producers)]
        client.notify(self._turn, msgspec.structs.replace(check))
        return request.answer()
