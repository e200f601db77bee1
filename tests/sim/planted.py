"""Bugs that we plant into the roles, to see that the simulator finds them.

Each is a small and plausible mistake: one line moved, one case forgotten. `plant` puts it in for as long as a test's
monkeypatch lives.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.broker import completion
from holdfast.broker.consume import consumer_offsets, long_poll
from holdfast.broker.deferred import scheduled_messages, transactions
from holdfast.broker.flow import reply_gate
from holdfast.broker.flow.request import Request
from holdfast.broker.messages import writer
from holdfast.machine.effects import SendBytes
from holdfast.model import delay
from holdfast.model.topic import RETRY_PREFIX
from holdfast.nameserver.cluster import broker_liveness, registry
from holdfast.nameserver.routes import route_answer_cache
from holdfast.sim.world import disk
from holdfast.store import message_store
from holdfast.store.log import log_scanner
from holdfast.store.queues import consume_queue

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Plant] = {}


def bug(plant: Plant) -> Plant:
    """Add a bug to the list, under the name of its function."""
    BUGS[plant.__name__] = plant
    return plant


@bug
def acknowledge_before_sync(patch: pytest.MonkeyPatch) -> None:
    """The answer leaves while the record is still in the page cache."""
    write = completion.EventCompletion.write

    def hasty(self: Any, answers: Any, *rest: Any) -> None:
        self._turn.cause_all(SendBytes(channel, pieces) for channel, pieces in answers if pieces)
        write(self, (), *rest)

    patch.setattr(completion.EventCompletion, "write", hasty)


@bug
def acknowledge_with_any_sync(patch: pytest.MonkeyPatch) -> None:
    """A sync releases every answer that waits, also those of records written after it began."""
    release = reply_gate.ReplyGate._pop_synced
    patch.setattr(reply_gate.ReplyGate, "_pop_synced", lambda self, _position: release(self, 1 << 62))


@bug
def confirm_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Consumers read what a power cut can still take back."""
    write = completion.EventCompletion.write

    def hasty(self: Any, answers: Any, *rest: Any) -> None:
        write(self, answers, *rest)
        self.wake(self._store.confirm(self._store.written))

    patch.setattr(completion.EventCompletion, "write", hasty)


@bug
def index_entry_lost_on_recovery(patch: pytest.MonkeyPatch) -> None:
    """Recovery leaves one entry of a queue empty."""
    append = consume_queue.MessageIndex.append

    def forgetful(queue: Any, entry: bytes) -> None:
        is_lost = queue.next_offset % 5 == 3
        append(queue, consume_queue.PRE_BLANK if is_lost else entry)

    patch.setattr(consume_queue.MessageIndex, "append", forgetful)


@bug
def torn_tail_accepted(patch: pytest.MonkeyPatch) -> None:
    """The check of a record leaves its checksum out: at the recovery, and before a recovered record is first read.

    With the second check in place, no reader sees what the first one lets pass, unless the log is all hot.
    """
    validate = log_scanner.validate_record
    for module in (log_scanner, message_store):
        patch.setattr(module, "validate_record", lambda *place, check_body: validate(*place, check_body=False))


