"""What requests and records say of the rows of a sink."""

import pytest

from holdfast.wire.requests.sink import SINK, SinkStamp, find_stamp, find_state, record_texts

STAMP = SinkStamp(
    query="q",
    batch=3,
    partition=1,
    first=10,
    count=5,
    checksum_before=7,
    checksum_after=9,
    is_last=True,
    accepts_unknown=False,
)


def test_a_stamp_is_the_same_after_the_wire():
    """Among other properties."""
    assert find_stamp(f"TAGS\x01a\x02{SINK}\x01{STAMP.to_text()}\x02") == STAMP


def test_a_record_says_how_far_its_batch_is():
    """Its own row included."""
    _, text = record_texts("q", 3, 1, 13, [8, 9], is_last=True)

    state = find_state(f"{SINK}\x01{text}\x02".encode(), 2)

    assert state is not None
    assert (state.queue, state.query, state.batch, state.partition) == (2, "q", 3, 1)
    assert (state.count, state.checksum, state.is_over) == (15, 9, True)


def test_a_batch_that_was_kept_whole_says_how_far_its_last_row_goes():
    """It has what its request said."""
    state = find_state(f"TAGS\x01a\x02{SINK}\x01{STAMP.to_text()}\x02".encode(), 2)

    assert state is not None
    assert (state.queue, state.query, state.batch, state.partition) == (2, "q", 3, 1)
    assert (state.count, state.checksum, state.is_over) == (15, 9, True)


@pytest.mark.parametrize(
    "text", ["", "q", "q 1 2 3 4 5 6 7", "q 1 2 3 4 5 6 7 x", "q -1 2 3 4 5 6 0 0", "q " + "9" * 200]
)
def test_what_cannot_be_read_is_nothing(text: str):
    """Strangers may write anything."""
    assert find_stamp(f"{SINK}\x01{text}\x02") is None
    assert find_state(f"{SINK}\x01{text}\x02".encode(), 0) is None
    assert find_stamp("") is None
    assert find_state(b"", 0) is None
