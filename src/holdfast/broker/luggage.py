"""What a logical queue takes along when it moves: how far its groups have consumed it, and who may consume it in order.

Offsets and locks live at the leader. Locks are in memory only, and lapse. Offsets are in a file that is saved now and
then; until they are in it, the record of the move has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.broker.groups import GroupTable
from holdfast.broker.locks import QueueLocks
from holdfast.broker.mapping_records import MoveState
from holdfast.broker.offsets import OffsetTable
from holdfast.broker.sink_book import SinkBook
from holdfast.model.scope import mock_broker
from holdfast.wire.moves import LockHeld, Opening
from holdfast.wire.sink import SinkState


class Luggage:
    """Packs and unpacks."""

    def __init__(self, offsets: OffsetTable, groups: GroupTable, locks: QueueLocks, sinks: SinkBook) -> None:
        self._offsets = offsets
        self._groups = groups
        self._locks = locks
        self._sinks = sinks

    @property
    def save_count(self) -> int:
        """How often offsets were saved: what is unpacked now is safe when it is higher."""
        return self._offsets.save_count

    def offsets(self, topic: str, queues: Collection[int]) -> dict[str, dict[int, int]]:
        """Return the committed offsets of these queues: group to queue to offset."""
        packed: dict[str, dict[int, int]] = {}
        for group in self._offsets.groups_of(topic):
            found = {
                queue: offset for queue, offset in self._offsets.queues_of(group, topic).items() if queue in queues
            }
            if found:
                packed[group] = found
        return packed

    def locks(self, topic: str, queues: Collection[int]) -> list[LockHeld]:
        """Return the locks on these queues."""
        return self._locks.held_of(topic, queues)

    def sinks(self, topic: str, queues: Collection[int]) -> list[SinkState]:
        """Return what sinks that want every row once have written to these queues."""
        return self._sinks.pack(topic, queues)

    def leave(self, topic: str, queues: Collection[int]) -> None:
        """Forget the locks on queues that are elsewhere, and what sinks wrote to them."""
        self._locks.forget_queues(topic, queues)
        self._sinks.forget(topic, queues)

    def unpack(self, opening: Opening, queues: Collection[int], now_ms: int) -> None:
        """Take over what came with *opening* for these of its queues."""
        for group, offsets in opening.offsets.items():
            self._groups.ensure(group, now_ms)
            for queue, offset in offsets.items():
                if queue in queues:
                    self._offsets.reset(group, opening.topic, queue, offset, deliver=False)
        locks = [lock for lock in opening.locks if lock.queue in queues]
        self._locks.adopt(opening.topic, mock_broker(opening.scope), locks)
        self._sinks.adopt(opening.topic, [state for state in opening.sinks if state.queue in queues])

    def restore(self, broker: str, moves: Iterable[MoveState], now_ms: int) -> None:
        """Take over once more what never got into the file of offsets."""
        for state in moves:
            if state.opening is None or state.move.target != broker:
                continue
            if self._offsets.save_count <= state.saved:
                self.unpack(state.opening, state.move.queues, now_ms)
            # Kept in another file, which may be older; what is newer there stays.
            led = set(self._sinks.led(state.move.topic))
            self._sinks.adopt(state.move.topic, [each for each in state.opening.sinks if each.queue in led])
