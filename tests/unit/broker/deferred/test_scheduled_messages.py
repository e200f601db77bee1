import random

import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import logs
from tests.support.cold_reads import forbid_index_reads
from tests.support.stores import HOST

from holdfast.broker.deferred.scheduled_messages import RUN_MAX, TIMER, DelayOffsets
from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.machine.effects import ReadLog, SetTimer
from holdfast.machine.events import Stopping
from holdfast.model.topic import SCHEDULE_TOPIC
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames import java_json
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord, decode_records

LEVEL_3_MS = 10_000


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def a_delayed_send(number: int, level: int = 3, queue: int = 0):
    return a_send(queue=queue, body=b"%d" % number, i=f"UNIQ_KEY\x01U{number}\x02TAGS\x01TagA\x02DELAY\x01{level}\x02")


def delivered(desk: BrokerHarness, queue: int = 0) -> list[StoredRecord]:
    (answer,) = desk.call(a_pull(queue=queue, maxMsgNums="4096", maxMsgBytes=str(1 << 22)))
    return list(decode_records(answer.body))


def numbers(desk: BrokerHarness) -> list[int]:
    return [int(bytes(record.body)) for record in delivered(desk)]


def save(desk: BrokerHarness) -> None:
    """Let the offsets be offered for saving, and the log that they speak of be synced."""
    desk.pass_time(desk.options.offset_save_interval_ms, TIMER, SAVE_TIMER, "flush")
    desk.sync()


def reopen(disk: SimDisk, now_ms: int) -> BrokerHarness:
    desk = BrokerHarness(disk=disk)
    desk.now_ms = now_ms
    return desk


def test_a_delayed_message_is_delivered_when_its_time_has_come(desk: BrokerHarness) -> None:
    """Not before; to the queue that it was sent to; as it was sent."""
    desk.call(a_delayed_send(1, queue=2))

    desk.pass_time(LEVEL_3_MS - 1, TIMER)
    assert delivered(desk, queue=2) == []
    desk.pass_time(1, TIMER)

    (record,) = delivered(desk, queue=2)
    properties = parse_properties(record.properties.decode())
    assert (record.topic, record.queue_id, bytes(record.body)) == ("T", 2, b"1")
    assert (properties["TAGS"], properties["DELAY"], properties["REAL_TOPIC"]) == ("TagA", "3", "T")


def test_a_delivered_message_can_be_found_by_its_tag(desk: BrokerHarness) -> None:
    """On the schedule its index entry held a time instead."""
    desk.call(a_delayed_send(1))
    desk.pass_time(LEVEL_3_MS, TIMER)

    (found,) = desk.call(a_pull(subscription="TagA"))
    (missed,) = desk.call(a_pull(subscription="TagB"))

    assert len(list(decode_records(found.body))) == 1
    assert missed.body == b""


def test_the_timer_is_set_for_the_next_message(desk: BrokerHarness) -> None:
    """And never later than the shortest delay: a new message must not go unnoticed."""
    desk.call(a_delayed_send(1))

    desk.pass_time(LEVEL_3_MS - 300, TIMER)
    due_ms = desk.now_ms + 300
    assert SetTimer(TIMER, due_ms) in desk.effects

    desk.effects.clear()
    desk.pass_time(300, TIMER)
    assert SetTimer(TIMER, due_ms + 1_000) in desk.effects


def test_messages_of_a_level_arrive_in_the_order_in_which_they_were_sent(desk: BrokerHarness) -> None:
    """However many are due at once; other events get their turn in between."""
    desk.call(*(a_delayed_send(number) for number in range(RUN_MAX + 10)))

    desk.pass_time(LEVEL_3_MS, TIMER)
    assert len(delivered(desk)) == RUN_MAX
    assert SetTimer(TIMER, desk.now_ms) in desk.effects
    desk.pass_time(0, TIMER)

    assert numbers(desk) == list(range(RUN_MAX + 10))


