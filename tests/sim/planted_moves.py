"""Bugs in how logical queues move, planted like the others. Only worlds with static topics can show them."""

from typing import Any

import msgspec
import pytest
from tests.sim.planted import Plant

from holdfast.broker.admin import static_admin
from holdfast.broker.consume import consumer_offsets
from holdfast.broker.failover import forced_open
from holdfast.broker.flow.awaitables import Pause
from holdfast.broker.mapping import mapping_table, segment_ends
from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.move import move_source, move_target
from holdfast.broker.relay import held_leases, relay, relay_server
from holdfast.model.logical_queue import LogicalQueue
from holdfast.nameserver.cluster import queue_leases
from holdfast.nameserver.routes import static_topics
from holdfast.wire.cluster.mapping import to_wire_segment
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.moves import MoveQueryAnswer, OpenQueues, QueueSegments
from holdfast.wire.requests.table import Relaying, RequestSpec

MOVE_BUGS: dict[str, Plant] = {}


def bug(plant: Plant) -> Plant:
    """Add a bug to the list, under the name of its function."""
    MOVE_BUGS[plant.__name__] = plant
    return plant


@bug
def seal_not_atomic_with_append(patch: pytest.MonkeyPatch) -> None:
    """The end of a queue is where readers are, and not behind what was accepted a moment ago."""
    seal = mapping_table.Mappings.seal

    def early(self: Any, topic: str, queues: Any) -> dict[int, segment_ends.SealedEnd]:
        ends = seal(self, topic, queues)
        logs = {number: self.placement(topic, number).queue_index for number in ends}
        return {number: ends[number]._replace(end=logs[number].offset_max) for number in ends}

    patch.setattr(mapping_table.Mappings, "seal", early)


@bug
def stale_epoch_accepted_by_the_name_server(patch: pytest.MonkeyPatch) -> None:
    """A registration that was overtaken on its way counts like any other."""
    patch.setattr(static_topics, "_require_newer", lambda _known, _told: None)


@bug
def grant_not_synced_before_open(patch: pytest.MonkeyPatch) -> None:
    """The target opens while the grant is still in the page cache of the source."""
    patch.setattr(move_source, "Synced", lambda _position: Pause(0))


@bug
def open_not_idempotent(patch: pytest.MonkeyPatch) -> None:
    """An opening that is told twice opens another physical queue."""
    apply = move_target.MoveTarget._apply

    def again(self: Any, opening: OpenQueues) -> int:
        known = self._mappings.moves().get(opening.move)
        if known is None or known.move.state != "done":
            return apply(self, opening)
        mapping = self._mappings.find(opening.topic)
        queues = [mapping.queues[told.queue] for told in opening.queues if told.queue in mapping.queues]
        led = [queue for queue in queues if queue.leader.broker == self._name and queue.leader.is_open]
        fresh = self._mappings.allocate(mapping, [queue.queue for queue in led])
        moved = [
            LogicalQueue(
                queue.queue,
                (*queue.segments[:-1], msgspec.structs.replace(queue.segments[-1], queue_id=fresh[queue.queue])),
            )
            for queue in led
        ]
        return self._mappings.change(mapping.with_queues(*moved))

    patch.setattr(move_target.MoveTarget, "_apply", again)


@bug
def held_sends_dropped(patch: pytest.MonkeyPatch) -> None:
    """What arrived while a queue moved is forgotten when it has moved."""

    def forgetful(self: Any, topic: str, queues: Any) -> None:
        for queue in queues:
            self.moving.pop((topic, queue), None)

    patch.setattr(relay.Relay, "release", forgetful)


@bug
def relayed_sends_not_deduplicated(patch: pytest.MonkeyPatch) -> None:
    """An envelope that comes again, because its answer was lost, is taken again."""
    patch.setattr(relay_server.RelayedClients, "_find_remembered", lambda _self, _place, _settled: None)


@bug
def consumer_offsets_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    """The new leader knows nothing of the groups."""
    opening = move_source.MoveSource._to_open_order
    patch.setattr(
        move_source.MoveSource,
        "_to_open_order",
        lambda self, state: msgspec.structs.replace(opening(self, state), offsets={}),
    )


