"""For every n: the n-th call to the disk fails, or the power goes at it. Then all that was promised must be there."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from tests.support.store_ledger import (
    SMALL,
    START_MS,
    StoreLedger,
    append_some,
    check,
    check_keys,
    fresh_disk,
    housekeep,
    run_script,
)

from holdfast.model.errors import DiskFailed, DiskFull, StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store import housekeeping
from holdfast.store.keys import key_index
from holdfast.store.message_store import MessageStore
from holdfast.store.queues import batch_consume_queue, consume_queue

LATER_MS = START_MS + 10**9
PARTS = 4  # One loop in several tests: they run side by side, and none takes long.
CHANGES = {"write", "sync", "erase", "create", "replace", "rename", "remove"}


class PowerCut(BaseException):
    """The end of the process: nothing may catch it."""


class Countdown:
    """A hook that raises at the n-th call that it counts."""

    def __init__(self, n: int, error: BaseException, *, only_changes: bool) -> None:
        self.left = n
        self._error = error
        self._only_changes = only_changes

    def __call__(self, call: str, path: str) -> None:
        """Count one call."""
        if self._only_changes and call not in CHANGES:
            return
        self.left -= 1
        if self.left == 0:
            raise self._error


def count_calls(*, only_changes: bool) -> int:
    counter = Countdown(1 << 40, PowerCut(), only_changes=only_changes)
    disk = fresh_disk()
    disk.before = counter
    run_script(disk, StoreLedger(), Random(1))
    return (1 << 40) - counter.left


def count_messages(store: MessageStore) -> int:
    return sum(queue.offset_max - queue.offset_min for queue in store.list_queues())


def check_survival(disk: SimDisk, ledger: StoreLedger, seed: int) -> None:
    """Open what is left, check it, work on, end in order, open and check again."""
    disk.before = disk.after = None
    store = MessageStore.open(disk, SMALL, LATER_MS)
    check(store, ledger)
    random = Random(seed)
    for step in range(5):
        append_some(store, ledger, random, LATER_MS + step)
        housekeep(store, LATER_MS + step * 5000)
    check(store, ledger)
    check_keys(store)
    store.close(LATER_MS)
    again = MessageStore.open(disk, SMALL, LATER_MS)
    check(again, ledger)
    check_keys(again)
    assert again.recovered.is_clean


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("part", range(PARTS))
def test_what_was_confirmed_survives_a_power_cut_at_every_call(moment: str, part: int):
    """Whichever write, sync or removal is the last, and whichever pages it loses, nothing promised is lost."""
    total = count_calls(only_changes=True)
    assert total > 100
    for n in range(1 + part, total + 1, PARTS):
        disk, ledger = fresh_disk(), StoreLedger()
        setattr(disk, moment, Countdown(n, PowerCut(), only_changes=True))

        with pytest.raises(PowerCut):
            run_script(disk, ledger, Random(1))
        disk.crash(Random(n))

        check_survival(disk, ledger, n)


def test_what_was_confirmed_survives_where_the_whole_disk_is_synced(monkeypatch: pytest.MonkeyPatch):
    """As it is with very many queues."""
    monkeypatch.setattr(housekeeping, "SYNC_FILES_MAX", 1)
    total = count_calls(only_changes=True)
    for n in range(1, total + 1, 3):
        disk, ledger = fresh_disk(), StoreLedger()
        disk.after = Countdown(n, PowerCut(), only_changes=True)

        with pytest.raises(PowerCut):
            run_script(disk, ledger, Random(1))
        disk.crash(Random(n))

        check_survival(disk, ledger, n)


def test_what_was_confirmed_survives_power_cuts_during_recovery():
    """A recovery that is cut short leaves nothing that a second one could take for the truth."""
    total = count_calls(only_changes=True)
    for seed in range(60):
        random = Random(seed)
        disk, ledger = fresh_disk(), StoreLedger()
        disk.after = Countdown(random.randint(1, total), PowerCut(), only_changes=True)
        with pytest.raises(PowerCut):
            run_script(disk, ledger, Random(1))

        for _ in range(4):
            disk.crash(random)
            disk.after = Countdown(random.randint(1, 12), PowerCut(), only_changes=True)
            try:
                store = MessageStore.open(disk, SMALL, LATER_MS)
                append_some(store, ledger, random, LATER_MS)
            except PowerCut:
                continue
        disk.crash(random)

        check_survival(disk, ledger, seed)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_failing_call_stops_writes_and_loses_nothing(part: int):
    """Whichever call fails, the store says so or goes on, never lies; a restart finds everything promised."""
    total = count_calls(only_changes=False)
    for n in range(1 + part, total + 1, PARTS):
        disk, ledger = fresh_disk(), StoreLedger()
        disk.before = Countdown(n, DiskFailed("planted"), only_changes=False)

        try:
            run_script(disk, ledger, Random(1))
        except StoreError as error:
            assert "planted" in str(error) or "accepts no writes" in str(error)  # noqa: PT017 - it may also not happen

        check_survival(disk, ledger, n)


class NoRoom:
    """A hook: from its n-th log file on, the disk has no room for another one; until somebody frees some."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, call: str, path: str) -> None:
        """Count the files of the log."""
        if call == "create" and path.startswith("commitlog/"):
            self.left -= 1
            if self.left <= 0:
                raise DiskFull(f"there is no room for {path}")


