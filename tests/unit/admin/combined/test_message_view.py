"""Messages for people: facts, bodies and pages."""

import json

import pytest

from holdfast.admin.combined.message_view import PAGE_BODIES_MAX, BodyForm, BodyStyle, view_body, view_messages
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue


def a_message(body: bytes, offset: int = 0, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=body,
        queue=MessageQueue("orders", "__syslo__global__", 3),
        offset=offset,
        properties=properties,
        born_ms=1,
        stored_ms=2,
        reconsume_times=0,
        flag=0,
        sys_flag=0,
        position=4711,
        born_host=bytes(8),
        store_host=bytes(8),
    )


@pytest.mark.parametrize(
    ("body", "form", "shown"),
    [
        (b"text", "auto", "text"),
        (b'{"a":1}', "auto", "json"),
        (b" [1]", "auto", "json"),
        (b"17", "auto", "text"),  # a number is JSON, but nobody calls it so
        (b"17", "json", "json"),
        (b"{broken", "json", "text"),
        (b"\xff\xfe", "text", "hex"),
        (b"\xff\xfe", "json", "hex"),
        (b'{"a":1}', "text", "text"),
        (b"text", "hex", "hex"),
        (b"[" * 100_000, "auto", "text"),
        (b"", "auto", "text"),
    ],
)
def test_a_body_has_the_form_that_fits(body: bytes, form: BodyForm, shown: str):
    """The one that was asked for, if it has it."""
    assert view_body(body, BodyStyle(form, 1 << 20)).form == shown


def test_json_is_indented_and_says_the_same():
    """For reading."""
    shown = view_body(b'{"a":[1,2]}', BodyStyle()).text

    assert "\n" in shown
    assert json.loads(shown) == {"a": [1, 2]}


def test_a_cut_never_divides_a_character():
    """Nor makes it look binary; what is not text stays hex."""
    body = "aé€😀".encode()

    assert [view_body(body, BodyStyle("auto", size)).text for size in range(4)] == ["", "a", "a", "aé"]
    assert view_body(body, BodyStyle("auto", 9)).text == "aé€"
    assert view_body(body, BodyStyle("auto", 10)) == view_body(body, BodyStyle("text", 99))
    assert view_body(b"\xff" * 9, BodyStyle("auto", 8)).form == "hex"
    assert view_body(b'{"a":1}', BodyStyle("auto", 5)).is_cut


def test_a_dump_has_positions_bytes_and_ascii():
    """Sixteen bytes a line."""
    first, second = view_body(bytes(range(60, 78)), BodyStyle("hex")).text.splitlines()

    assert first == f"000000  {bytes(range(60, 76)).hex(' ')}  <=>?@ABCDEFGHIJK"
    assert second.split() == ["000010", "4c", "4d", "LM"]


def test_a_page_has_a_limited_number_of_bytes():
    """Bodies after the limit are cut to nothing; their facts are there."""
    half = b"x" * (PAGE_BODIES_MAX // 2)
    messages = [a_message(half), a_message(half), a_message(b"late", 2)]

    views = view_messages(messages, BodyStyle("auto", PAGE_BODIES_MAX))

    assert [len(view.body.text) for view in views] == [len(half), len(half), 0]
    assert (views[2].body.is_cut, views[2].facts.size) == (True, 4)


def test_facts_name_the_queue_as_clients_see_it():
    """With tags, keys and the sender's own properties."""
    facts = view_messages([a_message(b"", TAGS="paid", KEYS="k1 k2", colour="blue")], BodyStyle())[0].facts

    assert (facts.broker, facts.queue, facts.tags, facts.keys) == ("__logic__global", 3, "paid", ["k1", "k2"])
    assert facts.properties == {"colour": "blue"}
