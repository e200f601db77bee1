"""How a message looks."""

import base64

import msgspec
import pytest

from holdfast.admin.messages import Origin
from holdfast.cli.message_text import body_text, to_line, to_object, write_message
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue


def a_message(body: bytes = b"hello", **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=body,
        queue=MessageQueue("orders", "broker-a", 3),
        offset=17,
        properties=properties,
        born_ms=1_763_229_023_000,
        stored_ms=1_763_229_023_123,
        reconsume_times=0,
        flag=0,
        sys_flag=0,
        position=4711,
        born_host=bytes(8),
        store_host=bytes(8),
    )


def test_a_line_says_when_where_and_what():
    """One line: time, queue and offset, tag and keys, body."""
    line = to_line(a_message(TAGS="paid", KEYS="k1 k2"))

    assert "broker-a/3@17" in line
    assert "[paid] k1 k2" in line
    assert line.endswith("  hello")
    assert "\n" not in line


def test_a_dead_letter_says_where_it_came_from():
    """Topic, queue and offset; only the topic once the message is no longer stored."""
    origin = Origin("orders", "7F00", "broker-b", 3, 17)

    assert "  from orders broker-b/3@17  " in to_line(a_message(), origin)
    assert "  from orders (queue unknown: no longer stored)  " in to_line(a_message(), Origin("orders", "7F00"))
    assert to_object(a_message(), origin)["origin"]["queue"] == 3
    assert "origin" not in to_object(a_message())


def test_an_object_has_the_body_as_text():
    """A program finds place, times, keys and the user's own properties."""
    found = to_object(a_message(TAGS="paid", KEYS="k1", colour="blue"))

    assert (found["broker"], found["queue"], found["offset"]) == ("broker-a", 3, 17)
    assert (found["body"], found["tags"], found["keys"]) == ("hello", "paid", ["k1"])
    assert found["properties"] == {"colour": "blue"}


def test_a_body_that_is_no_text_is_in_base64():
    """Nothing is lost, and it is under another name."""
    found = to_object(a_message(b"\xff\x00"))

    assert "body" not in found
    assert base64.b64decode(found["body_base64"]) == b"\xff\x00"


def test_a_body_cannot_disturb_the_terminal():
    """Control characters are shown, not obeyed; one message stays on one line."""
    assert body_text(a_message(b"a\x1b[2Jb\nc")) == "a\\x1b[2Jb\\nc"
    assert body_text(a_message(b"\xff" * 40)).startswith("<40 bytes: ffff")


@pytest.mark.parametrize(("style", "written"), [("body", b"hello\n"), ("raw", b"hello")])
def test_the_bare_body_is_written_byte_for_byte(style: str, written: bytes, capfdbinary: pytest.CaptureFixture[bytes]):
    """For pipes: with a newline or without."""
    write_message(a_message(), style)  # type: ignore[arg-type]

    assert capfdbinary.readouterr().out == written


def test_json_lines_are_one_object_each(capfdbinary: pytest.CaptureFixture[bytes]):
    """Every line is a document of its own."""
    write_message(a_message(), "json")
    write_message(a_message(), "json")

    lines = capfdbinary.readouterr().out.splitlines()
    assert [msgspec.json.decode(line)["offset"] for line in lines] == [17, 17]


def test_the_broker_of_logical_queues_is_shown_by_the_name_for_people():
    """The wire has another one."""
    message = msgspec.structs.replace(a_message(), queue=MessageQueue("orders", "__syslo__global__", 3))

    assert "__logic__global/3@17" in to_line(message)
    assert to_object(message)["broker"] == "__logic__global"
