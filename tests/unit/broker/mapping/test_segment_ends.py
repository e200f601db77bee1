"""What a broker finds of its own ends: when it opens a store whose power was lost, and when others do not know them."""

import pytest
from msgspec.structs import replace
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.broker_machines import EPOCH, TOPIC

from holdfast.broker.mapping import mapping_table
from holdfast.machine.effects import Log
from holdfast.model.logical_queue import LogicalQueue
from holdfast.model.mapping import FORCED_GAP, TopicMapping, new_logical_queue
from holdfast.store.base.log_file import file_name
from holdfast.store.log.commit_log import FOLDER


def a_desk_with_messages() -> BrokerHarness:
    """Four messages are in queue 0, which a leads."""
    desk = BrokerHarness(name="a")
    desk.make_topic(TOPIC, 1)
    mapping = TopicMapping(topic=TOPIC, broker="a", epoch=EPOCH, total=1, queues={0: new_logical_queue(0, "a", 0)})
    desk.components.mappings.change(mapping)
    for _ in range(4):
        desk.call(a_send(TOPIC))
    return desk


def record(desk: BrokerHarness, queue: LogicalQueue) -> None:
    mapping = desk.components.mappings.find(TOPIC)
    assert mapping is not None
    desk.components.mappings.change(mapping.with_queues(queue))


def reopen(desk: BrokerHarness, *, kept: int) -> BrokerHarness:
    """Return the broker started anew after a power cut that left only *kept* messages, and everything behind them."""
    entries = desk.store.queue(TOPIC, 0).entries(kept, 4 - kept)
    if entries:
        position, size, _ = entries[-1]
        desk.disk.open(f"{FOLDER}/{file_name(0)}").erase(entries[0][0], position + size)
    return BrokerHarness(name="a", disk=desk.disk)


def homes(desk: BrokerHarness) -> list[tuple[str, int | None, int | None]]:
    mapping = desk.components.mappings.find(TOPIC)
    assert mapping is not None
    return [(home.broker, home.first, home.end) for home in mapping.queues[0].segments]


@pytest.mark.parametrize("kept", [4, 2, 0])
def test_a_grant_promises_no_more_than_is_before_it(kept: int):
    """It was kept, and messages before it were torn: so it was never synced, and nobody has heard of it."""
    desk = a_desk_with_messages()
    record(desk, new_logical_queue(0, "a", 0).prepare("b", 0).seal(4, desk.now_ms))

    again = reopen(desk, kept=kept)

    assert homes(again) == [("a", 0, kept), ("b", None, None)]
    told = [
        effect for effect in again.effects if isinstance(effect, Log) and "end of a segment was torn" in effect.event
    ]
    assert [effect.fields["end"] for effect in told] == ([] if kept == 4 else [4])
    assert homes(reopen(again, kept=4)) == homes(again), "also when nothing was recorded since"


def test_an_end_before_a_gap_is_taken_back_while_the_queue_is_led_here():
    """The broker was passed over, came to lead it again, and found its older home torn."""
    desk = a_desk_with_messages()
    passed_over = new_logical_queue(0, "a", 0).force("b", 0).fix_end(4, generation=0)
    record(desk, passed_over.prepare("a", 1).seal(0).open_next())

    again = reopen(desk, kept=2)

    assert homes(again)[0] == ("a", 0, 2)
    assert homes(again)[-1] == ("a", FORCED_GAP, None)


def test_an_end_that_another_leader_knows_stays():
    """It was synced, so this is damage: nobody but an operator decides what becomes of it."""
    desk = a_desk_with_messages()
    record(desk, new_logical_queue(0, "a", 0).prepare("b", 0).seal(4).open_next())

    assert homes(reopen(desk, kept=2)) == [("a", 0, 4), ("b", 4, None)]


def passed_over() -> LogicalQueue:
    """Return a queue that x granted to a, where nobody knows whether a opened it, and that b leads by force."""
    return new_logical_queue(0, "x", 0).prepare("a", 1).seal(4).force("b", 0)


def test_what_was_granted_and_never_opened_ends_where_it_begins():
    """Whoever leads the queue asks the broker of the home, which has nothing but what others told of it."""
    desk = a_desk_with_messages()

    record(desk, passed_over())

    assert homes(desk) == [("x", 0, 4), ("a", 4, 0), ("b", 4 + FORCED_GAP, None)]


def test_a_home_that_was_passed_over_ends_behind_its_last_message():
    """Also where its broker leads the queue again, and has nobody to ask."""
    desk = a_desk_with_messages()
    forced = new_logical_queue(0, "a", 0).force("b", 0)

    record(desk, forced.prepare("a", 1).seal(0).open_next())

    assert homes(desk)[0] == ("a", 0, 4)


def test_an_end_that_is_missing_on_disk_is_found_by_the_next_start(monkeypatch: pytest.MonkeyPatch):
    """A broker that recorded what others told, as it was, need not be told anew."""
    desk = a_desk_with_messages()
    with monkeypatch.context() as patch:
        patch.setattr(mapping_table, "fill_ends", lambda mapping, _store: mapping)
        record(desk, passed_over())

    assert homes(desk)[1] == ("a", 4, None)
    assert homes(BrokerHarness(name="a", disk=desk.disk))[1] == ("a", 4, 0)


def test_an_end_for_which_there_is_no_room_stays_unknown():
    """Messages would be in two homes at once: readers wait there, until an operator has decided."""
    desk = a_desk_with_messages()
    short = new_logical_queue(0, "a", 0).force("b", 0)
    leader = replace(short.leader, first=2)

    record(desk, LogicalQueue(0, (short.segments[0], leader)))

    assert homes(desk) == [("a", 0, None), ("b", 2, None)]