@bug
def fence_ignored_after_a_forced_move(patch: pytest.MonkeyPatch) -> None:
    """A leader that was passed over goes on when it returns."""
    patch.setattr(forced_open.ForcedMoves, "_find_lost", lambda _self, _topic: {})


@bug
def target_opens_without_grant(patch: pytest.MonkeyPatch) -> None:
    """A target that was prepared takes silence for consent."""
    ask = move_target.MoveTarget._query_source

    async def eager(self: Any, move: Any) -> Any:
        verdict = await ask(self, move)
        mapping = self._mappings.find(move.topic)
        queues = [mapping.queues[number] for number in move.queues if number in mapping.queues]
        if verdict is not None or not all(queue.prepared and queue.leader.is_open for queue in queues):
            return verdict
        opened = [queue.seal(queue.leader.start + 1).open_next() for queue in queues]
        return MoveQueryAnswer(
            state="granted",
            opening=OpenQueues(
                move=move.id,
                source=move.source,
                topic=move.topic,
                scope=mapping.scope,
                epoch=mapping.epoch,
                total=mapping.total,
                queues=[
                    QueueSegments(queue=one.queue, segments=[to_wire_segment(home) for home in one.segments])
                    for one in opened
                ],
            ),
        )

    patch.setattr(move_target.MoveTarget, "_query_source", eager)


@bug
def unseal_after_grant(patch: pytest.MonkeyPatch) -> None:
    """A source whose target does not answer takes the queues back, though it has granted them."""

    def take_back(self: Any, state: MoveState, reason: str) -> None:
        move = state.move
        mapping = self._mapping(move.topic)
        failed = msgspec.structs.replace(move, state="failed", reason=reason)
        back = [mapping.queues[number].rollback() for number in move.queues]
        self._mappings.change(mapping.with_queues(*back), move=MoveState(move=failed))
        self._relay.release(move.topic, move.queues)

    patch.setattr(move_source.MoveSource, "_record_wait", take_back)


@bug
def lease_confirmed_while_another_has_it(patch: pytest.MonkeyPatch) -> None:
    """A name server waits for nobody: whoever claims a newer generation has it."""
    patch.setattr(queue_leases, "_LEASES_TO_PASS", 0)


@bug
def lease_over_and_nobody_stops(patch: pytest.MonkeyPatch) -> None:
    """A leader that is cut off takes sends as ever, while others replace it."""
    patch.setattr(held_leases.HeldLeases, "find_lapse", lambda _self, _place: None)


@bug
def sealed_queue_takes_commits(patch: pytest.MonkeyPatch) -> None:
    """Who hands a queue over takes what members say of their progress, after it told the next leader of it."""
    find_away = relay.Relay.find_away

    def lenient(self: Any, spec: RequestSpec, header: msgspec.Struct) -> Any:
        if spec.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            spec = msgspec.structs.replace(spec, relaying=Relaying.READ)
        return find_away(self, spec, header)

    patch.setattr(relay.Relay, "find_away", lenient)


@bug
def topic_that_grows_forgets_its_groups(patch: pytest.MonkeyPatch) -> None:
    """As if it were made anew, also where the queues stay with the brokers that lead them."""
    put = static_admin.StaticAdmin.put

    async def forget(self: Any, request: Any) -> Any:
        topic = request.command.fields["topic"]
        if self._mappings.is_static(topic):
            self._offsets.forget_topic(topic)
        return await put(self, request)

    patch.setattr(static_admin.StaticAdmin, "put", forget)


@bug
def reset_stays_behind_when_its_queue_moves(patch: pytest.MonkeyPatch) -> None:
    """The next leader knows where the group was sent, and not that its members have yet to hear of it."""
    opening = move_source.MoveSource._to_open_order
    patch.setattr(
        move_source.MoveSource,
        "_to_open_order",
        lambda self, state: msgspec.structs.replace(opening(self, state), resets={}),
    )


@bug
def commit_undoes_a_reset_that_waits(patch: pytest.MonkeyPatch) -> None:
    """What a member says of the time before it was sent elsewhere counts."""

    def commit(self: Any, group: str, topic: str, queue_id: int, offset: int) -> bool:
        self._committed.setdefault(consumer_offsets._key(group, topic), {})[queue_id] = offset
        self._file.mark_changed()
        return True

    patch.setattr(consumer_offsets.OffsetTable, "commit", commit)
