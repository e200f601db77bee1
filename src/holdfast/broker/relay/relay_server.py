"""Handles envelopes of other brokers (7020) as if their clients were connected here.

    envelope ─> a separate channel with a negative id ─> frames are handled as those of any client
    answers on that channel ─> collected ─> all present: the answer to the envelope

An envelope that arrives twice, because its sender got no answer, is deduplicated: it gets the answer to the first, or
waits for it. The memory for this is bounded. An answer is forgotten when the sender reports that it has received it.

The answer names the current leader of the queue, so that the relaying broker need not query a name server.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.flow.turn import Turn
from holdfast.machine.effects import CloseChannel, Effect, Fault, Piece, SendBytes
from holdfast.machine.events import ChannelId
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.leadership import NO_LEADER, Leader
from holdfast.model.scope import NO_BROKER
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import decode_command, encode_command, encode_head, response
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.frames.frame import Frame
from holdfast.wire.requests.relay import HOPS_MAX, RelayAnswer, RelayFields, count_frames, split_envelope

RELAYED_SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
RELAYED: Final = RELAYED_SENDS | {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.FORWARD_MESSAGE,
}
"""The requests that an envelope may hold."""

GUESTS_MAX: Final = 100_000
BROKERS_MAX: Final = 64
REMEMBERED_MAX: Final = 4_096


class _Guest(msgspec.Struct, eq=False):
    """The client of one envelope.

    Attributes:
        waiting: The envelopes to answer: the first, and every repetition that arrived before it was answered.
        missing: How many answers are still to come.
        envelope_key: The key under which its answer is remembered; None if the envelope holds no sends.
    """

    channel: ChannelId
    peer: str
    hops: int
    waiting: list[Request]
    missing: int
    envelope_key: tuple[tuple[str, int], int] | None
    pieces: list[Piece] = []


_Remembered = OrderedDict[int, _Guest | bytes]
"""By envelope number: the guest while its requests are processed, then the answer."""


class RelayedClients:
    """Clients of other brokers.

    Attributes:
        boot: The incarnation of this process.
        unanswered: Guests with missing answers.
        leader_of: Returns the known leader of a logical queue, and its address.
        is_superseded: Returns whether a queue is led here in an older generation than another broker knows.
    """

    def __init__(self, boot: int, turn: Turn) -> None:
        self.boot = boot
        self.leader_of: Callable[[str, int], tuple[Leader, str]] = lambda _topic, _queue: (NO_LEADER, "")
        self.is_superseded: Callable[[str, int, int], bool] = lambda _topic, _queue, _generation: False
        self._turn = turn
        self._last_channel = 0
        self.unanswered: OrderedDict[ChannelId, _Guest] = OrderedDict()
        self._new_guests: list[_Guest] = []
        self._closed_channels: list[ChannelId] = []
        self._remembered: OrderedDict[tuple[str, int], _Remembered] = OrderedDict()

    def __len__(self) -> int:
        return len(self.unanswered)

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.RELAY: self.handle_envelope}

    def handle_envelope(self, request: Request) -> Answer:
        """Handle the requests of an envelope (7020). It is answered when all of them are."""
        fields = from_fields(RelayFields, request.command.fields)
        frames = split_envelope(request.command.body)
        codes, expected = _inspect(frames)
        if not 1 <= fields.hops <= HOPS_MAX:
            raise RemoteProtocolError(f"relayed {fields.hops} times, but at most {HOPS_MAX} are allowed")
        envelope_key = ((fields.source, fields.boot), fields.number) if codes & RELAYED_SENDS else None
        if envelope_key is not None:
            if fields.to_boot not in {None, self.boot}:
                return Refusal(
                    ResponseCode.ILLEGAL_OPERATION,
                    "an earlier process of this broker may have stored these sends; the outcome is unknown",
                )
            known = self._find_remembered(envelope_key, fields.settled)
            if isinstance(known, bytes):
                self._answer(request, [known], request.effects)
                return None
            if known is not None:
                known.waiting.append(request)
                return None
        if self.is_superseded(fields.topic, fields.queue, fields.generation):
            remark = f"queue {fields.queue} of {fields.topic} is not led here in generation {fields.generation}"
            leader = to_fields(self._describe_leader(request))
            return response(request.command, ResponseCode.NOT_LEADER_FOR_QUEUE, remark, fields=leader)
        if len(self.unanswered) >= GUESTS_MAX:
            self._finish(next(iter(self.unanswered.values())), is_complete=False)
        guest = self._open_guest(request, fields, expected, envelope_key)
        self._turn.frames.append((guest.channel, request.command.body))
        return None

    def _open_guest(
        self, request: Request, fields: RelayFields, expected: int, envelope_key: tuple[tuple[str, int], int] | None
    ) -> _Guest:
        self._last_channel -= 1
        guest = _Guest(
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

    def hops(self, channel: ChannelId) -> int:
        """Return how often the requests on *channel* have been relayed; 0 for a client of this broker."""
        guest = self.unanswered.get(channel)
        return 0 if guest is None else guest.hops

    def collect_answers(self, effects: list[Effect]) -> list[Effect]:
        """Return *effects* without those for guests: their answers are collected, their faults go to the sender."""
        passed: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, SendBytes | CloseChannel | Fault) or effect.channel >= 0:
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

    def _finish(self, guest: _Guest, *, is_complete: bool = True) -> None:
        """Answer the envelope. If answers are missing, refuse it: the outcome of its requests is unknown."""
        del self.unanswered[guest.channel]
        self._closed_channels.append(guest.channel)
        effects = self._turn.effects
        if guest.envelope_key is not None:
            self._remember_answer(guest, is_complete=is_complete)
        for request in guest.waiting:
            if is_complete:
                self._answer(request, guest.pieces, effects)
            elif not request.command.is_one_way:
                refusal = response(request.command, ResponseCode.SYSTEM_ERROR, "not all requests were answered")
                effects.append(SendBytes(request.channel, [encode_command(refusal)]))

    def _answer(self, request: Request, pieces: list[Piece], effects: list[Effect]) -> None:
        if request.command.is_one_way:
            return
        answer = response(request.command, fields=to_fields(self._describe_leader(request)))
        head = encode_head(answer, sum(map(len, pieces)))
        effects.append(SendBytes(request.channel, [head, *pieces]))

    def _describe_leader(self, request: Request) -> RelayAnswer:
        """Return the fields of the answer to an envelope: this process, and the leader of the queue."""
        fields = from_fields(RelayFields, request.command.fields)
        leader, address = self.leader_of(fields.topic, fields.queue)
        if leader.broker == NO_BROKER:
            return RelayAnswer(boot=self.boot)
        return RelayAnswer(boot=self.boot, leader=leader.broker, generation=leader.generation, address=address)

    # Remembered answers.

    def _find_remembered(self, envelope_key: tuple[tuple[str, int], int], settled: int) -> _Guest | bytes | None:
        broker, number = envelope_key
        remembered = self._remembered.get(broker)
        if remembered is None:
            return None
        self._remembered.move_to_end(broker)
        while remembered and next(iter(remembered)) < settled:
            remembered.popitem(last=False)
        return remembered.get(number)

    def _remember(self, envelope_key: tuple[tuple[str, int], int], guest: _Guest) -> None:
        broker, number = envelope_key
        remembered = self._remembered.setdefault(broker, OrderedDict())
        remembered[number] = guest
        if len(remembered) > REMEMBERED_MAX:
            remembered.popitem(last=False)
        if len(self._remembered) > BROKERS_MAX:
            self._remembered.popitem(last=False)

    def _remember_answer(self, guest: _Guest, *, is_complete: bool) -> None:
        assert guest.envelope_key is not None
        broker, number = guest.envelope_key
        remembered = self._remembered.get(broker, OrderedDict())
        if remembered.get(number) is guest:
            if is_complete:
                remembered[number] = b"".join(guest.pieces)
            else:
                del remembered[number]


def _inspect(frames: list[Frame]) -> tuple[set[int], int]:
    """Return the codes in an envelope, and how many of its requests expect an answer.

    Raises:
        RemoteProtocolError: The envelope holds a frame that may not be relayed.
    """
    commands = [decode_command(frame) for frame in frames]
    codes = {command.code for command in commands}
    if unknown := codes - RELAYED:
        raise RemoteProtocolError(f"requests of code {min(unknown)} must not be relayed")
    if any(command.is_response for command in commands):
        raise RemoteProtocolError("answers must not be relayed")
    return codes, sum(1 for command in commands if not command.is_one_way)
