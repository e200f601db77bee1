"""A message, before it is sent and after it was received."""

import msgspec
import pytest

from holdfast.model.message import Message, ReceivedMessage, find_message_fault
from holdfast.model.queue import MessageQueue

RECEIVED = ReceivedMessage(
    "t", b"hi", MessageQueue("t", "b", 0), 5, {}, 1, 2, 0, 0, 0, 1024, bytes(8), bytes([10, 0, 0, 2, 0, 0, 0x2A, 0x9F])
)


def received(**properties: str) -> ReceivedMessage:
    return msgspec.structs.replace(RECEIVED, properties=properties)


def test_a_message_is_a_value():
    """Equal if it says the same, and nobody can change it."""
    message = Message("t", b"body", key="k", properties={"a": "b"})

    assert message == Message("t", b"body", key="k", properties={"a": "b"})
    with pytest.raises(AttributeError):
        message.body = b"other"  # type: ignore[misc]


def test_a_sound_message_has_no_fault():
    """With everything it can have."""
    message = Message("t", b"x", tags="x", key="a b", keys=("c",), delay_level=18, flag=-1, properties={"p": "q"})

    assert find_message_fault(message) is None


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (Message("", b"x"), "empty"),
        (Message("a b", b"x"), "'a b'"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "system"),
        (Message("t", b""), "body"),
        (Message("t", b"x", delay_level=19), "19"),
        (Message("t", b"x", delay_level=-1), "-1"),
        (Message("t", b"x", flag=2**31), "32 bits"),
        (Message("t", b"x", keys=("a b",)), "blank"),
        (Message("t", b"x", keys=("",)), "empty"),
        (Message("t", b"x", properties={"UNIQ_KEY": "mine"}), "UNIQ_KEY"),
    ],
)
def test_a_fault_is_named(message: Message, word: str):
    """So that the sender knows what to change."""
    fault = find_message_fault(message)

    assert fault is not None
    assert word in fault


def test_the_id_is_the_senders():
    """And the broker's only if the sender gave none."""
    assert received(UNIQ_KEY="ABC").message_id == "ABC"
    assert received().message_id == received().offset_id == "0A00000200002A9F0000000000000400"


def test_tags_and_keys_are_read_from_the_properties():
    """Several keys are told apart by blanks."""
    message = received(TAGS="red", KEYS="k1 k2", __SHARDINGKEY="k1", colour="blue")

    assert (message.tags, message.key, message.keys) == ("red", "k1", ("k1", "k2"))
    assert message.user_properties == {"colour": "blue"}


def test_a_bare_message_has_neither():
    """None and nothing, not an error."""
    assert (received().tags, received().key, received().keys) == (None, None, ())
