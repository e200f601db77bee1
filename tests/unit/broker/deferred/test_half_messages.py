"""What half messages and op records say, also those that others wrote."""

import msgspec
import pytest

from holdfast.broker.deferred.half_messages import (
    FIRST_POSITION,
    REMOVE,
    check_delay_ms,
    first_position,
    has_successor,
    named_offsets,
    pop_real_queue,
    to_message,
)
from holdfast.broker.flow.request import LogRange, Refusal
from holdfast.broker.messages.writer import Draft
from holdfast.model.topic import HALF_TOPIC
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.properties import format_properties
from holdfast.wire.records.record import TRANSACTION_COMMIT, StoredRecord

HOST = pack_host("127.0.0.1:10911")
BELONGS = {"REAL_TOPIC": "orders", "REAL_QID": "3"}


def a_record(body: bytes = b"", **properties: str) -> StoredRecord:
    return StoredRecord(
        size=100,
        position=4711,
        topic=HALF_TOPIC,
        queue_id=0,
        offset=7,
        flag=5,
        sys_flag=0,
        born_ms=1,
        born_host=HOST,
        store_ms=2,
        store_host=HOST,
        reconsume_times=0,
        prepared_position=0,
        body_crc=0,
        body=body,
        properties=format_properties(properties).encode(),
    )


def test_a_half_message_says_where_it_belongs() -> None:
    """And no longer, once it was asked."""
    properties = BELONGS | {"KEYS": "k"}

    assert pop_real_queue(properties) == ("orders", 3)
    assert properties == {"KEYS": "k"}


@pytest.mark.parametrize("properties", [{}, {"REAL_TOPIC": "orders"}, BELONGS | {"REAL_QID": "-1"}])
def test_one_that_does_not_say_it_belongs_nowhere(properties: dict[str, str]) -> None:
    """Nobody guesses."""
    assert pop_real_queue(dict(properties)) is None
    assert isinstance(to_message(a_record(), dict(properties)), Refusal)


@pytest.mark.parametrize(("wish", "expected"), [(None, 6_000), ("30", 30_000), ("0", 0), ("soon", 6_000)])
def test_a_sender_may_ask_for_time(wish: str | None, expected: int) -> None:
    """What is no number is no wish."""
    properties = {} if wish is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": wish}

    assert check_delay_ms(properties, 6_000) == expected


@pytest.mark.parametrize(
    ("body", "tag", "expected"),
    [(b"12", REMOVE, [12]), (b"12,13,", REMOVE, [12, 13]), (b"12", "x", []), (b"\xff,1", REMOVE, [1])],
)
def test_an_op_names_what_was_decided(body: bytes, tag: str, expected: list[int]) -> None:
    """One offset, or several as 5.x writes them; nothing else counts."""
    assert named_offsets(a_record(body, TAGS=tag)) == expected
    assert named_offsets(None) == []


def judge(op: StoredRecord) -> object:
    """Return whether an op counts, or what has to be read to know."""
    steps = has_successor(op)
    try:
        return steps.send(None)
    except StopIteration as end:
        return end.value


def test_an_op_counts_if_what_it_names_is_there() -> None:
    """It has to be looked for; a rollback, or an op of another broker, names nothing."""
    assert judge(a_record(b"1", TAGS=REMOVE)) is True
    assert isinstance(judge(a_record(b"1", TAGS=REMOVE, HOLDFAST_SUCCESSOR="4000")), LogRange)


@pytest.mark.parametrize("kept", [7, 22, 26, 27])
def test_an_op_that_was_torn_counts_for_nothing(kept: int) -> None:
    """The page behind its body was lost with the power: behind the tag, in the name, in the number, at its end."""
    whole = a_record(b"1", TAGS=REMOVE, HOLDFAST_SUCCESSOR="4000").properties
    torn = whole[:kept] + bytes(len(whole) - kept)
    assert torn != whole

    assert judge(msgspec.structs.replace(a_record(b"1"), properties=torn)) is False


def test_a_committed_message_shows_nothing_of_what_it_was() -> None:
    """It has its own topic and queue, the content of the half one, and the place of that as its origin."""
    properties = BELONGS | {"KEYS": "k", "TRAN_MSG": "true", FIRST_POSITION: "99"}

    message = to_message(a_record(b"body"), properties)

    assert isinstance(message, Draft)
    assert (message.topic, message.queue_id, message.body, message.flag) == ("orders", 3, b"body", 5)
    assert message.properties == {"KEYS": "k", "WAIT": "false"}
    assert (message.sys_flag, message.prepared_position) == (TRANSACTION_COMMIT, 4711)


def test_copies_of_a_half_message_have_one_name() -> None:
    """Where it stood first: a copy is made for every question."""
    assert first_position(a_record(), {}) == 4711
    assert first_position(a_record(), {FIRST_POSITION: "99"}) == 99
