"""Moves the queues of a dead leader by force: opens its queues on another broker, then lets it come back.

    the leader is held down ─> last known segments, from the living and the name server ─> 7005 to another broker
                                                                     ... long after that ─> release the leader

With a forced move the operator asserts that the leader is dead. So it stays dead until no part of the order can be in
flight any more. The nemesis does not know the forcer's host, so it cuts none of its links.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from holdfast.model.errors import HoldfastError
from holdfast.model.mapping import MergedTopic, TopicMapping, merge, next_epoch
from holdfast.sim.actors.client import route_query
from holdfast.sim.actors.operator import MappingView, Script, ScriptedClient, read_mappings
from holdfast.wire.cluster.mapping import to_wire_segment
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import ForceRequest, QueueSegments, encode_body

_START_DELAY_MS: Final = (200, 3_000)
_RELEASE_DELAY_MS: Final = 12_000


class ForcedMover(ScriptedClient):
    """One forced move of all queues that one broker leads.

    Args:
        addresses: The address of each broker.
        victim: The leader, which is dead.
        target: The new leader.
        then: Called when the old leader may come back.

    Attributes:
        opened_count: How many queues were opened on the new leader.
    """

    def __init__(  # noqa: PLR0913 - one name for each option
        self,
        name: str,
        name_servers: str,
        rng: Random,
        *,
        addresses: dict[str, str],
        topics: tuple[str, ...],
        unit: str,
        victim: str,
        target: str,
        then: Callable[[], None],
    ) -> None:
        super().__init__(name, name_servers, rng, unit=unit)
        self.opened_count = 0
        self._addresses = addresses
        self._topics = topics
        self._victim = victim
        self._target = target
        self._then = then

    def started(self) -> None:
        """Force the move, wait, and let the old leader come back."""
        self.run(self._force_moves(), self._then)

    def _force_moves(self) -> Script:
        yield self.rng.randint(*_START_DELAY_MS)
        living = {name: address for name, address in self._addresses.items() if name != self._victim}
        view: MappingView = yield from read_mappings(living)
        for topic in self._topics:
            records = dict(view.records.get(topic, {}))
            answer = yield self._name_servers.current, route_query(topic, self.unit)
            if isinstance(answer, HoldfastError) or answer.code != ResponseCode.SUCCESS:
                continue
            reported = decode_route(answer.body).mappings.get(self._victim)
            if reported is not None:
                records[self._victim] = reported
            if view.silent or not records:
                continue
            yield from self._force_topic(view, merge(records), records)
        yield _RELEASE_DELAY_MS

    def _force_topic(self, view: MappingView, merged: MergedTopic, records: dict[str, TopicMapping]) -> Script:
        queues = {number: queue for number, queue in merged.queues.items() if queue.leader.broker == self._victim}
        if not queues or merged.topic not in view.configs:
            return
        order = ForceRequest(
            topic=view.configs[merged.topic],
            scope=merged.scope,
            epoch=next_epoch(max(record.epoch for record in records.values()), self.now_ms),
            total=merged.total,
            queues=[
                QueueSegments(queue=number, segments=[to_wire_segment(segment) for segment in queue.segments])
                for number, queue in queues.items()
            ],
        )
        answer = yield self._addresses[self._target], Command(code=RequestCode.FORCE_QUEUES, body=encode_body(order))
        if not isinstance(answer, HoldfastError) and answer.code == ResponseCode.SUCCESS:
            self.opened_count += len(queues)
