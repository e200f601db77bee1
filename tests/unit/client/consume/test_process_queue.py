"""The window of one queue."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.model.test_message import RECEIVED

from holdfast.client.consume.process_queue import ProcessQueue
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue

QUEUE = MessageQueue("t", "b", 0)


def a_message(offset: int, body: bytes = b"1234") -> ReceivedMessage:
    return msgspec.structs.replace(RECEIVED, offset=offset, body=body)


def a_window(*offsets: int, start: int = 0) -> ProcessQueue:
    window = ProcessQueue(QUEUE, start)
    window.add([a_message(offset) for offset in offsets], max(offsets) + 1)
    return window


def test_the_offset_to_commit_stops_before_what_is_not_done():
    """Whatever is done behind it."""
    window = a_window(0, 1, 2)

    window.finish(1, 0)
    window.finish(2, 0)
    assert window.commit_offset == 0

    window.finish(0, 0)
    assert window.commit_offset == 3


def test_offsets_that_nobody_wants_are_passed():
    """What a filter left out is behind us once everything before is done."""
    window = ProcessQueue(QUEUE, 10)
    window.add([a_message(12)], 20)
    assert window.commit_offset == 12

    window.finish(12, 0)
    assert window.commit_offset == 20


def test_an_empty_pull_moves_on():
    """Nothing matched, and there is nothing to wait for."""
    window = ProcessQueue(QUEUE, 0)

    window.add([], 50)

    assert (window.next_offset, window.commit_offset) == (50, 50)


def test_what_was_seen_before_is_not_taken_again():
    """A broker that keeps batches whole returns their beginning, too."""
    window = a_window(0, 1, 2)

    fresh = window.add([a_message(offset) for offset in range(5)], 5)

    assert [message.offset for message in fresh] == [3, 4]
    assert window.message_count == 5


def test_messages_and_bytes_are_counted_until_they_are_done():
    """Once each."""
    window = a_window(0, 1)
    assert (window.message_count, window.byte_count, window.span) == (2, 8, 2)

    assert window.finish(0, 0)
    assert not window.finish(0, 0)
    assert (window.message_count, window.byte_count, window.span) == (1, 4, 1)


def test_a_reset_forgets_what_is_under_way():
    """What ends later belongs to an old generation and moves nothing."""
    window = a_window(0, 1)

    window.reset(100)

    assert (window.commit_offset, window.next_offset, window.byte_count) == (100, 100, 0)
    assert not window.finish(0, 0)
    window.add([a_message(100)], 101)
    assert not window.finish(100, 0)
    assert window.finish(100, 1)


@given(st.data())
def test_nothing_undone_is_ever_before_the_commit_offset(data: st.DataObject):
    """In any order of finishing; and the commit offset never goes back."""
    offsets = sorted(data.draw(st.sets(st.integers(0, 60), min_size=1)))
    window = a_window(*offsets)
    undone = set(offsets)
    before = 0
    for offset in data.draw(st.permutations(offsets)):
        window.finish(offset, 0)
        undone.discard(offset)
        assert window.commit_offset == min(undone, default=offsets[-1] + 1)
        assert window.commit_offset >= before
        before = window.commit_offset
