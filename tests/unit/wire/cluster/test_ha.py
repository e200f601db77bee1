"""The replication stream, as bytes: cut anywhere, never believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.cluster.ha import LogReader, ReportReader, encode_head, encode_report

_CUTS = st.lists(st.integers(1, 40), max_size=60)


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Return *data* in reads of the given sizes; the last one is what is left."""
    parts = []
    for size in sizes:
        parts.append(data[:size])
        data = data[size:]
    return [part for part in (*parts, data) if part]


@given(st.lists(st.integers(0, 2**62), max_size=8), _CUTS)
def test_what_a_replica_reports_is_read_however_it_is_cut(ends: list[int], cuts: list[int]) -> None:
    """Every end arrives, once and in order."""
    reader = ReportReader()

    heard = [end for part in _cut(b"".join(map(encode_report, ends)), cuts) for end in reader.feed(part)]

    assert heard == ends


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(0, 2**40), _CUTS)
def test_what_a_master_sends_is_read_however_it_is_cut(stretches: list[bytes], start: int, cuts: list[int]) -> None:
    """Every byte arrives at its position; a frame without bytes is a sign of life."""
    reader, sent, position, lives = LogReader(), b"", start, []
    for data in stretches:
        sent += encode_head(position, len(data)) + data
        if not data:
            lives.append(position)
        position += len(data)

    heard = [
        (stretch.position, bytes(stretch.data))
        for part in _cut(sent, cuts)
        for stretch in reader.feed(memoryview(part))
    ]

    assert b"".join(data for _, data in heard) == b"".join(stretches)
    assert [at for at, data in heard if not data] == lives
    at = start
    for place, data in heard:
        assert place == at
        at += len(data)


def test_recorded_bytes_of_upstream_are_understood() -> None:
    """The first words of a 4.9.7 pair: nothing here, a sign of life, the log."""
    assert ReportReader().feed(bytes(8)) == [0]

    first, second = LogReader().feed(bytes(12) + bytes.fromhex("0000000000000000 00000003") + b"abc")

    assert (first.position, bytes(first.data)) == (0, b"")
    assert (second.position, bytes(second.data)) == (0, b"abc")


def test_an_end_below_zero_is_no_replica() -> None:
    """A stranger on the port is told apart where its bytes cannot mean anything."""
    with pytest.raises(RemoteProtocolError, match="-1"):
        ReportReader().feed(encode_report(-1))


@pytest.mark.parametrize(("position", "size"), [(-1, 10), (0, -1), (-5, 0)])
def test_a_head_that_cannot_be_is_refused(position: int, size: int) -> None:
    """Nothing behind it is taken for a part of the log."""
    with pytest.raises(RemoteProtocolError):
        LogReader().feed(encode_head(position, size) + b"x")


def test_a_size_that_is_claimed_takes_no_memory() -> None:
    """What comes is handed on as it comes, whatever is said to follow."""
    reader = LogReader()
    reader.feed(encode_head(0, 2**31 - 1))

    (stretch,) = reader.feed(b"abc")

    assert bytes(stretch.data) == b"abc"