def test_levels_do_not_wait_for_each_other(desk: BrokerHarness) -> None:
    """A second passes a level-1 message by one of level 3 that was sent before it."""
    desk.call(a_delayed_send(3, level=3), a_delayed_send(1, level=1))

    desk.pass_time(1_000, TIMER)
    assert numbers(desk) == [1]
    desk.pass_time(LEVEL_3_MS, TIMER)
    assert numbers(desk) == [1, 3]


def test_a_level_that_does_not_exist_is_the_longest(desk: BrokerHarness) -> None:
    """As upstream has it."""
    desk.call(a_delayed_send(1, level=99))

    desk.pass_time(7_200_000 - 1, TIMER)
    assert numbers(desk) == []
    desk.pass_time(1, TIMER)
    assert numbers(desk) == [1]


def test_nothing_is_delivered_twice_after_an_orderly_restart(desk: BrokerHarness) -> None:
    """And what waited goes on waiting."""
    desk.call(a_delayed_send(1, level=1), a_delayed_send(3, level=3))
    desk.pass_time(1_000, TIMER)
    desk.feed(Stopping(desk.now_ms))
    desk.sync()
    desk.store.close(desk.now_ms)

    again = reopen(desk.disk, desk.now_ms + LEVEL_3_MS)
    again.pass_time(0, TIMER)

    assert numbers(again) == [1, 3]


def test_nothing_is_delivered_twice_after_a_crash(desk: BrokerHarness) -> None:
    """What was delivered since the last save is found in its queue before it is delivered again."""
    desk.call(*(a_delayed_send(number, level=1) for number in range(3)))
    desk.pass_time(1_000, TIMER)
    save(desk)
    desk.call(*(a_delayed_send(number, level=1) for number in range(3, 6)))
    desk.pass_time(1_000, TIMER, "flush")
    desk.sync()
    desk.disk.crash(random.Random(1))

    again = reopen(desk.disk, desk.now_ms + 1_000)
    again.pass_time(0, TIMER)

    assert numbers(again) == list(range(6))


def test_nothing_is_delivered_twice_after_a_crash_before_the_first_save(desk: BrokerHarness) -> None:
    """Without a file everything is in doubt."""
    desk.call(a_delayed_send(1, level=1))
    desk.pass_time(1_000, TIMER, "flush")
    desk.sync()
    desk.disk.crash(random.Random(1))

    again = reopen(desk.disk, desk.now_ms)
    again.pass_time(0, TIMER)

    assert numbers(again) == [1]


def crash(desk: BrokerHarness) -> None:
    """End with everything synced, and nothing saved for it."""
    desk.pass_time(0, "flush")
    desk.sync()
    desk.disk.crash(random.Random(1))


def test_a_broker_that_stops_before_it_has_looked_leaves_in_doubt_what_was(desk: BrokerHarness) -> None:
    """It saves offsets that do not count what was delivered before the crash: the next one must look as far back."""
    desk.call(a_delayed_send(1, level=1))
    desk.pass_time(1_000, TIMER)
    crash(desk)
    stopped = reopen(desk.disk, desk.now_ms)
    stopped.feed(Stopping(stopped.now_ms))
    stopped.sync()
    stopped.store.close(stopped.now_ms)

    again = reopen(stopped.disk, stopped.now_ms)
    again.pass_time(0, TIMER)

    assert numbers(again) == [1]


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_offsets_that_are_saved_in_doubt_count_only_what_is_synced(desk: BrokerHarness, flush: str) -> None:
    """The point of the file is an old one then, and says nothing of how long the log is that they speak of."""
    desk.call(*(a_delayed_send(number, level=1) for number in range(RUN_MAX + 1)))
    crash(desk)
    again = BrokerHarness(flush=flush, disk=desk.disk)
    again.now_ms = desk.now_ms + 1_000
    again.pass_time(0, TIMER)  # delivered, but for one, and not synced

    again.feed(Stopping(again.now_ms))
    assert again.disk.read_file("config/delayOffset.json") is None
    again.sync()

    saved = java_json.loads(again.disk.read_file("config/delayOffset.json") or b"")
    assert (saved["offsetTable"], saved["position"]) == ({"1": RUN_MAX}, 0)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_nothing_is_lost_when_power_fails_while_the_broker_stops(flush: str) -> None:
    """What it delivered last is not on disk yet, however soon it tells others of it."""
    desk = BrokerHarness(flush=flush)
    desk.make_topic("T")
    desk.call(a_delayed_send(1, level=1))
    desk.pass_time(0, "flush")
    desk.sync()
    desk.pass_time(1_000, TIMER)  # delivered, and not synced
    desk.feed(Stopping(desk.now_ms))
    desk.disk.crash(random.Random(1))

    again = BrokerHarness(flush=flush, disk=desk.disk)
    again.now_ms = desk.now_ms
    again.pass_time(0, TIMER)
    again.sync()

    assert numbers(again) == [1]


