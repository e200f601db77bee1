import msgspec
import pytest
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.mapping import mapping_journal
from holdfast.broker.mapping.mapping_journal import (
    ChangeRecord,
    MappingChange,
    apply_change,
    describe,
    read_changes,
    split_change,
)
from holdfast.broker.tables.journal import Journal
from holdfast.model.errors import StoreError
from holdfast.model.floor import Floor
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.topic import MAPPING_TOPIC, TopicConfig


def a_mapping(count: int = 3, epoch: int = 7) -> TopicMapping:
    queues = {number: new_logical_queue(number, "a", number) for number in range(count)}
    return TopicMapping(topic="T", broker="a", epoch=epoch, total=count, queues=queues)


def test_a_change_holds_what_changed_and_nothing_else():
    """A topic of a thousand queues does not write a thousand queues for each move."""
    old = a_mapping()
    new = old.with_queues(old.queues[1].prepare("b", 0), epoch=8)

    (change,) = split_change(old, new, None)

    assert list(change.queues) == [1]
    assert apply_change(old, change, "a") == new


def test_a_change_may_be_read_twice():
    """It holds the resulting state, never a step."""
    old = a_mapping()
    new = old.with_queues(old.queues[1].seal(5), epoch=8).without_queues(2)
    (change,) = split_change(old, new, None)

    once = apply_change(old, change, "a")

    assert once == new
    assert apply_change(once, change, "a") == new


def test_where_a_forgotten_queue_may_begin_is_kept():
    """In the change, in the next one that is of something else, and in the description of everything."""
    old = a_mapping()
    retired = old.forget_queue(1, Floor(offset=10, generation=2, brokers=("a", "b")))
    changes = [*split_change(old, retired, None), *split_change(retired, retired.with_queues(epoch=9), None)]
    raw = [msgspec.json.encode(ChangeRecord(mapping=change)) for change in changes]

    read: TopicMapping | None = old
    for body in raw:
        change = msgspec.json.decode(body, type=ChangeRecord).mapping
        assert change is not None
        read = apply_change(read, change, "a")

    assert read == retired.with_queues(epoch=9)
    assert changes[1].floors == {}
    assert apply_change(None, describe(retired), "a") == retired


def test_a_first_change_forgets_what_was_there_before():
    """A topic that was deleted and made anew keeps nothing of its earlier life."""
    (change,) = split_change(None, a_mapping(1), None)

    assert apply_change(a_mapping(3), change, "a") == a_mapping(1)


def test_a_large_change_takes_several_records(monkeypatch: pytest.MonkeyPatch):
    """None is larger than the log takes; read in order they make the whole."""
    monkeypatch.setattr(mapping_journal, "QUEUES_PER_RECORD", 4)
    new = a_mapping(10)

    changes = split_change(None, new, None)

    assert [len(change.queues) for change in changes] == [4, 4, 2]
    found = None
    for change in changes:
        found = apply_change(found, change, "a")
    assert found == new


def test_a_deleted_topic_is_static_no_more():
    """Whatever was recorded of it."""
    assert apply_change(a_mapping(), MappingChange(topic="T", is_deleted=True), "a") is None


def test_a_description_is_the_whole_record():
    """Also of queues that this broker does not lead, and with how the topic is hosted."""
    mapping = a_mapping().with_queues(new_logical_queue(0, "b", 4))
    config = TopicConfig(name="T", read_queues=3, write_queues=3)

    change = describe(mapping, config)

    assert apply_change(None, change, "a") == mapping
    assert msgspec.json.decode(msgspec.json.encode(change), type=MappingChange) == change


def test_records_are_read_from_a_position_on():
    """What a snapshot has already said is not read again."""
    desk = BrokerHarness()
    mappings = desk.components.mappings
    desk.make_topic("T")
    first = mappings.set_draining(True)
    mappings._append(ChangeRecord(), ChangeRecord(draining=False))
    desk.store.confirm(desk.store.written)

    journal = Journal(desk.store, MAPPING_TOPIC, ChangeRecord)
    assert [record.draining for record in read_changes(journal, 0)] == [
        True,
        None,
        False,
    ]
    assert [record.draining for record in read_changes(journal, first)] == [
        None,
        False,
    ]


def test_a_record_that_cannot_be_read_stops_the_start():
    """Going on without it might open a queue that is open elsewhere; the text says what to do."""
    desk = BrokerHarness()
    queue = desk.store.queue(MAPPING_TOPIC, 0)
    desk.store.stage(queue, b"{nonsense", b"", 0, 0, 1, bytes(8), 0, 1)
    desk.store.write()
    desk.store.confirm(desk.store.written)

    with pytest.raises(StoreError, match="move its queues by force"):
        list(read_changes(Journal(desk.store, MAPPING_TOPIC, ChangeRecord), 0))
