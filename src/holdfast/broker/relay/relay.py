"""Holds or relays requests for logical queues that are moving, or that another broker leads.

    request ─> who leads the queue?
               ├─ this broker, as far as is known ─> not handled by this module
               ├─ the queue is moving ─> held, a copy of its frame ─> replayed when the move is decided
               └─ another broker ─┬─ a client's sends: one line per queue, one envelope (7020) in flight at a time
                                  ├─ sends that another broker relayed: refused, so that it retries elsewhere
                                  └─ anything else: a separate envelope; a pull may wait as long as it asks to

The client's frame is relayed unchanged, and so is the leader's answer. A relayed send without an answer is repeated
under its envelope number, by which the leader deduplicates it. If the outcome can no longer be known, the client's
channel is closed, so that the client knows that the outcome is unknown.

Every answer names the current leader. So a broker that missed a move gets "not the leader" once, learns the leader from
that answer, and relays there. Clients with mapping support get the leader with their answers, too.

Invariant: while sends of a queue wait in its line, later sends queue up after them, even if the queue opens here.

Invariant: a send that another broker relayed waits in no line but the leader's. The broker that relays it has a line,
too, which waits for the answer: two lines with each other's sends would deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from holdfast.access.door import Door
from holdfast.broker.consume.delivered_ranges import DeliveredRanges
from holdfast.broker.consume.pull import SUSPEND_MAX_MS
from holdfast.broker.flow.awaitables import Pause
from holdfast.broker.flow.request import Timers
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.queue_view import Queues
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.guests import Guests
from holdfast.broker.relay.held_leases import HeldLeases
from holdfast.broker.relay.leader_lookup import LeaderLookup
from holdfast.broker.relay.relay_client import (
    RelayClient,
    Target,
    WaitingRequest,
    answers_in,
    choose_batch,
    is_not_led,
)
from holdfast.broker.relay.suspects import SuspectTopics
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import Identity
from holdfast.model.errors import PeerFailed
from holdfast.model.leadership import NO_LEADER, Leader
from holdfast.model.numbers import parse_count
from holdfast.model.queue import LogicalQueueId, QueueKey
from holdfast.model.scope import NO_BROKER
from holdfast.model.segment import is_newer
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, encode_command, response
from holdfast.wire.frames.frame import Frame
from holdfast.wire.requests.pull import SUSPEND
from holdfast.wire.requests.relay import HOPS_MAX, LEADER_FIELD, copy_frame, leader_fields
from holdfast.wire.requests.table import Relaying, RequestSpec, relaying_of

TIMER: Final = "held requests"
LEADER_WAIT_MS: Final = 2_500
"""How long a request waits for a leader: its sender waits three seconds for its answer, and then sends again."""

_HOP_MS: Final = 700  # A broker gives up this much earlier per hop, so that its answer arrives in time.
HELD_SIZE_MAX: Final = 64 * 1024 * 1024
_PAUSE_MIN_MS: Final = 10
_PAUSE_MAX_MS: Final = 320
_PULL_SLACK_MS: Final = 5_000
_ORDERED: Final = frozenset({Relaying.SEND, Relaying.LOCK})


class _Line(msgspec.Struct, eq=False):
    """The sends of one queue that are to be relayed, oldest first.

    Attributes:
        in_flight: How many of the first sends are in flight.
    """

    waiting: deque[WaitingRequest]
    in_flight: int = 0


class Relay(Component):
    """Holds requests during a move, and relays requests to other leaders.

    Attributes:
        moving: Queues whose next leader is being decided, with the requests held for them.
        suspended: Queues whose sends this broker may not accept yet, and the condition that it waits for.
        suspects: Topics of which another broker may lead queues that this broker regards as its own.
        relayed_sends: How many sends were relayed and answered by the leaders of their queues.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - its collaborators
        self,
        options: BrokerOptions,
        queues: Queues,
        view: ClusterView,
        guests: Guests,
        leases: HeldLeases,
        suspects: SuspectTopics,
        turn: Turn,
        delivered_ranges: DeliveredRanges,
        door: Door,
    ) -> None:
        self._name = options.name
        self._door = door
        self._queues = queues
        self._mappings = queues.mappings
        self._leader_lookup = LeaderLookup(queues.mappings, view)
        self._guests = guests
        self._turn = turn
        self._delivered_ranges = delivered_ranges
        self.moving: dict[QueueKey, list[WaitingRequest]] = {}
        self.suspended: dict[QueueKey, str] = {}
        self._leases = leases
        self._lines: dict[QueueKey, _Line] = {}
        self._held_size = 0
        self.relayed_sends = 0
        self._relay_client = RelayClient(options.name, guests.boot, turn)
        self._timer_ms: int | None = None
        self.suspects = suspects

    # Held requests.

    def hold(self, topic: str, queues: Iterable[LogicalQueueId]) -> None:
        """Hold the requests for these queues until `release`."""
        for queue in queues:
            self.moving.setdefault((topic, queue), [])
        self._mappings.version += 1  # Cached send targets must be looked up again.

    def release(self, topic: str, queues: Iterable[LogicalQueueId]) -> None:
        """Replay the requests held for these queues, in order."""
        for queue in queues:
            for waiting in self.moving.pop((topic, queue), ()):
                self._held_size -= len(waiting.frame)
                self._turn.replay(waiting.channel, waiting.frame, waiting.sender)
        self._mappings.version += 1

    def suspend_sends(self, topic: str, queues: Iterable[LogicalQueueId], condition: str) -> None:
        """Accept no sends of these queues until `resume_sends`, even if `release` is called for them before."""
        self.suspended.update(((topic, queue), condition) for queue in queues)
        self._mappings.version += 1

    def resume_sends(self, topic: str, queues: Iterable[LogicalQueueId]) -> None:
        """Accept sends of these queues again, and replay the requests held meanwhile."""
        numbers = list(queues)
        for queue in numbers:
            self.suspended.pop((topic, queue), None)
        self.release(topic, numbers)

    def channel_closed(self, channel: ChannelId) -> None:
        """Drop the waiting requests of a client that disconnected."""
        for queue_key, held in self.moving.items():
            if any(waiting.channel == channel for waiting in held):
                self._held_size -= sum(len(waiting.frame) for waiting in held if waiting.channel == channel)
                self.moving[queue_key] = [waiting for waiting in held if waiting.channel != channel]
        for line in self._lines.values():
            dropped = [waiting for waiting in line.waiting if waiting.channel == channel]
            if dropped and dropped[0] is line.waiting[0]:
                line.in_flight = 0  # All sends of an envelope come from one client.
            for waiting in dropped:
                line.waiting.remove(waiting)
                self._held_size -= len(waiting.frame)

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def metrics(self) -> Iterator[Sample]:
        """Yield the number of queues whose requests are held, and of relayed sends."""
        held = sum(map(self.is_held, self._queues.led()))
        about = "Logical queues led here that accept no sends at the moment."
        yield Sample("broker_static_queues_held", "gauge", about, held)
        about = "Sends relayed to the leaders of their logical queues."
        yield Sample("broker_relayed_sends", "counter", about, self.relayed_sends)

    def on_timer(self) -> None:
        """Refuse the held requests whose deadline has passed."""
        self._timer_ms = None
        for queue_key, held in self.moving.items():
            for waiting in [waiting for waiting in held if waiting.deadline_ms <= self._turn.now_ms]:
                held.remove(waiting)
                self._held_size -= len(waiting.frame)
                obstacle = self._find_obstacle(queue_key)
                if obstacle is not None:
                    remark = f"queue {queue_key[1]} of {queue_key[0]} waits until {obstacle}; try again in a moment"
                    self._refuse(waiting, ResponseCode.SYSTEM_BUSY, remark)
                else:
                    self._refuse_not_leader(waiting, queue_key)
        self._set_timer()

    def stop(self) -> None:
        """Refuse the requests that were not relayed yet: their clients retry elsewhere, and no outcome is unknown."""
        unsent = [waiting for held in self.moving.values() for waiting in held]
        for line in self._lines.values():
            while len(line.waiting) > line.in_flight:
                unsent.append(line.waiting.pop())
        for held in self.moving.values():
            held.clear()
        for waiting in unsent:
            self._held_size -= len(waiting.frame)
            self._refuse(waiting)

    # Decisions.

    def is_away(self, queue_key: QueueKey, relaying: Relaying) -> bool:
        """Return whether a request for a queue must be held or relayed now. This is the rule for every request.

        Sends and locks also wait while requests for their queue are held, and after earlier sends in its line. A queue
        that is sealed here is still read here.
        """
        state = self._queues.find_state(*queue_key)
        if state == "open":
            return relaying in _ORDERED and (self.is_held(queue_key) or queue_key in self._lines)
        return state != "sealed" or relaying is not Relaying.READ

    def is_held(self, queue_key: QueueKey) -> bool:
        """Return whether requests for a logical queue are held now, even if it is open here."""
        return queue_key in self.moving or self._find_obstacle(queue_key) is not None

    def _find_obstacle(self, queue_key: QueueKey) -> str | None:
        """Return the condition to wait for before this broker may accept sends of a queue it leads, or None."""
        return self.suspended.get(queue_key) or self._leases.find_lapse(queue_key)

    def find_away(self, spec: RequestSpec, header: msgspec.Struct) -> QueueKey | None:
        """Return the logical queue of a request that must be held or relayed, or None if it is answered here now.

        Locks name several queues: `LockRequests` asks `is_away` for each.
        """
        queue_key = spec.find_queue(header)
        return queue_key if queue_key is not None and self.is_away(queue_key, spec.relaying) else None

    def divert(self, frame: Frame, command: Command, queue_key: QueueKey, channel: ChannelId, sender: Identity) -> None:
        """Hold, relay or refuse a request that is not for this broker now; its answer comes later."""
        now_ms, hops = self._turn.now_ms, self._guests.hops(channel)
        is_send = relaying_of(command.code) is Relaying.SEND
        waiting = WaitingRequest(
            channel=channel,
            sender=sender,
            frame=copy_frame(frame),
            command=msgspec.structs.replace(command, body=b""),
            hops=hops,
            deadline_ms=now_ms + LEADER_WAIT_MS - hops * _HOP_MS,
        )
        if self._held_size + len(waiting.frame) > HELD_SIZE_MAX:
            self._refuse(
                waiting, ResponseCode.SYSTEM_BUSY, "too many requests wait for other brokers; try again in a moment"
            )
        elif self._is_moving(queue_key):
            self._held_size += len(waiting.frame)
            self.moving.setdefault(queue_key, []).append(waiting)
            self._set_timer(waiting.deadline_ms)
        elif waiting.hops >= HOPS_MAX or (is_send and self._is_misdirected(waiting, queue_key)):
            self._refuse_not_leader(waiting, queue_key)
        elif is_send:
            self._held_size += len(waiting.frame)
            line = self._lines.get(queue_key)
            if line is not None:
                line.waiting.append(waiting)
                return
            self._lines[queue_key] = _Line(deque([waiting]))
            self._turn.spawn(self._relay_line(queue_key))
        else:
            self._turn.spawn(self._relay_request(waiting, queue_key))

    # Sends: one line per queue.

    async def _relay_line(self, queue_key: QueueKey) -> None:
        """Relay the sends of one queue until none waits."""
        line, pause_ms = self._lines[queue_key], _PAUSE_MIN_MS
        while line.waiting:
            target = await self._find_target(queue_key)
            self._refuse_unrelayable(line, queue_key)
            if self._is_local(queue_key):
                self._replay_locally(queue_key)
                return
            if not line.waiting:
                break
            if target is not None and await self._send_envelope(line, target):
                pause_ms = _PAUSE_MIN_MS
                continue
            await Pause(pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
        del self._lines[queue_key]
        self._mappings.version += 1  # Sends accepted here need no longer wait for this line.

    def _refuse_unrelayable(self, line: _Line, queue_key: QueueKey) -> None:
        """Refuse the sends of a line that must not be relayed.

        Their queue is unknown, their sender has given up, or another broker relayed them here and can retry elsewhere.
        """
        now_ms, is_unknown = self._turn.now_ms, self._is_unknown(queue_key)
        for waiting in list(line.waiting):
            if is_unknown or waiting.deadline_ms <= now_ms or self._is_misdirected(waiting, queue_key):
                line.waiting.remove(waiting)
                self._held_size -= len(waiting.frame)
                self._refuse_not_leader(waiting, queue_key)

    def _is_misdirected(self, waiting: WaitingRequest, queue_key: QueueKey) -> bool:
        """Return whether another broker relayed a send here by mistake. The refusal names the leader."""
        return waiting.hops > 0 and not self._is_local(queue_key)

    def _replay_locally(self, queue_key: QueueKey) -> None:
        """Replay a line on this broker: the queue moved back here, or is about to move."""
        line = self._lines.pop(queue_key)
        self._mappings.version += 1
        for waiting in line.waiting:
            self._held_size -= len(waiting.frame)
            self._turn.replay(waiting.channel, waiting.frame, waiting.sender)

    async def _send_envelope(self, line: _Line, target: Target) -> bool:
        """Relay the first sends of a line. Each gets its answer or stays first. Return whether to continue at once."""
        batch = choose_batch(line.waiting)
        line.in_flight = len(batch)
        try:
            answer = await self._relay_client.send_reliably(batch, target)
        except PeerFailed as error:
            self._leader_lookup.suspect_addresses()
            if not error.is_unsent:
                self._drop_batch(line, batch)
            return False
        finally:
            line.in_flight = 0
        return self._deliver_answers(line, batch, target.queue_key, answer)

    def _drop_batch(self, line: _Line, batch: list[WaitingRequest]) -> None:
        for waiting in batch:
            if waiting in line.waiting:
                line.waiting.remove(waiting)
                self._held_size -= len(waiting.frame)
        for channel in {waiting.channel for waiting in batch}:
            self._turn.close(channel)

    def _deliver_answers(self, line: _Line, batch: list[WaitingRequest], queue_key: QueueKey, answer: Command) -> bool:
        """Send the clients their answers; return whether to continue at once.

        Refused sends stay first in line. Then the result is True only if the answer named a new leader. An envelope is
        refused as a whole if its receiver does not lead the queue.
        """
        is_new_leader = self._leader_lookup.update_from_answer(queue_key, answer)
        answers = answers_in(answer.body)
        refused = {
            opaque for opaque, (command, _) in answers.items() if command.code == ResponseCode.NOT_LEADER_FOR_QUEUE
        }
        if answer.code != ResponseCode.SUCCESS:
            refused = {waiting.command.opaque for waiting in batch}
        for waiting in batch:
            opaque = waiting.command.opaque
            if opaque in refused or waiting not in line.waiting:
                continue
            line.waiting.remove(waiting)
            self._held_size -= len(waiting.frame)
            if opaque in answers:
                self.relayed_sends += 1
                command, data = answers[opaque]
                self._delivered_ranges.add_send_answer(waiting.channel, waiting.command, command)
                reply = self._add_leader(queue_key, command) if self._wants_leader(waiting, queue_key) else data
                self._turn.send(waiting.channel, [reply])
        if any(answers[opaque][0].fields.get(LEADER_FIELD) == NO_BROKER for opaque in refused & answers.keys()):
            self._leader_lookup.forget(queue_key)
        if refused and not is_new_leader:
            self._leader_lookup.suspect_addresses()
        return is_new_leader or not refused

    # Other requests, one per envelope.

    async def _relay_request(self, waiting: WaitingRequest, queue_key: QueueKey) -> None:
        """Relay one idempotent request."""
        timeout_ms = LEADER_WAIT_MS + _PULL_SLACK_MS + _suspend_ms(waiting.command)
        try:
            answer = await self._request_leader(waiting, queue_key, timeout_ms)
        except PeerFailed as error:
            if self._is_unknown(queue_key) or self._leader_lookup.is_leaderless(
                queue_key, needs_answer=not waiting.hops
            ):
                self._refuse_not_leader(waiting, queue_key)
            else:
                self._refuse(waiting, ResponseCode.SYSTEM_ERROR, str(error))
            return
        if answer is None:
            self._turn.replay(waiting.channel, waiting.frame, waiting.sender)
        elif answer:
            # The leader, where it may have waited for long, knows the user but not the secret that it used here.
            refusal = self._door.find_refusal(waiting.sender, (), waiting.command.code, waiting.channel)
            if refusal is not None:
                self._refuse(waiting, refusal.code, refusal.remark)
                return
            reply = answers_in(answer).get(waiting.command.opaque) if self._wants_leader(waiting, queue_key) else None
            data = answer if reply is None else self._add_leader(queue_key, reply[0])
            self._delivered_ranges.add_pull_answer(waiting.channel, waiting.command, answer)
            self._turn.send(waiting.channel, [data])

    async def relay_to_leader(
        self, command: Command, queue_key: QueueKey, channel: ChannelId, sender: Identity
    ) -> Command | None:
        """Relay a request of a client to the leader of a queue; return its answer, or None if none came."""
        hops = self._guests.hops(channel)
        deadline_ms = self._turn.now_ms + LEADER_WAIT_MS - hops * _HOP_MS
        if hops >= HOPS_MAX:
            return None
        waiting = WaitingRequest(channel, sender, encode_command(command), command, hops, deadline_ms)
        while self._is_moving(queue_key) and self._turn.now_ms < deadline_ms:
            await Pause(_PAUSE_MIN_MS)
        try:
            answer = await self._request_leader(waiting, queue_key, LEADER_WAIT_MS)
        except PeerFailed:
            return None
        return next((reply for reply, _ in answers_in(answer or b"").values()), None)

    async def _request_leader(self, waiting: WaitingRequest, queue_key: QueueKey, timeout_ms: int) -> bytes | None:
        """Return the frames that the leader of a queue answers, or None if this broker leads it or it is moving.

        Raises:
            PeerFailed: No broker answered before the sender gave up. The text says why.
        """
        reason, pause_ms = "", _PAUSE_MIN_MS
        while self._turn.now_ms < waiting.deadline_ms:
            target = await self._find_target(queue_key) or self._leader_lookup.find_replica(queue_key)
            if self._is_local(queue_key):
                return None
            if self._is_unknown(queue_key):
                break
            if target is not None:
                try:
                    answer = await self._relay_client.request(waiting, target, timeout_ms)
                except PeerFailed as error:
                    reason = str(error)
                    replica = self._leader_lookup.find_replica(queue_key)
                    if replied := await self._relay_client.request_replica(waiting, replica, timeout_ms):
                        return replied
                else:
                    is_new_leader = self._leader_lookup.update_from_answer(queue_key, answer)
                    if answer.code == ResponseCode.SUCCESS and not is_not_led(answer.body):
                        return answer.body
                    reason = f"{target.address} is not the leader: {answer.remark or ''}"
                    if is_new_leader:
                        continue
                self._leader_lookup.suspect_addresses()
            await Pause(pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
        leader = self.find_leader_name(queue_key) or "an unknown broker"
        raise PeerFailed(
            f"queue {queue_key[1]} of {queue_key[0]} is led by {leader}, which cannot be reached: {reason}"
        )

    # Leaders.

    def may_accept_sends(self, topic: str, queues: Iterable[LogicalQueueId]) -> bool:
        """Return whether this broker may accept sends of all these queues, if it leads them."""
        return all(self._find_obstacle((topic, queue)) is None for queue in queues)

    def _is_moving(self, queue_key: QueueKey) -> bool:
        return self.is_held(queue_key) or self._mappings.placement(*queue_key).state == "sealed"

    def _is_local(self, queue_key: QueueKey) -> bool:
        """Return whether requests for a queue need no relaying at the moment."""
        return self.is_held(queue_key) or self._mappings.placement(*queue_key).state in {"open", "sealed"}

    def _is_unknown(self, queue_key: QueueKey) -> bool:
        """Return whether neither this broker nor a name server knows a queue: the topic has too few queues so far."""
        return self._mappings.placement(*queue_key).state == "unknown" and self.find_leader_name(queue_key) is None

    def find_leader_name(self, queue_key: QueueKey) -> str | None:
        """Return the name of the known leader of a queue without querying another server, or None if it is unknown."""
        return self._leader_lookup.find_leader_name(queue_key)

    def find_leader(self, queue_key: QueueKey) -> tuple[Leader, str]:
        """Return the leader of a queue and its address; `NO_LEADER` while a move is being decided, or if unknown."""
        leader = NO_LEADER if self._is_moving(queue_key) else self._leader_lookup.find(queue_key)
        return leader, self._leader_lookup.address(leader)

    def is_superseded(self, queue_key: QueueKey, generation: int | None) -> bool:
        """Return whether this broker leads a queue in an older generation than another broker knows.

        It then was replaced by force, or lost data. It suspects the topic, and refuses requests of that generation.
        """
        placement = self._mappings.placement(*queue_key)
        if placement.state != "open" or not is_newer(generation, placement.generation):
            return False
        self.suspects.add(queue_key[0])
        return True

    async def _find_target(self, queue_key: QueueKey) -> Target | None:
        """Return the leader to relay to, or None while a move is being decided or the leader is unknown."""
        return None if self._is_local(queue_key) else await self._leader_lookup.find_target(queue_key)

    def _wants_leader(self, waiting: WaitingRequest, queue_key: QueueKey) -> bool:
        """Return whether to name the leader to a client: it has mapping support, and is connected to this broker."""
        is_asking = not waiting.hops and waiting.command.fields.get(MAPPING_FIELD) == "1"
        return is_asking and self._leader_lookup.find_leader_name(queue_key) not in {None, self._name}

    def _add_leader(self, queue_key: QueueKey, answer: Command) -> bytes:
        """Return the encoded answer, with the leader of the queue added."""
        leader = self._leader_lookup.find(queue_key)
        answer.fields |= leader_fields(leader)
        return encode_command(answer)

    def _refuse_not_leader(self, waiting: WaitingRequest, queue_key: QueueKey) -> None:
        """Refuse a request for a queue that is not led here. The refusal says so if the queue has no leader.

        For a request that another broker relayed, this broker's own record is enough: that broker then queries the name
        servers.
        """
        if not self._leader_lookup.is_leaderless(queue_key, needs_answer=not waiting.hops):
            self._refuse(waiting)
            return
        remark = (
            f"logical queue {queue_key[1]} of {queue_key[0]} has no leader, because its mapping was deleted; assign it"
            f" to a broker with `holdfast queue set {queue_key[0]} {queue_key[1]} --broker BROKER`"
        )
        self._refuse(waiting, remark=remark, fields={LEADER_FIELD: NO_BROKER})

    def _refuse(
        self,
        waiting: WaitingRequest,
        code: ResponseCode = ResponseCode.NOT_LEADER_FOR_QUEUE,
        remark: str = "the queue is moving, or its leader cannot be reached; ask the name server and try again",
        fields: dict[str, str] | None = None,
    ) -> None:
        if not waiting.command.is_one_way:
            answer = encode_command(response(waiting.command, code, remark, fields=fields))
            self._turn.send(waiting.channel, [answer])

    def _set_timer(self, deadline_ms: int | None = None) -> None:
        if deadline_ms is None:
            deadlines = (waiting.deadline_ms for held in self.moving.values() for waiting in held)
            deadline_ms = min(deadlines, default=None)
        if deadline_ms is not None and (self._timer_ms is None or deadline_ms < self._timer_ms):
            self._timer_ms = deadline_ms
            self._turn.set_timer(TIMER, deadline_ms)


def _suspend_ms(command: Command) -> int:
    """Return how long a pull may be parked."""
    is_waiting = parse_count(command.fields.get("sysFlag"), 0) & SUSPEND
    return min(parse_count(command.fields.get("suspendTimeoutMillis"), 0), SUSPEND_MAX_MS) if is_waiting else 0