def test_what_a_clock_that_went_back_lets_wait_again_is_not_delivered_twice(desk: BrokerHarness) -> None:
    """It was delivered before a crash; it is not due yet when the offsets of other levels are saved."""
    desk.call(a_delayed_send(3, level=3))
    desk.pass_time(LEVEL_3_MS, TIMER)
    crash(desk)
    early = reopen(desk.disk, desk.now_ms - LEVEL_3_MS)
    early.pass_time(0, TIMER)
    early.call(a_delayed_send(1, level=1))
    early.pass_time(1_000, TIMER)
    save(early)
    crash(early)

    again = reopen(early.disk, desk.now_ms)
    again.pass_time(0, TIMER)

    assert numbers(again) == [3, 1]


def test_a_message_that_waits_for_hours_does_not_keep_doubts_alive(desk: BrokerHarness) -> None:
    """After the next crash nobody searches further back than to the last save."""
    desk.call(a_delayed_send(1, level=1), a_delayed_send(18, level=18))
    desk.pass_time(1_000, TIMER)
    crash(desk)
    again = reopen(desk.disk, desk.now_ms)
    again.pass_time(0, TIMER)

    again.call(a_send())
    save(again)

    saved = java_json.loads(again.disk.read_file("config/delayOffset.json") or b"")
    assert (saved["offsetTable"], saved["position"]) == ({"1": 1}, again.store.written)


def test_nothing_is_lost_when_a_crash_takes_what_was_delivered() -> None:
    """The saved offsets never count what the log might yet lose."""
    desk = BrokerHarness(flush="sync")
    desk.make_topic("T")
    desk.call(*(a_delayed_send(number, level=1) for number in range(3)))
    desk.sync()
    desk.pass_time(1_000, TIMER)  # delivered, and not synced
    desk.syncs.clear()
    desk.pass_time(desk.options.offset_save_interval_ms, TIMER, SAVE_TIMER)
    desk.disk.crash(random.Random(1))

    again = BrokerHarness(flush="sync", disk=desk.disk)
    again.now_ms = desk.now_ms
    again.pass_time(0, TIMER)
    again.sync()

    assert sorted(numbers(again)) == [0, 1, 2]


def test_offsets_are_saved_only_when_the_log_is_synced(desk: BrokerHarness) -> None:
    """The file says how long the log was: that is where a search for doubtful messages begins."""
    desk.call(a_delayed_send(1, level=1))
    desk.pass_time(1_000, TIMER)
    desk.pass_time(desk.options.offset_save_interval_ms, TIMER, SAVE_TIMER)
    assert desk.disk.read_file("config/delayOffset.json") is None

    desk.pass_time(0, "flush")
    desk.sync()

    saved = java_json.loads(desk.disk.read_file("config/delayOffset.json") or b"")
    assert saved["offsetTable"] == {"1": 1}
    assert saved["position"] == desk.store.written


