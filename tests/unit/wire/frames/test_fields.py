"""Custom headers to and from text fields."""

from typing import NewType

import msgspec
import pytest

from holdfast.model.numbers import Int32
from holdfast.wire.frames.fields import BadField, KnownInt32, KnownInt64, from_fields, to_fields

Seconds = NewType("Seconds", int)


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One of everything."""

    topic_name: str
    queue_id: int
    wait: Seconds = Seconds(3)
    is_order: bool = False
    sub_version: int | None = None
    count: Int32 | None = None
    other: str | None = msgspec.field(default=None, name="__OTHER")


FULL = Header(topic_name="t", queue_id=-1, wait=Seconds(9), is_order=True, sub_version=0, other="x")
FULL_FIELDS = {
    "topicName": "t",
    "queueId": "-1",
    "wait": "9",
    "isOrder": "true",
    "subVersion": "0",
    "__OTHER": "x",
}


class Known(msgspec.Struct, frozen=True):
    """Numbers that may be unknown."""

    queue: KnownInt32 = None
    time_ms: KnownInt64 = None


@pytest.mark.parametrize("absent", [{}, {"queue": "-1", "time_ms": "-1"}, {"queue": "-7"}])
def test_an_unknown_number_is_none_here_and_minus_one_on_the_wire(absent: dict[str, str]):
    """No code past the codec compares it with 0."""
    assert from_fields(Known, absent) == Known()
    assert to_fields(Known()) == {"queue": "-1", "time_ms": "-1"}


def test_a_known_number_travels_like_any_other():
    """0 is known; too large a number is refused."""
    assert from_fields(Known, to_fields(Known(queue=0, time_ms=1 << 40))) == Known(queue=0, time_ms=1 << 40)
    with pytest.raises(BadField):
        from_fields(Known, {"queue": str(1 << 40)})


def test_every_value_travels_as_text_under_its_wire_name():
    """There and back."""
    assert to_fields(FULL) == FULL_FIELDS
    assert from_fields(Header, FULL_FIELDS) == FULL


def test_what_is_absent_has_its_default_and_what_is_none_is_not_sent():
    """Unknown fields are somebody else's."""
    header = from_fields(Header, {"topicName": "t", "queueId": "0", "unknown": "x"})

    assert header == Header(topic_name="t", queue_id=0)
    assert to_fields(header) == {"topicName": "t", "queueId": "0", "wait": "3", "isOrder": "false"}


@pytest.mark.parametrize(("missing", "name"), [("topicName", "topicName"), ("queueId", "queueId")])
def test_a_missing_field_is_named(missing: str, name: str):
    """By the name that the peer knows it by."""
    with pytest.raises(BadField, match=f"field '{name}' is missing"):
        from_fields(Header, {key: value for key, value in FULL_FIELDS.items() if key != missing})


@pytest.mark.parametrize(("name", "largest"), [("count", 2**31 - 1), ("queueId", 2**63 - 1), ("subVersion", 2**63 - 1)])
def test_a_number_that_no_layout_can_hold_is_refused(name: str, largest: int):
    """32 bits where the struct says so, 64 everywhere else; on both sides of zero."""
    for number in (largest, -largest - 1):
        assert to_fields(from_fields(Header, {**FULL_FIELDS, name: str(number)}))[name] == str(number)
    for number in (largest + 1, -largest - 2, 10**4000):
        with pytest.raises(BadField, match=f"field '{name}' is"):
            from_fields(Header, {**FULL_FIELDS, name: str(number)})


@pytest.mark.parametrize("text", ["x", "1.5", "0x10", "1 2", "9" * 5000])
def test_a_number_that_is_none_is_named_with_its_value(text: str):
    """Shortened: a peer cannot make us log megabytes. Digits without end are no number either."""
    with pytest.raises(BadField, match=r"field 'queueId' is '.{1,40}', not a number"):
        from_fields(Header, {**FULL_FIELDS, "queueId": text})


@pytest.mark.parametrize(("text", "number"), [("007", 7), ("+5", 5), (" 5 ", 5), ("-0", 0)])
def test_numbers_are_read_as_peers_write_them(text: str, number: int):
    """Leading zeros, signs, blanks."""
    assert from_fields(Header, {**FULL_FIELDS, "queueId": text}).queue_id == number


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", True), ("false", False), ("0", False), ("yes", False)]
)
def test_booleans_are_read_as_peers_write_them(text: str, *, value: bool):
    """Upstream takes anything but `true` for false; some clients send numbers."""
    assert from_fields(Header, {**FULL_FIELDS, "isOrder": text}).is_order is value


def test_an_empty_number_is_as_good_as_none():
    """But an empty text is a text."""
    header = from_fields(Header, {**FULL_FIELDS, "subVersion": "", "isOrder": "", "topicName": ""})

    assert (header.sub_version, header.is_order, header.topic_name) == (None, False, "")
    with pytest.raises(BadField, match="queueId"):
        from_fields(Header, {**FULL_FIELDS, "queueId": ""})
