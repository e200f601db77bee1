"""The mistakes that the stories of moves are told against, made again: each takes back what was done about one."""

from typing import Any

import msgspec
import pytest
from tests.sim.planted import Plant

from holdfast.broker.admin import mapping_admin
from holdfast.broker.consume import consumer_offsets
from holdfast.broker.failover import forced_open, offset_backup
from holdfast.broker.flow import rpc
from holdfast.broker.mapping import cluster_view, mapping_table
from holdfast.broker.move import move_source, move_target
from holdfast.broker.relay import relay
from holdfast.model.logical_queue import LogicalQueue
from holdfast.nameserver.cluster import queue_leases
from holdfast.sim.checkers import commits, offset_identity
from holdfast.wire.cluster.leases import LeaseRequest
from holdfast.wire.requests.moves import MoveQueryAnswer, encode_body

REVERTED: dict[str, tuple[str, Plant]] = {}
"""Mistake to its story, and how it is made."""


def mistake(story: str) -> Any:
    """Add a mistake to the list, under the name of its function."""

    def add(plant: Plant) -> Plant:
        REVERTED[plant.__name__] = (story, plant)
        return plant

    return add


@mistake("a broker records no home of its own without an end")
def a_broker_records_what_it_is_told(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks where physical queues end when others do not know it."""
    patch.setattr(mapping_table, "fill_ends", lambda mapping, _store: mapping)


@mistake("a queue comes back to the broker from which it was forced")
def own_ends_are_forgotten_when_a_queue_comes_back(patch: pytest.MonkeyPatch) -> None:
    """What the new leader tells of all homes replaces what this broker knows of its own."""
    a_broker_records_what_it_is_told(patch)
    patch.setattr(move_target, "_with_own_ends", lambda _mapping, told: told)


@mistake("a fenced leader waits for the new one")
def a_planned_move_explains_any_other_leader(patch: pytest.MonkeyPatch) -> None:
    """A move of its own, not granted yet, is taken for the reason why somebody else leads."""

    def is_our_move(self: Any, topic: str, number: int, leader: str) -> bool:
        state = self._mappings.find_move(topic, number)
        return state is not None and state.move.target == leader and state.move.source == self._name

    patch.setattr(forced_open.ForcedMoves, "_is_own_move", is_our_move)


@mistake("a grant is told when it is on disk")
def a_grant_is_told_while_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """Who asks is answered at once."""

    def tell(self: Any, request: Any, name: str) -> Any:
        opening = self._opening(self._mappings.moves()[name])
        return request.answer(body=encode_body(MoveQueryAnswer(state="granted", opening=opening)))

    patch.setattr(move_source.MoveSource, "_answer_granted", tell)


@mistake("a replaced leader that comes back alone is told so")
def a_broker_asks_as_clients_do(patch: pytest.MonkeyPatch) -> None:
    """It is told what clients are told: nothing while nobody who has the topic is alive."""
    patch.setattr(cluster_view, "REPORTS_FIELD", "hf.none")


@mistake("two lines do not wait for each other")
def sends_of_other_brokers_wait_in_any_line(patch: pytest.MonkeyPatch) -> None:
    """Where the queue is not, they stand behind what is being passed on."""
    patch.setattr(relay.Relay, "_is_misdirected", lambda _self, _waiting, _place: False)


@mistake("what was given up is not sent any more")
def what_was_given_up_is_sent_when_the_connection_opens(patch: pytest.MonkeyPatch) -> None:
    """A call whose time is up leaves what it wanted to send."""
    patch.setattr(rpc, "_expire", lambda link, now_ms: link.exchange.expire(now_ms))


@mistake("what was said before a power cut is heard after it")
def an_old_answer_is_taken_for_news(patch: pytest.MonkeyPatch) -> None:
    """What it tells of is compared with what is there now."""
    patch.setattr(offset_identity.OffsetIdentityChecker, "may_be_lost", lambda _self, _spot, _asked_ms: False)


@mistake("a torn grant promises no more than is there")
def a_torn_grant_is_believed(patch: pytest.MonkeyPatch) -> None:
    """The queue ends where the grant says, though messages before it are gone."""
    patch.setattr(mapping_table, "find_torn", lambda _mapping, _store: ())


@mistake("a grant that comes late opens nothing")
def a_late_grant_is_opened_unasked(patch: pytest.MonkeyPatch) -> None:
    """Whoever was prepared opens when the old leader says so, however long that was away."""

    async def ask_nobody(_self: Any, _opening: Any) -> None:
        """Ask nobody."""

    patch.setattr(move_target.MoveTarget, "_require_newest", ask_nobody)
    patch.setattr(move_target.MoveTarget, "cancel_superseded", lambda _self, _topic: None)


@mistake("what was forgotten is not said to be open")
def what_was_forgotten_is_said_to_be_open(patch: pytest.MonkeyPatch) -> None:
    """Whoever leads in a newer generation says that it opened every older one; and nobody looks where homes end."""
    a_broker_records_what_it_is_told(patch)
    patch.setattr(move_target.MoveTarget, "_require_segments", lambda _self, _opening: None)


@mistake("the end of a home is known when it is expired")
def an_expired_home_tells_no_end(patch: pytest.MonkeyPatch) -> None:
    """A broker that lists a home as expired has nothing to say about it: such are those that it was told are open."""
    what_was_forgotten_is_said_to_be_open(patch)
    reconcile = LogicalQueue.reconcile

    def forget_expired(self: LogicalQueue, witness: LogicalQueue) -> LogicalQueue:
        known = tuple(segment for segment in witness.segments if not segment.expired)
        return reconcile(self, LogicalQueue(witness.queue, known))

    patch.setattr(LogicalQueue, "reconcile", forget_expired)


@mistake("a dead process gives nothing up")
def the_last_word_of_a_dead_process_counts(patch: pytest.MonkeyPatch) -> None:
    """A request is compared with those of its own process only."""
    take = queue_leases.QueueLeases._apply_claims

    def forget_boots(self: Any, told: LeaseRequest) -> Any:
        holder = self._holders.get(told.broker)
        if holder is not None and holder.boot != told.boot:
            holder.boot = holder.number = -1
        return take(self, told)

    patch.setattr(queue_leases.QueueLeases, "_apply_claims", forget_boots)


@mistake("who claims a queue and is handed it has it")
def an_older_generation_is_never_confirmed(patch: pytest.MonkeyPatch) -> None:
    """Not to the broker either that claimed the newer one and never opened it."""
    patch.setattr(queue_leases.QueueLeases, "_was_opened", lambda _self, _place, _holding: True)


@mistake("a leader is told of when it is on disk")
def a_leader_is_told_of_while_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks what is recorded is answered at once."""
    show = mapping_admin.MappingAdmin.get_mappings

    def show_at_once(self: Any, request: Any) -> Any:
        steps = show(self, request)
        while True:
            try:
                steps.send(None)
            except StopIteration as end:
                return end.value

    patch.setattr(mapping_admin.MappingAdmin, "get_mappings", show_at_once)


@mistake("a reset waits for its group over a restart")
def resets_are_not_saved(patch: pytest.MonkeyPatch) -> None:
    """The file has the offsets, and not who has yet to hear of them."""
    to_wire = consumer_offsets.OffsetTable.to_wire
    patch.setattr(
        consumer_offsets.OffsetTable,
        "to_wire",
        lambda self: msgspec.structs.replace(to_wire(self), resets=msgspec.UNSET),
    )


@mistake("copies are kept as well as offsets are")
def copies_are_never_saved(patch: pytest.MonkeyPatch) -> None:
    """A broker knows what others told it until it ends."""
    patch.setattr(offset_backup.OffsetBackup, "files", lambda _self: ())


@mistake("copies are kept as well as offsets are")
def a_copy_is_taken_for_saved(patch: pytest.MonkeyPatch) -> None:
    """Whoever was told of it knows it, even if its process ended in the next moment."""
    see_copy = commits.CommitChecker.record_backup

    def see_saved(self: Any, row: Any, generation: int, offset: int, _now_ms: int, keeper: str) -> None:
        see_copy(self, row, generation, offset, -1, keeper)

    patch.setattr(commits.CommitChecker, "record_backup", see_saved)
