"""Batches that are kept whole, while everything goes wrong: read whole and split, moved, failed on, and looked for."""

from typing import Any

import pytest
from tests.sim.planted import Plant

from holdfast.broker.consume import batch_splitting
from holdfast.broker.relay import record_locator
from holdfast.sim.run import run_seed
from holdfast.sim.world.plan import RunPlan
from holdfast.sim.world.workload import ORDERED_TOPIC, PLAIN_TOPIC, MessageMix
from holdfast.store.queues import batch_consume_queue

TASTE = MessageMix(batches=0.6, uses_inner_batches=True, failing=0.2)
PLANS = {
    # Of three members one gets single messages. Little is in memory, and index files are short.
    "at two brokers that crash": RunPlan(
        messages=120,
        storm_ms=20_000,
        concurrent_consumers=3,
        old_consumers=1,
        queue_file_entries=10,
        hot_window=8 * 1024,
        faults=("kill", "power", "relapse", "break"),
        fault_pause_ms=2_000,
        message_mix=TASTE,
    ),
    "in logical queues that move": RunPlan(
        messages=120,
        storm_ms=20_000,
        concurrent_consumers=2,
        old_consumers=1,
        static=(PLAIN_TOPIC, ORDERED_TOPIC),
        queues=3,
        operators=1,
        operator_pause_ms=800,
        hot_window=8 * 1024,
        faults=("ambush", "kill", "break peers"),
        fault_pause_ms=4_000,
        message_mix=MessageMix(batches=0.6, uses_inner_batches=True),
    ),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("where", PLANS)
def test_every_promise_holds_for_messages_of_batches(where: str, seed: int):
    """Each is where its sender was told, is seen by all at the same offset, and comes again alone if it failed."""
    verdict = run_seed(seed, plan=PLANS[where])

    assert verdict.violation is None, "\n".join([verdict.line(), *verdict.tail[-20:], verdict.detail or ""])
    assert verdict.faults


def split_from_the_head(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks from within a batch gets it from its head on."""
    take = batch_splitting.SingleMessages.add_batch

    def forgetful(self: Any, batch: Any, behind: int) -> bool:
        self.next_offset = batch.first
        return take(self, batch, behind)

    patch.setattr(batch_splitting.SingleMessages, "add_batch", forgetful)


def return_the_first_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    """Whichever message failed, it is the first of its batch that comes again."""

    def careless(self: Any, record: Any, _message_id: str, *, is_own: bool = True) -> Any:
        batch = self._opened.open(record, record_locator.UnpackReason.RETRY)
        return batch.record(0)

    patch.setattr(record_locator.RecordLocator, "find_in_batch", careless)


def begin_behind_the_first_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    """After a restart a queue goes on behind the first message of its last batch."""
    set_end = batch_consume_queue.RecordIndex.set_end

    def wrong(self: Any, number: int) -> None:
        set_end(self, number)
        if number > self.first_file // batch_consume_queue.RECORD_ENTRY_SIZE:
            first = batch_consume_queue.span_of(self._read(number - 1, 1))[0]
            self.offset_max = self.next_offset = self.hot_offset = first + 1

    patch.setattr(batch_consume_queue.RecordIndex, "set_end", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [split_from_the_head, return_the_first_of_a_batch, begin_behind_the_first_of_a_batch])
def test_a_mistake_about_batches_is_noticed(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    """By one of a few seeds."""
    plant(monkeypatch)

    plan = PLANS["at two brokers that crash"]
    assert any(run_seed(seed, plan=plan).violation is not None for seed in range(10))