@pytest.mark.parametrize("keeps_house", [True, False])
@pytest.mark.parametrize("n", range(1, 4))
def test_a_log_that_has_no_room_for_its_nth_file_goes_on_when_there_is(n: int, *, keeps_house: bool):
    """Whoever wanted it, a send or housekeeping: what is refused is refused before anything of it was done."""
    disk, ledger, random = fresh_disk(), StoreLedger(), Random(n)
    options = msgspec.structs.replace(SMALL, log_file_size=4 * SMALL.log_file_size)
    store = MessageStore.open(disk, options, START_MS)
    disk.before = NoRoom(n)

    now_ms, refused, after = START_MS, 0, 0
    while after < 50:
        now_ms += 1000
        if keeps_house:
            housekeep(store, now_ms)
        if not store.reserve_space():
            refused += 1
            if refused == 5:
                disk.before = None
                housekeep(store, now_ms)
            continue
        append_some(store, ledger, random, now_ms)
        after += bool(refused)

    assert refused == 5, "not once more when there was room again"
    assert store.fault is None
    check(store, ledger)
    disk.crash(random)
    check(MessageStore.open(disk, options, LATER_MS), ledger)


class FullDisk:
    """A hook: from the n-th change of a file outside the log on, there is no space for any; until `left` is raised."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.refused = 0

    def __call__(self, call: str, path: str) -> None:
        """Count the changes that take space and that nothing was reserved for."""
        if call in {"write", "create", "replace"} and not path.startswith("commitlog/"):
            self.left -= 1
            if self.left <= 0:
                self.refused += 1
                raise DiskFull(f"there is no space for {path}")


@pytest.mark.parametrize("part", range(PARTS))
def test_index_writes_that_found_no_space_are_made_when_there_is_some(part: int, monkeypatch: pytest.MonkeyPatch):
    """Whichever is refused first: no record is taken meanwhile, all can be read, and no restart is needed."""
    monkeypatch.setattr(consume_queue, "FLUSH_SIZE", 60)
    monkeypatch.setattr(batch_consume_queue, "FLUSH_SIZE", 92)
    monkeypatch.setattr(housekeeping, "FLUSH_SIZE", 60)
    monkeypatch.setattr(key_index, "REGION_KEYS", 8)
    for n in range(1 + part, 200, PARTS):
        disk, ledger, random = fresh_disk(), StoreLedger(), Random(n)
        store = MessageStore.open(disk, SMALL, START_MS)
        disk.before = hook = FullDisk(n)

        now_ms, refused, after = START_MS, 0, 0
        while after < 20:
            now_ms += 1000
            housekeep(store, now_ms)
            if store.reserve_space():
                append_some(store, ledger, random, now_ms)
                after += bool(hook.refused and store.shortage is None)
            elif (refused := refused + 1) == 5:
                check(store, ledger)
                hook.left = 1 << 40
        housekeep(store, now_ms + 5000)

        assert (refused, store.fault, store.shortage) == (5, None, None)
        assert (store.index_lag_bytes, store.checkpoint_lag_bytes) == (0, 0)
        check(store, ledger)
        check_keys(store)
        disk.before = None
        disk.crash(random)
        check_survival(disk, ledger, n)


def test_a_checkpoint_passes_no_index_write_that_found_no_space():
    """Whichever write of a round is refused, and though nothing comes after it: a crash finds all of the index."""
    for n in range(1, 16):
        disk, ledger, random = fresh_disk(), StoreLedger(), Random(n)
        store = MessageStore.open(disk, SMALL, START_MS)
        for step in range(4):
            append_some(store, ledger, random, START_MS + step)
        disk.before = FullDisk(n)
        for step in range(1, 5):
            housekeep(store, START_MS + step * 5000)
        disk.before = None
        for step in range(5, 9):
            housekeep(store, START_MS + step * 5000)
        assert store.checkpoint_lag_bytes == 0
        disk.crash(random)

        again = MessageStore.open(disk, SMALL, LATER_MS)
        check(again, ledger)
        housekeep(again, LATER_MS)
        check_keys(again)


def test_a_store_that_ends_on_a_full_disk_loses_nothing():
    """It is not noted as closed: the next start makes the index again from the log."""
    disk, ledger, random = fresh_disk(), StoreLedger(), Random(1)
    store = MessageStore.open(disk, SMALL, START_MS)
    disk.before = FullDisk(1)
    append_some(store, ledger, random, START_MS)

    store.close(START_MS)
    disk.crash(random)

    disk.before = None
    assert not MessageStore.open(disk, SMALL, LATER_MS).recovered.is_clean
    check_survival(disk, ledger, 1)


def test_a_deletion_that_found_no_space_has_not_happened():
    """Nor is it persisted with the next one, when new messages are in the topic."""
    disk, ledger, random = fresh_disk(), StoreLedger(), Random(1)
    store = MessageStore.open(disk, SMALL, START_MS)
    while ("orders", 0) not in ledger.ends:
        append_some(store, ledger, random, START_MS)
    disk.before = FullDisk(1)
    with pytest.raises(DiskFull):
        store.delete_topic("orders")
    disk.before = None

    store.delete_topic("another")
    disk.crash(random)

    check_survival(disk, ledger, 1)


def test_without_syncs_a_power_cut_may_lose_messages_but_never_order():
    """Under async flush any page may be gone: what is left is whole, in place and in order, and the store goes on."""
    lost = 0
    for seed in range(80):
        random = Random(seed)
        disk, ledger = fresh_disk(), StoreLedger()
        store = MessageStore.open(disk, SMALL, START_MS)
        for step in range(random.randint(1, 25)):
            append_some(store, StoreLedger(), random, START_MS + step * 700, is_synced=False)
            if random.random() < 0.3:
                housekeep(store, START_MS + step * 700)
        stored = count_messages(store)
        disk.crash(random)

        lost += stored - count_messages(MessageStore.open(disk, SMALL, LATER_MS))
        check_survival(disk, ledger, seed)
    assert lost > 0, "no power cut took anything"
