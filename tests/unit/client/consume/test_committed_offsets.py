"""How far a consumer got."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.consume.committed_offsets import RELEASED_MS_MAX, CommittedOffsets, decode_offsets, encode_offsets
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import MessageQueue

ONE, TWO = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def test_only_changes_are_to_be_told():
    """And only until they were told."""
    book = CommittedOffsets()
    book.begin(ONE, 5)
    book.begin(TWO, 7)
    assert book.uncommitted() == {}

    book.record(ONE, 6)
    assert book.uncommitted() == {ONE: 6}

    book.mark_committed(ONE, 6)
    assert book.uncommitted() == {}


def test_what_changed_while_it_was_told_is_told_again():
    """The telling takes time."""
    book = CommittedOffsets()
    book.record(ONE, 6)
    book.record(ONE, 7)

    book.mark_committed(ONE, 6)

    assert book.uncommitted() == {ONE: 7}


def test_going_back_is_a_change():
    """An operator may reset a group to the beginning."""
    book = CommittedOffsets()
    book.begin(ONE, 5)

    book.record(ONE, 0)

    assert book.uncommitted() == {ONE: 0}


def test_a_forgotten_queue_is_nobodys_business():
    """Also when an answer comes late."""
    book = CommittedOffsets()
    book.record(ONE, 6)

    book.forget(ONE)
    book.mark_committed(ONE, 6)

    assert book.uncommitted() == {}
    assert book.find(ONE) is None
    assert book.snapshot() == {}


def test_offsets_are_written_as_upstream_writes_them():
    """Objects as keys: Java reads no other form of old."""
    assert encode_offsets({ONE: 12}) == b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:12}}'


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:12,{"topic":"t","brokerName":"b","queueId":1}:3}}',
        (
            b'{"offsetTable":[{"topic":"t","brokerName":"b","queueId":0,"offset":12},'
            b'{"topic":"t","brokerName":"b","queueId":"1","offset":"3"}]}'
        ),
        encode_offsets({ONE: 12, TWO: 3}),
    ],
)
def test_offsets_are_read_in_every_form(text: bytes):
    """As Java and C++ clients are told them, and as we write them."""
    assert decode_offsets(text) == {ONE: 12, TWO: 3}


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"offsetTable":1}', b'{"offsetTable":{"x":1}}', b'{"offsetTable":[1]}']
)
def test_what_is_no_table_is_refused(text: bytes):
    """With a typed error."""
    with pytest.raises(RemoteProtocolError):
        decode_offsets(text)


@given(st.binary(max_size=100) | st.text(max_size=80).map(lambda text: f'{{"offsetTable":{text}}}'.encode()))
def test_any_bytes_are_read_or_refused(data: bytes):
    """Nothing else happens."""
    with contextlib.suppress(RemoteProtocolError):
        assert all(isinstance(offset, int) for offset in decode_offsets(data).values())


def test_a_queue_that_comes_back_soon_goes_on_where_it_was():
    """If the broker could not be told; it begins at an older place, or at a newer one if somebody else was faster."""
    book = CommittedOffsets()
    book.begin(ONE, 5)
    book.record(ONE, 9)
    book.release(ONE, 1000)
    assert book.find(ONE) is None

    assert book.resume(ONE, 5, 2000) == 9
    assert book.uncommitted() == {ONE: 9}
    book.release(ONE, 3000)
    assert book.resume(ONE, 12, 4000) == 12
    assert book.uncommitted() == {}


def test_a_queue_that_was_told_or_left_long_ago_goes_on_where_the_broker_says():
    """An operator may have moved the group back."""
    book = CommittedOffsets()
    book.begin(ONE, 5)
    book.record(ONE, 9)
    book.mark_committed(ONE, 9)
    book.release(ONE, 1000)
    assert book.resume(ONE, 5, 1001) == 5

    book.record(ONE, 9)
    book.release(ONE, 2000)
    assert book.resume(ONE, 5, 2000 + RELEASED_MS_MAX) == 5


def test_what_a_broker_may_have_forgotten_is_told_again():
    """Though nothing changed."""
    book = CommittedOffsets()
    book.begin(ONE, 5)
    assert book.uncommitted() == {}

    book.mark_uncommitted(ONE)

    assert book.uncommitted() == {ONE: 5}