def test_offsets_are_saved_after_a_restart_without_another_sync(desk: BrokerHarness) -> None:
    """Everything in the log is on disk when a store opens. Without new messages nothing is synced."""
    desk.call(a_delayed_send(1, level=1))
    desk.store.close(desk.now_ms)
    again = reopen(desk.disk, desk.now_ms + 10_000)

    again.components.delayed_delivery.replace_offsets(DelayOffsets(offset_table={1: 1}))
    again.pass_time(0, SAVE_TIMER)

    assert java_json.loads(again.disk.read_file("config/delayOffset.json") or b"")["offsetTable"] == {"1": 1}


def test_offsets_of_a_java_broker_are_taken_over(desk: BrokerHarness) -> None:
    """Bare keys, and no position."""
    desk.call(*(a_delayed_send(number, level=1) for number in range(3)))
    desk.store.close(desk.now_ms)
    desk.disk.replace("config/delayOffset.json", b'{"offsetTable":{1:2}}')

    again = reopen(desk.disk, desk.now_ms + 1_000)
    again.pass_time(0, TIMER)

    assert numbers(again) == [2]


def test_an_offset_beyond_the_log_does_not_swallow_new_messages(desk: BrokerHarness) -> None:
    """The log lost its end, the file did not."""
    desk.store.close(desk.now_ms)
    desk.disk.replace("config/delayOffset.json", b'{"offsetTable":{1:1000}}')

    again = reopen(desk.disk, desk.now_ms)
    again.call(a_delayed_send(1, level=1))
    again.pass_time(1_000, TIMER)

    assert numbers(again) == [1]


def test_a_clock_that_jumped_back_does_not_hold_messages_for_ever(desk: BrokerHarness) -> None:
    """A time of delivery beyond the level's own delay cannot be right: it is delivered at once, as upstream does."""
    desk.now_ms += 86_400_000
    desk.call(a_delayed_send(1, level=1))

    desk.now_ms -= 86_400_000
    desk.pass_time(0, TIMER)

    assert numbers(desk) == [1]


def test_nothing_is_delivered_while_the_store_takes_no_writes(desk: BrokerHarness) -> None:
    """It would be lost; the timer goes on."""
    desk.call(a_delayed_send(1, level=1))
    desk.store.fail("the disk is gone")
    desk.effects.clear()

    desk.pass_time(1_000, TIMER)

    assert numbers(desk) == []
    assert SetTimer(TIMER, desk.now_ms + 1_000) in desk.effects


def test_the_schedule_of_before_a_restart_is_read_off_the_loop(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be days old and long gone from memory; so may be what was delivered before a crash."""
    for number in range(70):
        desk.call(a_delayed_send(number))
    desk.pass_time(LEVEL_3_MS // 2)
    desk.call(a_delayed_send(70))
    desk.pass_time(LEVEL_3_MS // 2, TIMER)
    desk.store.close(desk.now_ms)
    again = reopen(desk.disk, desk.now_ms + LEVEL_3_MS)
    forbid_index_reads(again, monkeypatch)

    again.pass_time(0, TIMER)

    assert any("consumequeue" in effect.file.path for effect in again.effects if isinstance(effect, ReadLog))
    assert numbers(again) == list(range(71))


def test_a_message_without_a_destination_does_not_hold_up_those_after_it(desk: BrokerHarness) -> None:
    """It is logged once, as lost."""
    now_ms, queue = desk.now_ms, desk.store.queue(SCHEDULE_TOPIC, 2)
    desk.store.stage(queue, b"lost", b"TAGS\x01TagA\x02", 0, 0, now_ms, HOST, now_ms + LEVEL_3_MS, now_ms)
    desk.store.write()
    desk.store.confirm(desk.store.written)
    desk.call(a_delayed_send(1))

    for _ in range(3):
        desk.pass_time(LEVEL_3_MS, TIMER)

    assert numbers(desk) == [1]
    assert len(logs(desk.effects, "delayed message lost")) == 1
