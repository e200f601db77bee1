"""The state that moves with a logical queue to its new leader.

    consumer offsets, and resets not yet delivered     consume locks
    marks that deduplicate forwarded messages          states of exactly-once sinks

The leader owns this state. Locks are in memory only and expire. Offsets are in a file that is saved periodically; until
then the record of the move holds them, together with the pending resets. The move record keeps the deduplication marks
for as long as the record exists. A forced move has no payload: it restores offsets and pending resets from another
broker's backup, if one exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable, QueueOffsets
from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.produce.exactly_once import SinkProgress
from holdfast.broker.relay.forward_dedup import ForwardedNames
from holdfast.broker.relay.group_gossip import GroupMembers
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.locks import QueueLocks
from holdfast.machine.turn import Turn
from holdfast.model.mapping import LogicalQueue, TopicMapping
from holdfast.model.queue import LogicalQueueId
from holdfast.wire.requests.moves import Move, OpenQueues, QueueFloor, QueueOffsetBackup


class MovePayload:
    """Packs the payload on the source and unpacks it on the target."""

    def __init__(
        self,
        offsets: OffsetTable,
        groups: GroupTable,
        locks: QueueLocks,
        forwarded: ForwardedNames,
        sinks: SinkProgress,
        members: GroupMembers,
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._forwarded = forwarded
        self._offsets = offsets
        self._groups = groups
        self._locks = locks
        self._sinks = sinks
        self._members = members

    @property
    def save_count(self) -> int:
        """How often the offsets file was saved. State unpacked now is on disk once this number has grown."""
        return self._offsets.save_count

    async def announce_members(self, target: str) -> None:
        """Announce the queues' consumers to *target*, before they reach it through brokers it does not know."""
        await self._members.report_to(target)

    def pack(self, open_order: OpenQueues, queues: Collection[LogicalQueueId]) -> OpenQueues:
        """Return *open_order* with the whole payload of these queues."""
        return msgspec.structs.replace(
            open_order,
            offsets=self._pack_offsets(open_order.topic, queues),
            resets=self._offsets.resets_of(open_order.topic, queues),
            locks=self._locks.locks_of(open_order.topic, queues),
            forwarded=self._forwarded.names_of(open_order.topic, queues),
            sinks=self._sinks.pack(open_order.topic, queues),
        )

    def _pack_offsets(self, topic: str, queues: Collection[LogicalQueueId]) -> dict[str, QueueOffsets]:
        """Return the committed offsets of these queues: group to queue to offset.

        Includes groups that have no offset in these queues: they lag there, and the new leader may not know them yet.
        """
        return {
            group: {queue: offset for queue, offset in self._offsets.queues_of(group, topic).items() if queue in queues}
            for group in self._offsets.groups_of(topic)
        }

    def forget(self, topic: str, queues: Collection[LogicalQueueId]) -> None:
        """Forget the locks, pending resets and sink states of queues that have moved away."""
        self._offsets.forget_resets(topic, queues)
        self._locks.forget_queues(topic, queues)
        self._sinks.forget(topic, queues)

    def build_state(
        self,
        mapping: TopicMapping,
        queues: Sequence[LogicalQueue],
        backups: Iterable[QueueOffsetBackup | QueueFloor],
        *,
        reason: str = "forced",
    ) -> MoveState | None:
        """Return a record for *queues* that arrived without a payload; None if *queues* is empty.

        Args:
            mapping: The mapping that contains them.
            queues: The queues before the change.
            backups: The group offsets that were found.
            reason: Why there was no payload.
        """
        now_ms = self._turn.now_ms
        if not queues:
            return None
        offsets: dict[str, QueueOffsets] = {}
        resets: dict[str, list[LogicalQueueId]] = {}
        for backup in backups:
            for group, offset in backup.offsets.items():
                offsets.setdefault(group, {})[backup.queue] = offset
            for group in backup.resets:
                resets.setdefault(group, []).append(backup.queue)
        source, move_id = queues[0].leader.broker, f"{mapping.broker}.{now_ms:x}.{reason.replace(' ', '-')}"
        move = Move(
            id=move_id,
            topic=mapping.topic,
            queues=sorted(queue.queue for queue in queues),
            source=source,
            target=mapping.broker,
            state="done",
            reason=reason,
            started_ms=now_ms,
            changed_ms=now_ms,
        )
        open_order = OpenQueues(
            move=move_id,
            source=source,
            topic=mapping.topic,
            scope=mapping.scope,
            epoch=mapping.epoch,
            total=mapping.total,
            queues=[],
            offsets=offsets,
            resets=resets,
        )
        return MoveState(move=move, opening=open_order, saved=self.save_count)

    def replace_offsets(self, state: MoveState | None) -> None:
        """Replace all local offsets of the queues with those in *state*: local ones date from an earlier leadership."""
        if state is not None and state.opening is not None:
            for queue in state.move.queues:
                self._offsets.forget_queue(state.move.topic, LogicalQueueId(queue))
            self.unpack(state.opening, state.move.queues)

    def unpack(self, open_order: OpenQueues, queues: Collection[LogicalQueueId]) -> None:
        """Adopt the payload in *open_order* for these of its queues."""
        for group, offsets in open_order.offsets.items():
            self._groups.ensure(group)
            self._offsets.record_consumer(group, open_order.topic)
            pending_resets = open_order.resets.get(group, ())
            for queue, offset in offsets.items():
                if queue in queues:
                    self._offsets.reset(group, open_order.topic, queue, offset, deliver=queue in pending_resets)
        locks = [lock for lock in open_order.locks if lock.queue in queues]
        self._locks.adopt(open_order.topic, locks)
        self._forwarded.adopt(mark for mark in open_order.forwarded if mark.queue in queues)
        self._sinks.adopt(open_order.topic, [state for state in open_order.sinks if state.queue in queues])

    def restore(self, broker: str, moves: Iterable[MoveState]) -> None:
        """Adopt the payloads of recorded moves again after a restart, as far as no file has saved them."""
        for state in moves:
            is_lost = self._offsets.save_count <= state.saved
            if state.opening is not None and state.move.target == broker:
                self._forwarded.adopt(state.opening.forwarded)
                if is_lost:
                    self.replace_offsets(state)
                # Sinks have their own file, which may be older than the move; states that are newer there stay.
                led = set(self._sinks.led(state.move.topic))
                self._sinks.adopt(state.move.topic, [each for each in state.opening.sinks if each.queue in led])
