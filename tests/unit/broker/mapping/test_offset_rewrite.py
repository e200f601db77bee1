from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.mapping.offset_rewrite import find_last, rewrite_offsets
from holdfast.wire.records.record import StoredRecord, decode_records, encode_record


def a_record(offset: int, body: bytes, *, born_host: bytes = bytes(8)) -> bytes:
    return encode_record(
        StoredRecord(0, 77, "T", 4, offset, 1, 0, 2, born_host, 3, bytes(8), 0, 0, 0, body, b"TAGS\x01a\x02")
    )


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=5), st.integers(0, 9), st.integers(0, 1 << 45)
)
def test_only_queue_and_offset_change(bodies: list[tuple[bytes, bool]], queue: int, delta: int):
    """Whatever else is in a record, and whoever its sender was; checksums stay right."""
    pieces = [
        a_record(offset, body, born_host=bytes(20 if is_v6 else 8)) for offset, (body, is_v6) in enumerate(bodies)
    ]

    before = list(decode_records(b"".join(pieces)))
    after = list(decode_records(rewrite_offsets([memoryview(piece) for piece in pieces], queue, delta)[0]))

    assert [(record.queue_id, record.offset) for record in after] == [
        (queue, record.offset + delta) for record in before
    ]
    assert [(r.position, r.body, r.properties, r.sys_flag, r.born_host) for r in after] == [
        (r.position, r.body, r.properties, r.sys_flag, r.born_host) for r in before
    ]


def test_a_record_may_lie_in_two_pieces():
    """Cold bytes come in pieces that need not end where records end."""
    data = a_record(5, b"body")

    (record,) = decode_records(rewrite_offsets([data[:50], data[50:]], 1, 100)[0])

    assert (record.queue_id, record.offset) == (1, 105)


def test_what_is_no_record_is_passed_on_as_it_is():
    """It came from another broker: the client will say what is wrong with it."""
    junk = bytes(200)

    assert rewrite_offsets([junk], 1, 100) == (junk, None)


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(0, 200))
def test_the_last_record_is_found(bodies: list[bytes], rest: int):
    """With or without new numbers; what comes behind it is no record."""
    pieces = [a_record(offset, body) for offset, body in enumerate(bodies)]
    data = b"".join(pieces) + bytes(rest)

    last = sum(map(len, pieces[:-1])) if pieces else None
    assert find_last(data) == rewrite_offsets([data], 1, 100)[1] == last
