"""Handles envelopes of other brokers (7020) as if their clients were connected here.

    envelope ─> a separate channel with a negative id ─> frames are handled, and checked, as those of its client
    answers on that channel ─> collected ─> all present: the answer to the envelope

An envelope that arrives twice, because its sender got no answer, is deduplicated: it gets the answer to the first, or
waits for it. The memory for this is bounded. An answer is forgotten when the sender reports that it has received it.

The broker that relays has found out who its client is, and vouches for that. So only servers may send envelopes. While
access control is off, every broker may, but the client of one that has not proven to be a server is anonymous: brokers
with access control believe this broker.

The answer names the current leader of the queue, so that the relaying broker need not query a name server.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from holdfast.access.door import Door
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request, is_guest
from holdfast.broker.relay.guests import Guest, Guests
from holdfast.broker.relay.relay import Relay
from holdfast.machine.component import Component
from holdfast.machine.effects import CloseChannel, Effect, Fault, Piece, SendBytes
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import IdentityKind
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.leadership import NO_LEADER
from holdfast.model.scope import NO_BROKER
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import decode_command, encode_command, encode_head, response
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.frames.frame import Frame
from holdfast.wire.requests.relay import HOPS_MAX, RelayAnswer, RelayFields, count_frames, split_envelope
from holdfast.wire.requests.table import Relaying, relaying_of

GUESTS_MAX: Final = 100_000
BROKERS_MAX: Final = 64
REMEMBERED_MAX: Final = 4_096


_Remembered = OrderedDict[int, Guest | bytes]
"""By envelope number: the guest while its requests are processed, then the answer."""


class RelayedClients(Component):
    """Clients of other brokers.

    Attributes:
        boot: The incarnation of this process.
        unanswered: Guests with missing answers.
    """

    def __init__(self, guests: Guests, relay: Relay, door: Door, turn: Turn) -> None:
        self.boot = guests.boot
        self._relay = relay
        self._door = door
        self._turn = turn
        self._last_channel = 0
        self.unanswered = guests.unanswered
        self._new_guests: list[Guest] = []
        self._closed_channels: list[ChannelId] = []
        self._remembered: OrderedDict[tuple[str, int], _Remembered] = OrderedDict()

    def __len__(self) -> int:
        return len(self.unanswered)

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.RELAY: self.handle_envelope}

    def handle_envelope(self, request: Request) -> Answer:
        """Handle the requests of an envelope (7020). It is answered when all of them are."""
        fields = request.header_as(RelayFields)
        relayed_by = self._door.identity_of(request.channel, request.command)
        is_proven = relayed_by.kind is IdentityKind.CLUSTER
        if self._door.is_enabled and not is_proven:
            return self._door.refuse("only servers of the cluster may relay requests", request.command.code, relayed_by)
        frames = split_envelope(request.command.body)
        has_sends, expected = _inspect(frames)
        if not 1 <= fields.hops <= HOPS_MAX:
            raise RemoteProtocolError(f"relayed {fields.hops} times, but at most {HOPS_MAX} are allowed")
        envelope_key = ((fields.source, fields.boot), fields.number) if has_sends else None
        if envelope_key is not None:
            if fields.to_boot not in {None, self.boot}:
                return Refusal(
                    ResponseCode.ILLEGAL_OPERATION,
                    "an earlier process of this broker may have stored these sends; the outcome is unknown",
                )
            known = self._find_remembered(envelope_key, fields.settled)
            if isinstance(known, bytes):
                self._answer(request, [known])
                return None
            if known is not None:
                known.waiting.append(request)
                return None
        if fields.queue is not None and self._relay.is_superseded((fields.topic, fields.queue), fields.generation):
            remark = f"queue {fields.queue} of {fields.topic} is not led here in generation {fields.generation}"
            leader = to_fields(self._describe_leader(request))
            return response(request.command, ResponseCode.NOT_LEADER_FOR_QUEUE, remark, fields=leader)
        if len(self.unanswered) >= GUESTS_MAX:
            self._finish(next(iter(self.unanswered.values())), is_complete=False)
        guest = self._open_guest(request, fields, expected, envelope_key)
        sender = self._door.vouch(fields.user if is_proven else "", fields.client)
        self._turn.replay(guest.channel, request.command.body, sender)
        return None

    def _open_guest(
        self, request: Request, fields: RelayFields, expected: int, envelope_key: tuple[tuple[str, int], int] | None
    ) -> Guest:
        self._last_channel -= 1
        guest = Guest(
            channel=ChannelId(self._last_channel),
            peer=fields.client,
            hops=fields.hops,
            waiting=[request],
            missing=expected,
            envelope_key=envelope_key,
        )
        self.unanswered[guest.channel] = guest
        self._new_guests.append(guest)
        if envelope_key is not None:
            self._remember(envelope_key, guest)
        return guest

    # Called by the rest of the broker.

    def drain_opened(self) -> list[tuple[ChannelId, str]]:
        """Return the new channels with their peers, and clear the list."""
        opened, self._new_guests = self._new_guests, []
        return [(guest.channel, guest.peer) for guest in opened]

    def drain_closed(self) -> list[ChannelId]:
        """Return the channels that were closed, and clear the list."""
        closed, self._closed_channels = self._closed_channels, []
        return closed

    def finish_if_answered(self, channel: ChannelId) -> None:
        """Note that the requests on *channel* were accepted: a guest with only one-way requests is then finished."""
        guest = self.unanswered.get(channel)
        if guest is not None and guest.missing <= 0:
            self._finish(guest)

    def drain_effects(self) -> list[Effect]:
        """Drain the effects of the turn, without those for guests.

        The answers to a guest are collected; a fault on its channel goes to the sender of its envelope.
        """
        passed: list[Effect] = []
        for effect in self._turn.drain_effects():
            if not (isinstance(effect, SendBytes | CloseChannel | Fault) and is_guest(effect.channel)):
                passed.append(effect)
                continue
            guest = self.unanswered.get(effect.channel)
            if guest is None:
                continue  # The guest has left, like a client whose channel has closed.
            if isinstance(effect, SendBytes):
                guest.pieces += effect.pieces
                guest.missing -= count_frames(effect.pieces)
                if guest.missing <= 0:
                    self._finish(guest)
            elif isinstance(effect, CloseChannel):
                self._finish(guest, is_complete=False)
            else:
                self._finish(guest, is_complete=False)
                passed.append(Fault(guest.waiting[0].channel, effect.error))
        return passed

    # Finished guests.

    def _finish(self, guest: Guest, *, is_complete: bool = True) -> None:
        """Answer the envelope. If answers are missing, refuse it: the outcome of its requests is unknown."""
        del self.unanswered[guest.channel]
        self._closed_channels.append(guest.channel)
        if guest.envelope_key is not None:
            self._remember_answer(guest, is_complete=is_complete)
        for request in guest.waiting:
            if is_complete:
                self._answer(request, guest.pieces)
            elif not request.command.is_one_way:
                refusal = response(request.command, ResponseCode.SYSTEM_ERROR, "not all requests were answered")
                self._turn.send(request.channel, [encode_command(refusal)])

    def _answer(self, request: Request, pieces: list[Piece]) -> None:
        if request.command.is_one_way:
            return
        answer = response(request.command, fields=to_fields(self._describe_leader(request)))
        head = encode_head(answer, sum(map(len, pieces)))
        self._turn.send(request.channel, [head, *pieces])

    def _describe_leader(self, request: Request) -> RelayAnswer:
        """Return the fields of the answer to an envelope: this process, and the leader of the queue."""
        fields = request.header_as(RelayFields)
        leader, address = NO_LEADER, ""
        if fields.queue is not None:
            leader, address = self._relay.find_leader((fields.topic, fields.queue))
        if leader.broker == NO_BROKER:
            return RelayAnswer(boot=self.boot)
        return RelayAnswer(boot=self.boot, leader=leader.broker, generation=leader.generation, address=address)

    # Remembered answers.

    def _find_remembered(self, envelope_key: tuple[tuple[str, int], int], settled: int) -> Guest | bytes | None:
        broker, number = envelope_key
        remembered = self._remembered.get(broker)
        if remembered is None:
            return None
        self._remembered.move_to_end(broker)
        while remembered and next(iter(remembered)) < settled:
            remembered.popitem(last=False)
        return remembered.get(number)

    def _remember(self, envelope_key: tuple[tuple[str, int], int], guest: Guest) -> None:
        broker, number = envelope_key
        remembered = self._remembered.setdefault(broker, OrderedDict())
        remembered[number] = guest
        if len(remembered) > REMEMBERED_MAX:
            remembered.popitem(last=False)
        if len(self._remembered) > BROKERS_MAX:
            self._remembered.popitem(last=False)

    def _remember_answer(self, guest: Guest, *, is_complete: bool) -> None:
        assert guest.envelope_key is not None
        broker, number = guest.envelope_key
        remembered = self._remembered.get(broker, OrderedDict())
        if remembered.get(number) is guest:
            if is_complete:
                remembered[number] = b"".join(guest.pieces)
            else:
                del remembered[number]


def _inspect(frames: list[Frame]) -> tuple[bool, int]:
    """Return whether an envelope holds sends, and how many of its requests expect an answer.

    Raises:
        RemoteProtocolError: The envelope holds a frame that may not be relayed.
    """
    commands = [decode_command(frame) for frame in frames]
    codes = {command.code for command in commands}
    kinds = {code: relaying_of(code) for code in codes}
    if unknown := [code for code, kind in kinds.items() if kind is Relaying.NEVER]:
        raise RemoteProtocolError(f"requests of code {min(unknown)} must not be relayed")
    if any(command.is_response for command in commands):
        raise RemoteProtocolError("answers must not be relayed")
    return Relaying.SEND in kinds.values(), sum(1 for command in commands if not command.is_one_way)
