"""Requests for logical queues that another broker leads, or that are just moving.

    request ─> who leads the queue?
               ├─ this broker, as far as anybody knows ─> not taken here
               ├─ it is being handed over ─> held, a copy of its frame ─> taken anew when that is decided
               └─ another broker ─┬─ sends: one line per queue, one envelope (7020) on its way at a time
                                  └─ anything else: an envelope of its own; a pull is answered as late as it wants

What is passed on is the client's own frame; what the leader answers goes to the client as it is. A send that was passed
on and not answered is repeated under its number, which the leader knows. Where nobody can know any more whether it was
stored, the client's channel closes: it then knows that it does not know.

Invariant: while sends of a queue wait in its line, later ones wait behind them, also when the queue opens here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.broker.cluster_view import ClusterView
from holdfast.broker.errands import Errands
from holdfast.broker.guests import RELAYED, RELAYED_SENDS, Guests
from holdfast.broker.mappings import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.waits import Pause, PeerCall, Procedure
from holdfast.machine.effects import CloseChannel, Effect, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.command import Command, decode_command, encode_command, response
from holdfast.wire.fields import BadField, from_fields, to_fields
from holdfast.wire.frame import Frame, split_frames
from holdfast.wire.pull import PullFields
from holdfast.wire.relay import HOPS_MAX, RelayAnswer, RelayFields, copy_frame

TIMER: Final = "held requests"
PATIENCE_MS: Final = 2_500
"""How long a request waits for a leader: its sender waits three seconds for its answer, and then sends again."""

HELD_SIZE_MAX: Final = 64 * 1024 * 1024
_ENVELOPE_SIZE_MAX: Final = 1024 * 1024
_ENVELOPE_COUNT_MAX: Final = 256
_RETRY_MS: Final = 20
_PULL_SLACK_MS: Final = 5_000

_OF_OFFSETS: Final = frozenset({RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET})
_BY_QUEUE: Final = RELAYED - RELAYED_SENDS - {RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ}

Place = tuple[str, int]
"""Topic and logical queue."""


class Waiting(msgspec.Struct, eq=False):
    """A request that waits, with everything needed to take it later.

    Attributes:
        frame: As it was read.
        hops: How often it was passed on before it came here.
        source: The broker that passed it on.
        deadline_ms: When its sender has given up.
    """

    channel: ChannelId
    peer: str
    frame: bytes
    command: Command
    hops: int
    aware: bool
    deadline_ms: int
    source: str | None = None


class _Line(msgspec.Struct, eq=False):
    """The sends of one queue that are to be passed on, oldest first."""

    waiting: deque[Waiting]


class Relaying:
    """The way to other leaders.

    Attributes:
        moving: Queues whose next leader is being decided, with what waits for that.
    """

    def __init__(
        self, options: BrokerOptions, mappings: Mappings, view: ClusterView, guests: Guests, errands: Errands
    ) -> None:
        self._name = options.name
        self._mappings = mappings
        self._view = view
        self._guests = guests
        self._errands = errands
        self.moving: dict[Place, list[Waiting]] = {}
        self._lines: dict[Place, _Line] = {}
        self._size = 0
        self._number = 0
        self._unsettled: set[int] = set()
        self._boots: dict[str, int] = {}  # address to the process that answered there
        self._timer_ms: int | None = None

    # Holding.

    def hold(self, topic: str, queues: Iterable[int]) -> None:
        """Keep what concerns these queues until `release`."""
        for queue in queues:
            self.moving.setdefault((topic, queue), [])
        self._mappings.version += 1  # Sends that were open here have to be looked at anew.

    def release(self, topic: str, queues: Iterable[int]) -> None:
        """Take everything that was held for these queues anew, in order."""
        for queue in queues:
            for waiting in self.moving.pop((topic, queue), ()):
                self._size -= len(waiting.frame)
                self._errands.frames.append((waiting.channel, waiting.frame))
        self._mappings.version += 1

    def forget_channel(self, channel: ChannelId) -> None:
        """Drop what a client that is gone still wanted."""
        for place, held in self.moving.items():
            if any(waiting.channel == channel for waiting in held):
                self._size -= sum(len(waiting.frame) for waiting in held if waiting.channel == channel)
                self.moving[place] = [waiting for waiting in held if waiting.channel != channel]
        for line in self._lines.values():
            gone = [waiting for waiting in line.waiting if waiting.channel == channel]
            for waiting in gone:
                line.waiting.remove(waiting)
                self._size -= len(waiting.frame)

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:  # noqa: ARG002
        """Answer those held requests whose time is up."""
        self._timer_ms = None
        for held in self.moving.values():
            while held and held[0].deadline_ms <= now_ms:
                waiting = held.pop(0)
                self._size -= len(waiting.frame)
                self._refuse(waiting)
        self._set_timer()

    # The gate.

    def is_away(self, topic: str, queue: int) -> bool:
        """Say whether a send to a logical queue must not be taken here and now."""
        place = (topic, queue)
        return place in self.moving or place in self._lines or self._mappings.place(topic, queue).state != "open"

    def is_pull_away(self, fields: PullFields) -> bool:
        """Say whether a pull is for another broker. A queue that is sealed here is still read here."""
        if fields.is_logical is False or not self._mappings.is_static(fields.topic):
            return False
        place = self._mappings.place(fields.topic, fields.queue_id)
        return not place.is_led and place.state != "unknown"

    def find_away(self, command: Command) -> Place | None:
        """Return the logical queue that a request is about if it is not to be answered here and now; None if it is.

        Sends and locks are looked at elsewhere.
        """
        if command.code not in _BY_QUEUE or command.fields.get("lo", "").lower() == "false":
            return None
        topic = command.fields.get("topic", "")
        if not self._mappings.is_static(topic):
            return None
        try:
            queue = int(command.fields.get("queueId", ""))
        except ValueError:
            return None  # Whoever answers it says what is wrong.
        place = self._mappings.place(topic, queue)
        if place.state in {"open", "unknown"}:
            return None
        return None if place.is_led and command.code not in _OF_OFFSETS else (topic, queue)

    def divert(self, frame: Frame, command: Command, place: Place, channel: ChannelId, peer: str) -> None:
        """Take a request that is not for this broker; its answer comes later."""
        now_ms = self._errands.now_ms
        waiting = Waiting(
            channel=channel,
            peer=peer,
            frame=copy_frame(frame),
            command=msgspec.structs.replace(command, body=b""),
            hops=self._guests.hops(channel),
            aware=not self._guests.is_unaware(channel),
            deadline_ms=now_ms + PATIENCE_MS,
            source=self._guests.source(channel),
        )
        if self._size + len(waiting.frame) > HELD_SIZE_MAX:
            self._refuse(waiting, ResponseCode.SYSTEM_BUSY, "too much waits for other brokers; try again in a moment")
        elif self._is_moving(place):
            self._size += len(waiting.frame)
            self.moving.setdefault(place, []).append(waiting)
            self._set_timer(waiting.deadline_ms)
        elif waiting.hops >= HOPS_MAX:
            self._refuse(waiting)
        elif command.code in RELAYED_SENDS:
            self._size += len(waiting.frame)
            line = self._lines.get(place)
            if line is not None:
                line.waiting.append(waiting)
                return
            self._lines[place] = _Line(deque([waiting]))
            self._errands.work.append(self._pass_on_line(place))
        else:
            self._errands.work.append(self._pass_on(waiting, place))

    # Sends: one line per queue.

    def _pass_on_line(self, place: Place) -> Procedure[None]:
        """Pass on the sends of one queue until none waits."""
        line = self._lines[place]
        while line.waiting:
            if self._drop_late(line) or self._turn_back(line, place):
                continue
            if self._is_here(place):
                self._take_back(place)
                return
            address = yield from self._find_leader(place)
            if address is None:
                yield Pause(_RETRY_MS)
                continue
            if not line.waiting or self._is_here(place):
                continue
            yield from self._send_envelope(line, address)
        self._lines.pop(place, None)
        self._mappings.version += 1  # Sends that are open here need no longer stand behind this line.

    def _drop_late(self, line: _Line) -> bool:
        """Refuse the first of a line if its sender has given up."""
        if line.waiting[0].deadline_ms > self._errands.now_ms:
            return False
        waiting = line.waiting.popleft()
        self._size -= len(waiting.frame)
        self._refuse(waiting)
        return True

    def _turn_back(self, line: _Line, place: Place) -> bool:
        """Refuse the first of a line if it came from who leads the queue now.

        There it stands in a line itself, first, waiting for our answer: brought back, it would wait behind itself.
        """
        waiting = line.waiting[0]
        if waiting.source is None or self._is_moving(place) or self.find_belief(place) != waiting.source:
            return False
        line.waiting.popleft()
        self._size -= len(waiting.frame)
        self._refuse(waiting)
        return True

    def _take_back(self, place: Place) -> None:
        """Let a line be taken here: the queue came back, or is about to move."""
        line = self._lines.pop(place)
        self._mappings.version += 1
        for waiting in line.waiting:
            self._size -= len(waiting.frame)
            self._errands.frames.append((waiting.channel, waiting.frame))

    def _send_envelope(self, line: _Line, address: str) -> Procedure[None]:
        """Pass on the first few of a line, and see to it that each gets its answer or stays the first."""
        batch = _first_of(line)
        self._number += 1
        number = self._number
        self._unsettled.add(number)
        try:
            answer = yield from self._ask_surely(batch, number, address)
        except PeerFailed as error:
            if not error.is_unsent:
                self._give_up(line, batch)
                self._view.doubt()
            else:
                yield Pause(_RETRY_MS)
                self._view.doubt()
            return
        finally:
            self._unsettled.discard(number)
        self._hand_back(line, batch, answer)

    def _ask_surely(self, batch: list[Waiting], number: int, address: str) -> Procedure[Command]:
        """Ask, and ask again while the same process may answer.

        Raises:
            PeerFailed: there is no answer; unless it says that it was not even sent, nobody knows what became of it.
        """
        to_boot: int | None = None
        while True:
            try:
                answer = yield PeerCall(address, self._envelope(batch, number, to_boot), PATIENCE_MS)
            except PeerFailed as error:
                if error.is_unsent and to_boot is None:
                    raise
                to_boot = self._boots.get(address)
                if to_boot is None or batch[0].deadline_ms <= self._errands.now_ms:
                    raise PeerFailed(str(error)) from error
                yield Pause(_RETRY_MS)
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise PeerFailed(f"{address} refused: {answer.remark}", is_unsent=_is_harmless(answer))
            self._learn_boot(address, answer)
            return answer  # type: ignore[no-any-return]

    def _give_up(self, line: _Line, batch: list[Waiting]) -> None:
        for waiting in batch:
            if waiting in line.waiting:
                line.waiting.remove(waiting)
                self._size -= len(waiting.frame)
        self._errands.effects += [CloseChannel(channel) for channel in {waiting.channel for waiting in batch}]

    def _hand_back(self, line: _Line, batch: list[Waiting], answer: Command) -> None:
        """Give the clients their answers; what nobody would take yet stays first in line."""
        answers = _by_number(answer.body)
        refused = {
            opaque for opaque, (command, _) in answers.items() if command.code == ResponseCode.NOT_LEADER_FOR_QUEUE
        }
        for waiting in batch:
            opaque = waiting.command.opaque
            if opaque in refused or waiting not in line.waiting:
                continue
            line.waiting.remove(waiting)
            self._size -= len(waiting.frame)
            if opaque in answers:
                self._errands.effects.append(SendBytes(waiting.channel, [answers[opaque][1]]))
        if refused:
            self._view.doubt()

    # Everything else: each by itself.

    def _pass_on(self, waiting: Waiting, place: Place) -> Procedure[None]:
        """Pass on one request that changes nothing when it comes twice."""
        patience_ms = PATIENCE_MS + _PULL_SLACK_MS + _suspend_ms(waiting.command)
        reason = f"nobody is known to lead queue {place[1]} of {place[0]}"
        while self._errands.now_ms < waiting.deadline_ms:
            address = yield from self._find_leader(place)
            if self._is_here(place):
                self._errands.frames.append((waiting.channel, waiting.frame))
                return
            if address is None:
                yield Pause(_RETRY_MS)
                continue
            self._number += 1
            try:
                answer = yield PeerCall(address, self._envelope([waiting], self._number, None), patience_ms)
            except PeerFailed as error:
                reason = str(error)
                self._view.doubt()
                yield Pause(_RETRY_MS)
                continue
            if answer.code == ResponseCode.SUCCESS:
                self._learn_boot(address, answer)
                told = list(_by_number(answer.body).values())
                if told and told[0][0].code == ResponseCode.NOT_LEADER_FOR_QUEUE:
                    self._view.doubt()
                    reason = told[0][0].remark or reason
                    yield Pause(_RETRY_MS)
                    continue
                if answer.body:
                    self._errands.effects.append(SendBytes(waiting.channel, [answer.body]))
                return
            reason = f"{address} refused: {answer.remark}"
            yield Pause(_RETRY_MS)
        self._refuse(waiting, ResponseCode.SYSTEM_ERROR, reason)

    def ask_leader(self, command: Command, place: Place, channel: ChannelId, peer: str) -> Procedure[Command | None]:
        """Return what the leader of a queue answers to a request of a client, passed on; None when it does not."""
        if self._guests.hops(channel) >= HOPS_MAX:
            return None
        deadline_ms = self._errands.now_ms + PATIENCE_MS
        waiting = Waiting(
            channel=channel,
            peer=peer,
            frame=encode_command(command),
            command=command,
            hops=self._guests.hops(channel),
            aware=True,
            deadline_ms=deadline_ms,
        )
        while self._errands.now_ms < deadline_ms:
            address = yield from self._find_leader(place)
            if address is not None:
                self._number += 1
                try:
                    answer = yield PeerCall(address, self._envelope([waiting], self._number, None), PATIENCE_MS)
                except PeerFailed:
                    self._view.doubt()
                else:
                    for told, _ in _by_number(answer.body).values():
                        return told
            yield Pause(_RETRY_MS)
        return None

    # Leaders and envelopes.

    def _is_moving(self, place: Place) -> bool:
        return place in self.moving or self._mappings.place(*place).state == "sealed"

    def _is_here(self, place: Place) -> bool:
        """Return whether nothing of a queue need be passed on, at the moment."""
        return place in self.moving or self._mappings.place(*place).state in {"open", "sealed"}

    def find_belief(self, place: Place) -> str | None:
        """Return who leads a queue, by what is known here without asking."""
        found = self._mappings.place(*place)
        return self._view.leader_above(*place, found.generation) or found.leader or self._view.leader(*place)

    def _find_leader(self, place: Place) -> Procedure[str | None]:
        """Return the address of who leads a queue, by what is known here or at the name servers."""
        if self._is_moving(place):
            return None
        leader = self.find_belief(place)
        if leader is None or leader == self._name:
            yield from self._view.refresh(place[0])
            leader = self.find_belief(place)
        if leader is None or leader == self._name:
            return None
        address = self._view.address(leader)
        if address is None:
            yield from self._view.refresh(place[0])
            address = self._view.address(leader)
        return address

    def _envelope(self, batch: list[Waiting], number: int, to_boot: int | None) -> Command:
        first = batch[0]
        fields = RelayFields(
            source=self._name,
            boot=self._guests.boot,
            number=number,
            settled=min(self._unsettled, default=number),
            hops=first.hops + 1,
            client=first.peer,
            aware=first.aware,
            to_boot=to_boot,
        )
        body = b"".join(waiting.frame for waiting in batch)
        return Command(code=RequestCode.RELAY, fields=to_fields(fields), body=body)

    def _learn_boot(self, address: str, answer: Command) -> None:
        try:
            self._boots[address] = from_fields(RelayAnswer, answer.fields).boot
        except BadField:
            self._boots.pop(address, None)

    def _refuse(
        self,
        waiting: Waiting,
        code: ResponseCode = ResponseCode.NOT_LEADER_FOR_QUEUE,
        remark: str = "the queue is moving, or its leader cannot be reached; ask the name server, and try again",
    ) -> None:
        if not waiting.command.is_one_way:
            answer = encode_command(response(waiting.command, code, remark))
            self._errands.effects.append(SendBytes(waiting.channel, [answer]))

    def _set_timer(self, deadline_ms: int | None = None) -> None:
        if deadline_ms is None:
            deadline_ms = min((held[0].deadline_ms for held in self.moving.values() if held), default=None)
        if deadline_ms is not None and (self._timer_ms is None or deadline_ms < self._timer_ms):
            self._timer_ms = deadline_ms
            self._errands.effects.append(SetTimer(TIMER, deadline_ms))


def _first_of(line: _Line) -> list[Waiting]:
    """Return as many of the first of a line as are of one client and go into one envelope."""
    batch: list[Waiting] = []
    size = 0
    first = line.waiting[0]
    opaques: set[int] = set()
    for waiting in line.waiting:
        size += len(waiting.frame)
        is_other = (waiting.channel, waiting.hops) != (first.channel, first.hops)
        is_much = bool(batch) and (size > _ENVELOPE_SIZE_MAX or len(batch) >= _ENVELOPE_COUNT_MAX)
        # Two requests of one number could not be told apart.
        if is_other or is_much or waiting.command.opaque in opaques:
            break
        opaques.add(waiting.command.opaque)
        batch.append(waiting)
    return batch


def _by_number(body: bytes) -> dict[int, tuple[Command, bytes]]:
    """Return the answers in an envelope by the number of the request, each with its bytes."""
    try:
        frames, _ = split_frames(memoryview(body))
        found = [(decode_command(frame), copy_frame(frame)) for frame in frames]
    except RemoteProtocolError:
        return {}  # A leader that speaks nonsense has not answered.
    return {command.opaque: (command, data) for command, data in found}


def _is_harmless(answer: Command) -> bool:
    """Return whether who refused an envelope took nothing of it."""
    return answer.code in {ResponseCode.INVALID_PARAMETER, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}


def _suspend_ms(command: Command) -> int:
    """Return how long a pull wants to wait."""
    text = command.fields.get("suspendTimeoutMillis", "0")
    is_waiting = int(command.fields.get("sysFlag", "0") or 0) & 2
    return min(int(text or 0), 300_000) if is_waiting else 0