@bug
def recovered_tail_left_unsynced(patch: pytest.MonkeyPatch) -> None:
    """What a killed process left in the page cache is served, and the next power cut takes it back."""
    opened = message_store.MessageStore.open.__func__
    sync = disk.SimFile.sync

    def careless(cls: Any, *arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(disk.SimFile, "sync", lambda self: None if self.path.startswith("commitlog/") else sync(self))
            return opened(cls, *arguments)

    patch.setattr(message_store.MessageStore, "open", classmethod(careless))


@bug
def answer_to_the_wrong_channel(patch: pytest.MonkeyPatch) -> None:
    """Answers that one sync releases are mixed up between their senders."""
    release = reply_gate.ReplyGate._pop_synced

    def mixed(self: Any, position: int) -> list[SendBytes]:
        sent = release(self, position)
        return [SendBytes(other.channel, one.pieces) for one, other in zip(sent, sent[1:] + sent[:1], strict=True)]

    patch.setattr(reply_gate.ReplyGate, "_pop_synced", mixed)


@bug
def offset_committed_before_consumption(patch: pytest.MonkeyPatch) -> None:
    """The committed offset is that of the next message, not of the first that is not done."""
    commit = consumer_offsets.OffsetTable.commit
    patch.setattr(
        consumer_offsets.OffsetTable,
        "commit",
        lambda self, group, topic, queue_id, offset: commit(self, group, topic, queue_id, offset + 1),
    )


@bug
def hold_never_woken(patch: pytest.MonkeyPatch) -> None:
    """A parked pull waits for its deadline though there is a message."""
    patch.setattr(long_poll.ParkedPulls, "wake", lambda _self, _queue: [])


@bug
def offset_assigned_twice_after_restart(patch: pytest.MonkeyPatch) -> None:
    """After a restart a queue goes on one offset too early."""
    opened = message_store.MessageStore.open.__func__

    def stepped_back(cls: Any, *arguments: Any) -> Any:
        store = opened(cls, *arguments)
        for queue in store.list_queues():
            queue.next_offset = max(0, queue.next_offset - 1)
        return store

    patch.setattr(message_store.MessageStore, "open", classmethod(stepped_back))


@bug
def key_index_forgets_on_restart(patch: pytest.MonkeyPatch) -> None:
    """After a restart the key index goes on at the end of the log, whatever it had missed."""
    opened = message_store.open_store

    def forgetful(*arguments: Any) -> Any:
        found = opened(*arguments)
        found.indexed = found.log.written
        return found

    patch.setattr(message_store, "open_store", forgetful)


@bug
def name_server_keeps_a_dead_broker(patch: pytest.MonkeyPatch) -> None:
    """Neither a closed channel nor silence ends a lease."""
    patch.setattr(registry.Registry, "channel_closed", lambda *_: None)
    patch.setattr(registry.Registry, "expire", lambda *_: None)


@bug
def name_server_ignores_silence(patch: pytest.MonkeyPatch) -> None:
    """A broker that falls silent without closing its channel stays for ever."""
    patch.setattr(broker_liveness.BrokerLiveness, "expired", lambda _self, _now_ms: [])


@bug
def name_server_forgets_a_live_broker(patch: pytest.MonkeyPatch) -> None:
    """The end of an old channel takes the lease of the new one along."""
    patch.setattr(broker_liveness.BrokerLiveness, "bind", lambda _self, _lease, _channel: None)


@bug
def name_server_answers_from_an_old_route(patch: pytest.MonkeyPatch) -> None:
    """A rendered answer outlives the route it was made of."""
    patch.setattr(route_answer_cache.RouteAnswerCache, "drop", lambda _self, _topics: None)


@bug
def returned_message_lost(patch: pytest.MonkeyPatch) -> None:
    """A message that a consumer gave back is acknowledged and not stored."""
    accept = writer.LogWriter.accept

    def forgetful(self: Any, draft: writer.Draft) -> Any:
        if draft.topic.startswith(RETRY_PREFIX):
            return writer.Stored(0, 0, 0)
        return accept(self, draft)

    patch.setattr(writer.LogWriter, "accept", forgetful)


@bug
def transaction_committed_after_rollback(patch: pytest.MonkeyPatch) -> None:
    """A rollback delivers the message."""
    end = transactions.TransactionHandler.end_transaction

    def confused(self: Any, request: Request) -> Any:
        if request.command.fields["commitOrRollback"] == "12":
            request.command.fields["commitOrRollback"] = "8"
        return end(self, request)

    patch.setattr(transactions.TransactionHandler, "end_transaction", confused)


@bug
def transaction_never_asked_about(patch: pytest.MonkeyPatch) -> None:
    """A half message whose sender fell silent stays half for ever."""

    async def idle(_self: Any, *_arguments: Any) -> None:
        """Do nothing."""

    patch.setattr(transactions.TransactionHandler, "_check_due", idle)


@bug
def delayed_message_delivered_at_once(patch: pytest.MonkeyPatch) -> None:
    """The schedule does not look at the level."""
    patch.setattr(delay.DelayLevels, "delay_ms", lambda _self, _level: 100)


@bug
def delayed_message_delivered_again_after_restart(patch: pytest.MonkeyPatch) -> None:
    """After a crash nobody looks whether a message was delivered before."""

    async def trusting(_self: Any, *_arguments: Any) -> bool:
        return False

    patch.setattr(scheduled_messages._UncertainDeliveries, "was_delivered", trusting)


@bug
def delayed_message_counted_before_it_is_delivered(patch: pytest.MonkeyPatch) -> None:
    """What is saved of the schedule is one message ahead."""
    snapshot = scheduled_messages.DelayedDelivery._to_saved

    def hasty(self: Any) -> Any:
        saved = snapshot(self)
        return msgspec.structs.replace(saved, offset_table={level: at + 1 for level, at in saved.offset_table.items()})

    patch.setattr(scheduled_messages.DelayedDelivery, "_to_saved", hasty)
