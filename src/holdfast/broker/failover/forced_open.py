"""Opens the queues of dead leaders by force, and fences leaders that were replaced.

    operator: "the leader will not return" ─7005─> a new leader opens far above all existing offsets (a gap of 2^40)

    the old leader returns ─> it learns that a newer generation than its own exists
                           ─> it is fenced: seals its segment durably, and relays what reaches it from then on
                           ─> reports its exact end to the new leader (7006): readers that waited there continue

A broker learns of newer generations from name servers: when it starts, when a topic's epoch changes, and periodically.
After a start it accepts no sends of a logical queue before a name server has answered for the topic, and before all
other brokers that it knows were asked. While no name server answers it waits, because it may have been replaced. Until
a replaced broker is fenced it may write inside the gap, so no offset is ever used twice, and the messages that it
acknowledged are readable at their offsets.

An operator who does not want to wait for the old leader fixes the end by hand (7006), and loses the messages after it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.failover.offset_backup import OffsetBackup, choose_backups
from holdfast.broker.flow.awaitables import Pause, PeerCall, Synced
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.refusals import refuse_on_error
from holdfast.broker.flow.request import Answer, Handlers, Request, Timers
from holdfast.broker.mapping.cluster_view import ClusterView, read_mappings
from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.mapping.mapping_table import FINISHED, Mappings
from holdfast.broker.move.move_source import MoveSource
from holdfast.broker.move.move_target import MoveTarget, to_queue
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.relay import Relay
from holdfast.broker.relay.suspects import TIMER as SUSPECTS_TIMER
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, MappingRefused, PeerFailed, RecordRefused
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping, next_epoch
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset, PhysicalQueueId
from holdfast.model.segment import is_newer
from holdfast.wire.cluster.mapping import from_number, to_number
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.moves import (
    AbandonRequest,
    ForceRequest,
    OpenAnswer,
    decode_body,
    encode_body,
)

TIMER: Final = "forced moves"
CHECK_MS: Final = 15_000
_CONFIRM_PAUSE_MIN_MS: Final = 50
_CONFIRM_PAUSE_MAX_MS: Final = 1_000
_FETCH_TIMEOUT_MS: Final = 3_000
_PEERS_PAUSE_MS: Final = 20
_FENCE_PAUSE_MS: Final = 500
_REPORT_PAUSE_MS: Final = 5_000
_REPORT_TRIES: Final = 60


class ForcedMoves(MasterComponent):
    """Forced moves: opens queues as the new leader, and fences this broker as the old leader."""

    def __init__(
        self,
        options: BrokerOptions,
        mappings: Mappings,
        view: ClusterView,
        relay: Relay,
        move_source: MoveSource,
        move_target: MoveTarget,
        backup: OffsetBackup,
        turn: Turn,
    ) -> None:
        self._name = options.name
        self._namesrv = options.namesrv
        self._mappings = mappings
        self._view = view
        self._relay = relay
        self._move_source = move_source
        self._move_target = move_target
        self._payload = move_target.payload
        self._backup = backup
        self._turn = turn
        self._checking: set[str] = set()
        self._are_peers_queried = True
        self._suspects = relay.suspects

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {
            RequestCode.FORCE_QUEUES: refuse_on_error(self._force),
            RequestCode.ABANDON_QUEUE: refuse_on_error(self._fix_end),
        }

    # The new leader.

    async def _force(self, request: Request) -> Answer:
        """Answer 7005 once the queues are open here."""
        order = decode_body(request.command.body, ForceRequest)
        await self._view.refresh_everywhere(order.topic.name)
        for queue in map(to_queue, order.queues):
            # A late or outdated order: two leaders of the same generation could not be distinguished.
            self._view.require_newest(order.topic.name, queue)
        copied = await self.open_forced(order)
        return request.answer(fields=to_fields(OpenAnswer(copied=copied)))

    async def open_forced(self, order: ForceRequest) -> int:
        """Open queues of an unreachable leader. Return how many bytes of messages their new segments hold already.

        Raises:
            MappingRefused: they cannot be opened here.
            DiskFailed, RecordRefused: the change could not be written.
        """
        backups = await self._backup.collect(order.topic.name, {queue.queue for queue in order.queues})
        now_ms = self._turn.now_ms
        mapping = self._move_target.ensure_mapping(order.topic, order.scope, order.epoch, order.total)
        received = [to_queue(segments) for segments in order.queues]
        try:
            known = [self._reconcile(mapping, queue) for queue in received]
            # A repeated order, or the queue was led here all the time: there is nothing to force.
            forced = [queue for queue in known if queue.leader.broker != self._name]
            mapping = mapping.with_queues(*known)
            unprepared = [queue.queue for queue in forced if not self._is_prepared(queue)]
            allocated = self._mappings.allocate(mapping, unprepared)
            opened = [
                queue.force(self._name, PhysicalQueueId(self._choose_physical(queue, allocated))) for queue in forced
            ]
            epoch = max(order.epoch, next_epoch(mapping.epoch, now_ms))
            opened_mapping = mapping.with_queues(*opened, epoch=epoch)
            state = self._payload.build_state(opened_mapping, forced, choose_backups(forced, backups))
            position = self._mappings.change(opened_mapping, move=state)
            self._payload.replace_offsets(state)
        finally:
            # A sealed queue is a closed segment by now, recorded with its end. If the change failed, it opens again.
            self._mappings.unseal(order.topic.name, [queue.queue for queue in received])
        for queue in forced:
            self._end_incoming(order.topic.name, queue.queue)
        self._relay.release(order.topic.name, [queue.queue for queue in forced])
        ends = self._mappings.find_ends(order.topic.name, opened)
        await Synced(position)
        restored = len(backups.keys() & {queue.queue for queue in forced})
        self._log("warning", "queues opened by force", topic=order.topic.name, queues=len(opened), copied=restored)
        self._turn.spawn(self._move_source.announce_epoch(order.topic.name))
        return self._mappings.count_bytes(order.topic.name, ends)

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer, SUSPECTS_TIMER: self._suspect_all}

    def _reconcile(self, mapping: TopicMapping, received: LogicalQueue) -> LogicalQueue:
        """Return the best known state of a queue: the record here may be newer than the one the operator saw.

        If the record here is older, this broker may have led the queue and not know that it was replaced. Then only
        this broker knows the end of its segment, and seals it at its current end.
        """
        own = mapping.queues.get(received.queue)
        if own is None:
            return received
        is_foreign = own.leader.broker != self._name and not self._is_prepared(own)
        own_newest, received_newest = own.segments[-1].generation, received.segments[-1].generation
        if is_foreign:  # The record may lack segments of other brokers: only the leader keeps those up to date.
            return own.reconcile(received) if is_newer(own_newest, received_newest) else received.reconcile(own)
        if not is_newer(received_newest, own_newest):
            return own
        is_replaced = is_newer(received.generation, own.generation)
        return received.reconcile(self._closed(mapping.topic, own)) if is_replaced else received

    def _closed(self, topic: str, own: LogicalQueue) -> LogicalQueue:
        """Return a queue that ends at its current end. If this broker leads it, it accepts no more sends."""
        if own.leader.broker != self._name or not own.leader.is_open:
            return own
        (sealed,) = self._mappings.seal(topic, [own.queue]).values()
        return own.seal(*sealed)

    def _is_prepared(self, queue: LogicalQueue) -> bool:
        return queue.prepared is not None and queue.prepared.broker == self._name

    def _choose_physical(
        self, queue: LogicalQueue, allocated: dict[LogicalQueueId, PhysicalQueueId]
    ) -> PhysicalQueueId:
        prepared = queue.prepared
        return prepared.queue_id if prepared is not None and self._is_prepared(queue) else allocated[queue.queue]

    def _end_incoming(self, topic: str, number: LogicalQueueId) -> None:
        """End the unfinished moves of a queue: it is open here now."""
        for state in list(self._mappings.moves().values()):
            move = state.move
            if move.topic != topic or number not in move.queues or move.state in FINISHED:
                continue
            if move.target == self._name:
                # No broker is left to decide about its other queues; they can still be opened if they are handed over.
                self._move_target.cancel_move(state, "a forced move came first")
                continue
            ended = msgspec.structs.replace(move, state="cancelled", reason="a forced move came first")
            self._mappings.put_move(MoveState(move=ended))

    async def _fix_end(self, request: Request) -> Answer:
        """Answer 7006: fix the end of a force-closed segment, as reported by its broker or set by an operator."""
        order = decode_body(request.command.body, AbandonRequest)
        mapping = self._mappings.find(order.topic)
        queue = None if mapping is None else mapping.queues.get(order.queue)
        if mapping is None or queue is None or queue.leader.broker != self._name:
            raise MappingRefused(
                "own queues",
                f"{self._name} does not lead logical queue {order.queue} of {order.topic}: send this to its leader",
            )
        segment = queue.find(from_number(order.generation))
        if segment is None or not segment.is_decided:
            raise MappingRefused(
                "known ends",
                f"logical queue {order.queue} of {order.topic} has no segment of generation {order.generation}",
            )
        await self._record_end(
            mapping, queue, segment, max(segment.to_physical(LogicalOffset(order.end)), segment.start)
        )
        return request.answer()

    async def _record_end(
        self, mapping: TopicMapping, queue: LogicalQueue, segment: Segment, end: PhysicalOffset
    ) -> None:
        fixed = queue.fix_end(end, generation=segment.generation)
        if fixed != queue:
            epoch = next_epoch(mapping.epoch, self._turn.now_ms)
            await Synced(self._mappings.change(mapping.with_queues(fixed, epoch=epoch)))

    async def _fetch_ends(self, topic: str) -> None:
        """Ask brokers for the ends of their segments. They had reported them to an earlier leader, which died."""
        mapping = self._mappings.find(topic)
        for number in () if mapping is None else mapping.led_queues:
            segment = mapping.queues[number].unresolved if mapping is not None else None
            if segment is None:
                continue
            received = await self._fetch_mapping(segment.broker, topic)
            end = None if received is None else _find_end(received, number, segment)
            mapping = self._mappings.find(topic)
            queue = None if mapping is None else mapping.queues.get(number)
            if mapping is None or queue is None or queue.unresolved != segment or end is None:
                continue
            self._log("warning", "end of a segment found", topic=topic, queue=number, broker=segment.broker, end=end)
            await self._record_end(mapping, queue, segment, end)

    # The old leader.

    def start(self) -> None:
        """Start to confirm that this broker still leads the queues that it led before the restart."""
        self._turn.set_timer(TIMER, self._turn.now_ms + CHECK_MS)
        for topic in self._mappings.topics():
            placements = {
                number: self._mappings.placement(topic, number) for number in self._mappings.led_queues(topic)
            }
            led = [number for number, placement in placements.items() if placement.state == "open"]
            if led and self._namesrv:
                self._are_peers_queried = False
                self._relay.suspend_sends(topic, led, self._describe_wait())
                self._turn.spawn(self._confirm_leadership(topic, led))
            self._turn.spawn(self._report_ends(topic))
        if not self._are_peers_queried:
            self._turn.spawn(self._query_peers())

    def on_timer(self) -> None:
        """Check again every topic of which this broker leads queues or awaits a move."""
        for topic in self._mappings.topics():
            if self._mappings.led_queues(topic) or self._move_target.is_awaiting(topic):
                self.suspect(topic)
        self._turn.set_timer(TIMER, self._turn.now_ms + CHECK_MS)

    def _suspect_all(self) -> None:
        for topic in self._suspects.drain():
            self.suspect(topic)

    def suspect(self, topic: str) -> None:
        """Start to check whether another broker leads queues that this broker regards as its own."""
        if topic not in self._checking and self._namesrv:
            self._checking.add(topic)
            self._turn.spawn(self._check(topic))

    async def _confirm_leadership(self, topic: str, led: list[LogicalQueueId]) -> None:
        """Open the queues of a topic after a restart, once name servers and other brokers have answered."""
        pause_ms, is_quiet = _CONFIRM_PAUSE_MIN_MS, True
        await self._view.refresh(topic)
        while not self._view.has_answer(topic) and self._mappings.is_static(topic):
            if pause_ms == _CONFIRM_PAUSE_MAX_MS and is_quiet:
                is_quiet = False
                self._log("warning", "queues not opened", topic=topic, queues=len(led), until=self._describe_wait())
            await Pause(pause_ms)
            pause_ms = min(2 * pause_ms, _CONFIRM_PAUSE_MAX_MS)
            await self._view.refresh(topic)
        while not self._are_peers_queried and self._mappings.is_static(topic):
            await Pause(_PEERS_PAUSE_MS)
        if not is_quiet:
            self._log("info", "queues opened after all", topic=topic, queues=len(led) - len(self._find_lost(topic)))
        # The queues that were lost are held again before any send is accepted.
        self._relay.resume_sends(topic, led)
        await self._fence_all(topic)

    def _describe_wait(self) -> str:
        return f"a name server confirms that {self._name} still leads it ({', '.join(self._namesrv)} asked)"

    async def _query_peers(self) -> None:
        """Learn what other brokers lead: name servers withhold a topic while its registered mappings contradict."""
        try:
            await self._view.refresh()
            while not self._view.has_answer():
                await Pause(_CONFIRM_PAUSE_MAX_MS)
                await self._view.refresh()
            await self._view.refresh_from_brokers()
        finally:
            self._are_peers_queried = True

    async def _check(self, topic: str) -> None:
        try:
            await self._view.refresh(topic)
            self._move_target.cancel_superseded(topic)
            await self._fence_all(topic)
            await self._fetch_ends(topic)
        finally:
            self._checking.discard(topic)

    def _find_lost(self, topic: str) -> dict[LogicalQueueId, str]:
        """Return the queues of *topic* that another broker leads in a newer generation, with that broker."""
        lost: dict[LogicalQueueId, str] = {}
        for number in self._mappings.led_queues(topic):
            placement = self._mappings.placement(topic, number)
            newer = self._view.leader_above(topic, number, placement.generation)
            if newer is not None and newer != self._name and not self._is_own_move(topic, number, newer):
                lost[number] = newer
        return lost

    async def _fence_all(self, topic: str) -> None:
        """Give up every queue of *topic* that has a newer leader. Hold its sends meanwhile.

        Only the new leader knows how it recorded our segment. While it is unreachable the queue waits.
        """
        pause_ms = _FENCE_PAUSE_MS
        while lost := self._find_lost(topic):
            self._relay.hold(topic, lost)
            for leader in sorted(set(lost.values())):
                received = await self._fetch_mapping(leader, topic)
                for number in [number for number, newer in lost.items() if newer == leader]:
                    if received is not None and number in received.queues:
                        await self._fence(topic, received.queues[number])
            await self._report_ends(topic)
            if self._find_lost(topic):
                await Pause(pause_ms)
                pause_ms = min(2 * pause_ms, CHECK_MS)
                await self._view.refresh(topic)
            self._relay.release(topic, [number for number in lost if number not in self._find_lost(topic)])

    def _is_own_move(self, topic: str, number: LogicalQueueId, leader: str) -> bool:
        """Return whether the newer leader is the target of our own granted move, which is no conflict."""
        state, mapping = self._mappings.find_move(topic, number), self._mappings.find(topic)
        if state is None or mapping is None or state.move.state != "granted":
            return False
        granted = mapping.queues[number].segments[-1].generation
        is_later = self._view.leader_above(topic, number, granted) is not None  # By force, or by another move.
        return state.move.target == leader and state.move.source == self._name and not is_later

    async def _fetch_mapping(self, broker: str, topic: str) -> TopicMapping | None:
        """Return the mapping of *topic* on *broker*; None if it does not answer."""
        try:
            address = await self._view.find_address(broker)
            answer = await PeerCall(address, Command(code=RequestCode.GET_MAPPINGS), _FETCH_TIMEOUT_MS)
        except PeerFailed:
            return None
        return next((record for record in read_mappings(answer) if record.topic == topic), None)

    async def _fence(self, topic: str, received: LogicalQueue) -> None:
        """Close a queue that has a newer leader and whose sends are held. Durable before the end is reported.

        Its messages are synced before its end is written, so that a power failure cannot change the end.
        """
        await Synced(self._mappings.log_end)
        mapping = self._mappings.find(topic)
        own = None if mapping is None else mapping.queues.get(received.queue)
        if mapping is None or own is None or not is_newer(received.generation, own.generation):
            return
        log = self._mappings.placement(topic, received.queue).queue_index
        try:
            # Segments that the new leader prepares elsewhere are left out: no one would report their outcome to us.
            fenced = received.without_prepared.reconcile(self._closed(topic, own))
            position = self._mappings.change(mapping.with_queues(fenced))
        except (MappingRefused, RecordRefused) as error:
            self._log("error", "a newer leader contradicts", topic=topic, queue=received.queue, reason=str(error))
            return
        self._move_source.drop_queue(topic, received.queue, f"{received.leader.broker} leads it by force")
        self._relay.release(topic, [received.queue])
        self._move_source.wake_pulls([] if log is None else [log])
        self._log("warning", "queue fenced", topic=topic, queue=received.queue, leader=received.leader.broker)
        await Synced(position)

    async def step_down(self, topic: str, number: LogicalQueueId, leader: str) -> None:
        """Give up an empty queue that was opened here when another broker was confirmed in the same generation."""
        received = await self._fetch_mapping(leader, topic)
        mapping = self._mappings.find(topic)
        own = None if mapping is None else mapping.queues.get(number)
        confirmed = None if received is None else received.queues.get(number)
        log = self._mappings.placement(topic, number).queue_index
        if mapping is None or own is None or confirmed is None or log is None:
            return
        is_tied = confirmed.generation == own.generation and (own.leader.broker, confirmed.leader.broker) == (
            self._name,
            leader,
        )
        if not is_tied or own.prepared is not None or log.next_offset > own.leader.start:
            return
        position = self._mappings.change(mapping.with_queues(confirmed.reconcile(own)))
        self._move_source.drop_queue(topic, number, f"{leader} leads it")
        self._relay.release(topic, [number])
        self._move_source.wake_pulls([log])
        self._log("warning", "queue given up", topic=topic, queue=number, leader=leader)
        await Synced(position)

    async def _report_ends(self, topic: str) -> None:
        """Report the ends of our force-closed segments to their new leaders, until each has answered."""
        mapping = self._mappings.find(topic)
        queues = [] if mapping is None else list(mapping.queues.values())
        for queue in queues:
            for segment in queue.readable:
                if segment.broker == self._name and segment.forced and segment.logical_end is not None:
                    order = AbandonRequest(
                        topic=topic,
                        queue=queue.queue,
                        generation=to_number(segment.generation),
                        end=segment.logical_end,
                    )
                    await self._report_end(queue.leader.broker, order)

    async def _report_end(self, leader: str, order: AbandonRequest) -> None:
        for _ in range(_REPORT_TRIES):
            try:
                address = await self._view.find_address(leader)
                answer = await PeerCall(address, Command(code=RequestCode.ABANDON_QUEUE, body=encode_body(order)))
            except PeerFailed:
                self._view.suspect_addresses()
                await Pause(_REPORT_PAUSE_MS)
                continue
            except DiskFailed:
                return
            if answer.code == ResponseCode.SUCCESS:
                return
            # The queue may have moved again: report to its current leader.
            await self._view.refresh(order.topic)
            newer = self._view.leader(order.topic, order.queue)
            if newer is None or newer in {leader, self._name}:
                return
            leader = newer

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._turn.log(level, event, **fields)


def _find_end(received: TopicMapping, number: LogicalQueueId, segment: Segment) -> PhysicalOffset | None:
    """Return the end of a segment in the mapping of its broker; None if that does not have it yet.

    A segment that was granted but is not in that mapping was never opened. It never will be: a target that opens late
    asks for a newer leader first.
    """
    known = received.queues[number].find(segment.generation) if number in received.queues else None
    if known is None:
        return segment.start
    return known.end if known.physical_queue == segment.physical_queue else None
