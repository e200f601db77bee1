"""Which messages tail shows."""

import asyncio

import pytest
from tests.unit.admin.test_reading import a_record, from_queues
from tests.unit.cli.test_message_text import a_message

from holdfast.admin.offsets import QueueRange
from holdfast.admin.reading import Reader
from holdfast.cli.tail import _compile, _last, _Selection
from holdfast.model.errors import ConfigError
from holdfast.model.queue import MessageQueue


def test_the_last_n_are_counted_over_all_queues():
    """A queue without recent messages gives none of them."""
    queues = {
        0: [a_record(0, offset, offset) for offset in range(4)],
        1: [a_record(1, offset, 100 + offset) for offset in range(2)],
    }
    ranges = [QueueRange(MessageQueue("t", "broker-a", number), "a:1", 0, len(queues[number])) for number in queues]

    found = asyncio.run(_last(Reader(from_queues(queues)), ranges, 3))

    assert [message.body for message in found] == [b"0:3", b"1:0", b"1:1"]


def test_a_pattern_is_looked_for_in_body_keys_and_properties():
    """Whatever a user can see of a message can be searched."""
    wanted = _Selection(_compile("blue"), None)

    assert wanted.wants(a_message(b"a blue sky"))
    assert wanted.wants(a_message(KEYS="k blue"))
    assert wanted.wants(a_message(colour="blue"))
    assert not wanted.wants(a_message(b"grey"))


def test_a_pattern_that_is_none_is_refused():
    """With the reason."""
    with pytest.raises(ConfigError, match="is no regular expression"):
        _compile("(")
