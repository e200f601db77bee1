"""What a logical queue takes along when it moves.

    how far its groups have consumed it, and which of them have yet to hear that they were sent elsewhere
    who may consume it in order     which forwarded messages are in it     what sinks have written to it

These live at the leader. Locks are in memory only, and lapse. Offsets are in a file that is saved now and then; until
they are in it, the record of the move has them, and the resets that wait. It has the names of forwarded messages for as
long as it is kept. A forced move finds no luggage: offsets, and resets that wait, come from a copy that another broker
kept, if any did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.produce.exactly_once import SinkBook
from holdfast.broker.relay.forward_dedup import Forwarded
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.locks import QueueLocks
from holdfast.model.mapping import LogicalQueue, TopicMapping
from holdfast.wire.requests.moves import Move, OffsetCopy, Opening, QueueFloor


class Luggage:
    """Packs and unpacks."""

    def __init__(
        self,
        offsets: OffsetTable,
        groups: GroupTable,
        locks: QueueLocks,
        forwarded: Forwarded,
        sinks: SinkBook,
    ) -> None:
        self._forwarded = forwarded
        self._offsets = offsets
        self._groups = groups
        self._locks = locks
        self._sinks = sinks

    @property
    def save_count(self) -> int:
        """How often offsets were saved: what is unpacked now is safe when it is higher."""
        return self._offsets.save_count

    def pack(self, opening: Opening, queues: Collection[int]) -> Opening:
        """Return *opening* with all that these queues take along."""
        return msgspec.structs.replace(
            opening,
            offsets=self._pack_offsets(opening.topic, queues),
            resets=self._offsets.resets_of(opening.topic, queues),
            locks=self._locks.held_of(opening.topic, queues),
            forwarded=self._forwarded.of(opening.topic, queues),
            sinks=self._sinks.pack(opening.topic, queues),
        )

    def _pack_offsets(self, topic: str, queues: Collection[int]) -> dict[str, dict[int, int]]:
        """Return the committed offsets of these queues: group to queue to offset.

        A group that committed nothing in them is packed, too: it lags there, and the new leader may not know it yet.
        """
        return {
            group: {queue: offset for queue, offset in self._offsets.queues_of(group, topic).items() if queue in queues}
            for group in self._offsets.groups_of(topic)
        }

    def leave(self, topic: str, queues: Collection[int]) -> None:
        """Forget the locks on queues that are elsewhere, whom to send where, and what sinks wrote to them."""
        self._offsets.forget_resets(topic, queues)
        self._locks.forget_queues(topic, queues)
        self._sinks.forget(topic, queues)

    def found(
        self,
        mapping: TopicMapping,
        queues: Sequence[LogicalQueue],
        copies: Iterable[OffsetCopy | QueueFloor],
        now_ms: int,
        *,
        reason: str = "forced",
    ) -> MoveState | None:
        """Return how to record that *queues* came here without their luggage; None if there are none.

        Args:
            mapping: The record with them.
            queues: As they were before.
            copies: How far groups have consumed them, where that was found.
            now_ms: The time.
            reason: Why there was no luggage.
        """
        if not queues:
            return None
        offsets: dict[str, dict[int, int]] = {}
        resets: dict[str, list[int]] = {}
        for copy in copies:
            for group, offset in copy.offsets.items():
                offsets.setdefault(group, {})[copy.queue] = offset
            for group in copy.resets:
                resets.setdefault(group, []).append(copy.queue)
        source, name = queues[0].leader.broker, f"{mapping.broker}.{now_ms:x}.{reason.replace(' ', '-')}"
        move = Move(
            id=name,
            topic=mapping.topic,
            queues=sorted(queue.queue for queue in queues),
            source=source,
            target=mapping.broker,
            state="done",
            reason=reason,
            started_ms=now_ms,
            changed_ms=now_ms,
        )
        opening = Opening(
            move=name,
            source=source,
            topic=mapping.topic,
            scope=mapping.scope,
            epoch=mapping.epoch,
            total=mapping.total,
            queues=[],
            offsets=offsets,
            resets=resets,
        )
        return MoveState(move=move, opening=opening, saved=self.save_count)

    def replace(self, state: MoveState | None, now_ms: int) -> None:
        """Let what was found of queues be all that is known of them: anything else here is of another time."""
        if state is not None and state.opening is not None:
            for queue in state.move.queues:
                self._offsets.forget_queue(state.move.topic, queue)
            self.unpack(state.opening, state.move.queues, now_ms)

    def unpack(self, opening: Opening, queues: Collection[int], now_ms: int) -> None:
        """Take over what came with *opening* for these of its queues."""
        for group, offsets in opening.offsets.items():
            self._groups.ensure(group, now_ms)
            self._offsets.note_consumer(group, opening.topic)
            untold = opening.resets.get(group, ())
            for queue, offset in offsets.items():
                if queue in queues:
                    self._offsets.reset(group, opening.topic, queue, offset, deliver=queue in untold)
        locks = [lock for lock in opening.locks if lock.queue in queues]
        self._locks.adopt(opening.topic, locks)
        self._forwarded.adopt(mark for mark in opening.forwarded if mark.queue in queues)
        self._sinks.adopt(opening.topic, [state for state in opening.sinks if state.queue in queues])

    def restore(self, broker: str, moves: Iterable[MoveState], now_ms: int) -> None:
        """Take over once more what never got into the file of offsets."""
        for state in moves:
            is_lost = self._offsets.save_count <= state.saved
            if state.opening is not None and state.move.target == broker:
                self._forwarded.adopt(state.opening.forwarded)
                if is_lost:
                    self.replace(state, now_ms)
                # Kept in another file, which may be older; what is newer there stays.
                led = set(self._sinks.led(state.move.topic))
                self._sinks.adopt(state.move.topic, [each for each in state.opening.sinks if each.queue in led])
