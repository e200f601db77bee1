"""Leases of logical queues, so that dead leaders are replaced automatically (`auto_force`).

    every few seconds, and when a queue was opened here:
        this broker ─ 7040: the queues I lead ─> every name server ─ refused and lapsed queues ─> this broker

    a majority confirmed a queue less than a lease ago ─> its sends are accepted
    otherwise ─> its sends are held, then refused with the reason, until a majority confirms it again
    a majority reports a queue as lapsed ─> one broker after the other has its turn: claims it ─> opens it by force

A name server confirms a queue to one broker at a time, and to a second one only after two leases without a request from
the first. Any two majorities share a name server, so only the confirmed broker accepts sends, even if another one
regards itself as the leader. This alone makes leases safe: the rules about which broker forces which queue, and when,
only avoid conflicts.

A lease counts from when it was requested, in time that passes between events. A clock that goes back stops this time
for one event; one that jumps forward ends leases early. A process that was suspended notices this at its first event,
before it accepts anything from that event.

With `auto_force` off there are no leases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.broker.failover.forced_open import ForcedMoves
from holdfast.broker.failover.incarnation import start_incarnation
from holdfast.broker.flow.awaitables import PeerCall
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.request import Timers
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.held_leases import HeldLeases
from holdfast.broker.relay.relay import Relay
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, MappingRefused, PeerFailed, RecordRefused, RemoteProtocolError
from holdfast.model.mapping import LogicalQueue, MergedTopic, merge, next_epoch
from holdfast.model.queue import LogicalQueueId, QueueKey
from holdfast.model.route import Route
from holdfast.model.scope import covers
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.leases import Claim, LeaseAnswer, LeaseRequest, QueueLease
from holdfast.wire.cluster.mapping import from_number, to_number, to_wire_segment
from holdfast.wire.cluster.route import MAPPING_FIELD, decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import ForceRequest, QueueSegments, decode_body, encode_body

TIMER: Final = "leases"
_RENEWALS_PER_LEASE: Final = 6
_TRIES_PER_LEASE: Final = 60
_CALL_MS: Final = 2_000
_NEVER: Final = 1 << 62


class _NameServer(msgspec.Struct):
    """The last answer of one name server.

    Attributes:
        number: The newest request that it answered.
        requested_ms: When that request was sent, in our own time.
        granted: Queue to generation.
        lapsed: The queues whose leases have lapsed.
    """

    number: int = 0
    requested_ms: int = 0
    granted: dict[QueueKey, int | None] = {}
    lapsed: dict[QueueKey, QueueLease] = {}


class LeaseRenewal(MasterComponent):
    """Renews this broker's leases, and takes over queues whose leases have lapsed.

    Attributes:
        is_enabled: Whether leases are enabled.
    """

    def __init__(
        self,
        options: BrokerOptions,
        mappings: Mappings,
        topics: TopicTable,
        relay: Relay,
        forced_moves: ForcedMoves,
        leases: HeldLeases,
        turn: Turn,
        disk: Disk,
    ) -> None:
        self.is_enabled = leases.is_enabled
        self._name = options.name
        self._lease_ms = options.lease_ms
        self._mappings = mappings
        self._topics = topics
        self._relay = relay
        self._forced_moves = forced_moves
        self._leases = leases
        self._turn = turn
        self._servers = {address: _NameServer() for address in options.namesrv}
        self._last_event_ms = turn.now_ms
        self._incarnation = start_incarnation(disk, turn) if self.is_enabled else 0
        self._number = self._version = 0
        self._lapse_ms = _NEVER
        self._requested: dict[QueueKey, int | None] = {}
        self._extra_claims: dict[QueueKey, Claim] = {}
        self._is_force_running = False

    # Time.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def start(self) -> None:
        """Request leases for the first time."""
        if self.is_enabled:
            self._turn.set_timer(TIMER, self._turn.now_ms)

    def advance_time(self) -> None:
        """Advance our time to the current event, before anything of that event is accepted."""
        now_ms = self._turn.now_ms
        self._leases.elapsed_ms += max(0, now_ms - self._last_event_ms)
        self._last_event_ms = now_ms
        if self._leases.elapsed_ms >= self._lapse_ms:
            self._recompute_leases()
            self._log("warning", "leases lapsed", until=self._leases.describe_wait())
            self._renew_all()
        elif self._version != self._mappings.version:
            self._version = self._mappings.version
            if self._is_changed():
                self._renew_all()

    def on_timer(self) -> None:
        """Renew all leases. Retry sooner while a queue is not confirmed."""
        self._renew_all()
        is_waiting = any(self._leases.find_lapse(queue_key) is not None for queue_key, _ in self._led_queues())
        pause_ms = self._lease_ms // (_TRIES_PER_LEASE if is_waiting else _RENEWALS_PER_LEASE)
        self._turn.set_timer(TIMER, self._turn.now_ms + pause_ms)

    # Leases.

    def _led_queues(self) -> Iterator[tuple[QueueKey, LogicalQueue]]:
        for topic, mapping in self._mappings.topics().items():
            for number in mapping.led_queues:
                yield (topic, number), mapping.queues[number]

    def _is_changed(self) -> bool:
        """Return whether a queue was opened here or handed over since the last request."""
        return self._requested != {queue_key: queue.generation for queue_key, queue in self._led_queues()}

    def _find_lease_end(self, queue_key: QueueKey, generation: int | None) -> int:
        """Return when the lease of a queue in that generation ends: 0 if it has none."""
        requested = sorted(
            (server.requested_ms for server in self._servers.values() if server.granted.get(queue_key) == generation),
            reverse=True,
        )
        return requested[self._leases.majority - 1] + self._lease_ms if len(requested) >= self._leases.majority else 0

    def _recompute_leases(self) -> None:
        """Recompute the leases: release sends of newly leased queues, and stop sends of queues whose lease lapsed."""
        before = {queue_key: ends for queue_key, ends in self._leases.ends.items() if ends[1] > 0}
        self._leases.ends = {
            queue_key: (
                queue.generation,
                end_ms
                if (end_ms := self._find_lease_end(queue_key, queue.generation)) > self._leases.elapsed_ms
                else 0,
            )
            for queue_key, queue in self._led_queues()
        }
        ends = [end_ms for _, end_ms in self._leases.ends.values() if end_ms]
        self._lapse_ms = min(ends, default=_NEVER)
        for queue_key, (generation, end_ms) in self._leases.ends.items():
            if end_ms and (queue_key not in before or before[queue_key][0] != generation):
                self._relay.release(queue_key[0], [queue_key[1]])
        if any(queue_key not in self._leases.ends or not self._leases.ends[queue_key][1] for queue_key in before):
            self._mappings.version += 1  # Invalidates cached decisions to accept sends of these queues.

    # Requests.

    def _renew_all(self) -> None:
        self._requested = {queue_key: queue.generation for queue_key, queue in self._led_queues()}
        for address in self._servers:
            self._turn.spawn(self._renew(address))

    async def _renew(self, address: str) -> None:
        """Send a request to one name server, and apply its answer."""
        requested_ms = self._leases.elapsed_ms
        claims = {queue_key: _to_claim(queue) for queue_key, queue in self._led_queues()} | self._extra_claims
        if not claims and not self._mappings.topics():
            return
        self._number += 1
        number = self._number
        try:
            answer = await PeerCall(address, self._to_request(claims, number), _CALL_MS)
            if answer.code != ResponseCode.SUCCESS:
                return
            decoded = decode_body(answer.body, LeaseAnswer)
        except (PeerFailed, RemoteProtocolError):
            return
        if number <= self._servers[address].number:
            return
        refused = {
            (topic, queue): lease for topic, queues in decoded.refused.items() for queue, lease in queues.items()
        }
        self._servers[address] = _NameServer(
            number=number,
            requested_ms=requested_ms,
            granted={
                queue_key: from_number(claim.generation)
                for queue_key, claim in claims.items()
                if queue_key not in refused
            },
            lapsed={
                (topic, queue): lease for topic, queues in decoded.lapsed.items() for queue, lease in queues.items()
            },
        )
        self._recompute_leases()
        for queue_key, lease in refused.items():
            if queue_key not in self._extra_claims:
                self._handle_refusal(queue_key, lease)
        self._force_lapsed()

    def _handle_refusal(self, queue_key: QueueKey, lease: QueueLease) -> None:
        """Find the leader of a queue that a name server did not confirm to this broker."""
        placement = self._mappings.placement(*queue_key)
        if (
            placement.state == "open"
            and from_number(lease.generation) == placement.generation
            and lease.broker != self._name
        ):
            self._turn.spawn(self._forced_moves.step_down(*queue_key, lease.broker))
        else:
            self._forced_moves.suspect(queue_key[0])

    def _to_request(self, claims: dict[QueueKey, Claim], number: int) -> Command:
        topics: dict[str, dict[LogicalQueueId, Claim]] = {}
        for (topic, queue), claim in claims.items():
            topics.setdefault(topic, {})[queue] = claim
        body = LeaseRequest(
            broker=self._name, boot=self._incarnation, number=number, lease_ms=self._lease_ms, topics=topics
        )
        return Command(code=RequestCode.RENEW_LEASES, body=encode_body(body))

    # Dead leaders.

    def _force_lapsed(self) -> None:
        """Take over queues that a majority reports as lapsed, unless this broker is draining."""
        if self._is_force_running or self._mappings.is_draining:
            return
        for topic in self._mappings.topics():
            lapsed = self._find_lapsed(topic)
            if lapsed:
                self._is_force_running = True
                self._turn.spawn(self._force(topic, lapsed))
                return

    def _find_lapsed(self, topic: str) -> dict[LogicalQueueId, QueueLease]:
        recent = [
            server.lapsed
            for server in self._servers.values()
            if server.number and server.requested_ms + self._lease_ms > self._leases.elapsed_ms
        ]
        reports = Counter(item for lapsed in recent for item in lapsed.items() if item[0][0] == topic)
        return {
            queue_key[1]: lease
            for (queue_key, lease), count in reports.items()
            if lease.broker != self._name and count >= self._leases.majority
        }

    async def _force(self, topic: str, lapsed: dict[LogicalQueueId, QueueLease]) -> None:
        """Claim this broker's share of *lapsed*, and open the queues that a majority confirms."""
        try:
            found = await self._fetch_route(topic)
            if found is None:
                return
            route, merged = found
            own = self._choose_share(route, merged, lapsed)
            claims: dict[QueueKey, Claim] = {(topic, queue.queue): Claim(queue.forced_generation) for queue in own}
            self._extra_claims |= claims
            for address in self._servers if claims else ():
                await self._renew(address)
            now = self._leases.elapsed_ms
            granted = [
                queue
                for queue in own
                if self._find_lease_end(key := (topic, queue.queue), claims[key].generation) > now
            ]
            if granted:
                self._log(
                    "warning", "leader is silent", topic=topic, leader=granted[0].leader.broker, queues=len(granted)
                )
                await self._open(topic, merged, granted)
        except (MappingRefused, RecordRefused, DiskFailed) as error:
            self._log("error", "queues of a dead leader not opened", topic=topic, reason=str(error))
        finally:
            self._extra_claims.clear()
            self._is_force_running = False
        self._recompute_leases()

    async def _fetch_route(self, topic: str) -> tuple[Route, MergedTopic] | None:
        command = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic, MAPPING_FIELD: "1"})
        for address in self._servers:
            try:
                answer = await PeerCall(address, command, _CALL_MS)
                if answer.code == ResponseCode.SUCCESS:
                    route = decode_route(answer.body)
                    records = {
                        name: record
                        for name, record in route.mappings.items()
                        if covers(record.scope, self._mappings.cluster)
                    }
                    if records:
                        return route, merge(records)
            except (PeerFailed, RemoteProtocolError):
                continue
        return None

    def _choose_share(
        self, route: Route, merged: MergedTopic, lapsed: dict[LogicalQueueId, QueueLease]
    ) -> list[LogicalQueue]:
        """Return the queues that are this broker's turn to open.

        Every live broker has its turn at every queue, one after the other: some may refuse it or be unable to open it.
        A queue that was claimed in a newer generation but not opened, as far as reported, is left alone: only its
        claimant knows its state.
        """
        dead = {lease.broker for lease in lapsed.values()}
        in_scope = {data.broker_name for data in route.broker_datas if covers(merged.scope, data.cluster)}
        brokers = sorted(in_scope - dead)
        if self._name not in brokers:
            return []
        known = {number: merged.queues[number] for number in sorted(lapsed) if number in merged.queues}
        candidates = [
            queue
            for number, queue in known.items()
            if (queue.leader.broker, queue.generation) == (lapsed[number].broker, lapsed[number].generation)
        ]
        turn = brokers.index(self._name) + self._leases.elapsed_ms // self._lease_ms
        return candidates[turn % len(brokers) :: len(brokers)]

    async def _open(self, topic: str, merged: MergedTopic, queues: list[LogicalQueue]) -> None:
        config = self._topics.find(topic)
        if config is None:
            return
        order = ForceRequest(
            topic=config,
            scope=merged.scope,
            epoch=next_epoch(merged.epoch, self._turn.now_ms),
            total=merged.total,
            queues=[
                QueueSegments(queue=queue.queue, segments=[to_wire_segment(segment) for segment in queue.segments])
                for queue in queues
            ],
        )
        await self._forced_moves.open_forced(order)

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._turn.log(level, event, **fields)


def _to_claim(queue: LogicalQueue) -> Claim:
    segments = [segment for segment in queue.segments if segment.is_decided]
    previous = segments[-2] if len(segments) > 1 else None
    was_granted = previous is not None and previous.is_sealed and not previous.forced
    return Claim(to_number(queue.generation), previous.broker if previous is not None and was_granted else "")
