"""Records of a system topic, read again at the next start."""

import msgspec
import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.broker.tables.journal import Journal
from holdfast.model.errors import CorruptRecord, RecordRefused

TOPIC = "SYS_JOURNAL"


class Change(msgspec.Struct, frozen=True):
    """One change of a table."""

    text: str


@pytest.fixture
def desk() -> BrokerHarness:
    return BrokerHarness()


def a_journal(desk: BrokerHarness) -> Journal[Change]:
    return Journal(desk.store, TOPIC, Change)


def append(desk: BrokerHarness, *texts: str) -> int:
    """Append changes, and let readers see them."""
    position = a_journal(desk).append([Change(text) for text in texts], 1)
    desk.store.confirm(position)
    return position


def read(journal: Journal[Change], offsets: range) -> list[str]:
    return [change.text for offset in offsets if (change := journal.read(offset)) is not None]


def test_changes_are_read_in_order_from_a_position_on(desk: BrokerHarness) -> None:
    """A snapshot covers those before the position."""
    first = append(desk, "a", "b")
    desk.make_topic("T")
    desk.call(a_send())
    append(desk, "c")
    again = a_journal(desk)

    assert read(again, again.find_from(0)) == ["a", "b", "c"]
    assert read(again, again.find_from(first)) == ["c"]
    assert read(again, again.find_from(desk.store.written)) == []


def test_the_newest_changes_are_read_alone(desk: BrokerHarness) -> None:
    """For a table that forgets the oldest."""
    append(desk, "a", "b", "c")
    again = a_journal(desk)

    assert read(again, again.find_newest(2)) == ["b", "c"]
    assert read(again, again.find_newest(9)) == ["a", "b", "c"]


def test_a_journal_without_changes_is_empty(desk: BrokerHarness) -> None:
    """Reading does not create its topic."""
    assert list(a_journal(desk).find_from(0)) == list(a_journal(desk).find_newest(9)) == []
    assert desk.store.find_queue(TOPIC, 0) is None


def test_a_change_that_fits_no_log_file_is_refused(desk: BrokerHarness) -> None:
    """Nothing is written, not even the changes beside it."""
    before = desk.store.written

    with pytest.raises(RecordRefused, match=TOPIC):
        append(desk, "a", "b" * desk.store.log_file_size)

    assert desk.store.written == before


def test_a_record_that_cannot_be_read_names_its_position(desk: BrokerHarness) -> None:
    """The owner decides whether to continue without it."""
    position = append(desk, "a")
    desk.store.stage(desk.store.queue(TOPIC, 0), b"{nonsense", b"", 0, 0, 1, bytes(8), 0, 1)
    desk.store.write()
    desk.store.confirm(desk.store.written)

    with pytest.raises(CorruptRecord) as caught:
        a_journal(desk).read(1)

    assert caught.value.position == position
