"""A failed message on its way to the retry topic."""

import msgspec
import pytest
from tests.support.deliveries import a_received_message
from tests.support.static_topics import logical_queue

from holdfast.client.messages.retry_message import RetryMessage, retry_of
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.wire.records.compression import decompress
from holdfast.wire.records.properties import parse_properties

RETRY_QUEUE = MessageQueue("%RETRY%g", "a", 2)


def a_failed_message(times: int = 0, body: bytes = b"body", **properties: str) -> ReceivedMessage:
    message = a_received_message(logical_queue(3), 7, body)
    return msgspec.structs.replace(message, reconsume_times=times, flag=5, properties=properties)


def properties_of(retry: RetryMessage) -> dict[str, str]:
    return parse_properties(retry.properties)


def test_a_failed_message_keeps_what_its_sender_gave_it():
    """And tells where it was, so that the consumer sees the same message again."""
    retry = retry_of(a_failed_message(UNIQ_KEY="ID", TAGS="paid", colour="red"), "g", 0, None)

    assert (retry.topic, retry.body, retry.flag) == ("%RETRY%g", b"body", 5)
    assert properties_of(retry) == {
        "UNIQ_KEY": "ID",
        "TAGS": "paid",
        "colour": "red",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": "ID",
        "DELAY": "3",
    }


def test_what_belonged_to_the_record_is_left_behind():
    """The first id of a message stays with it."""
    message = a_failed_message(TRAN_MSG="true", MIN_OFFSET="1", MAX_OFFSET="9", ORIGIN_MESSAGE_ID="FIRST")

    assert properties_of(retry_of(message, "g", 2, None)) == {
        "ORIGIN_MESSAGE_ID": "FIRST",
        "RETRY_TOPIC": "t",
        "DELAY": "2",
    }


@pytest.mark.parametrize(("asked", "times", "level"), [(0, 0, 3), (0, 4, 7), (0, 40, 18), (5, 4, 5)])
def test_it_comes_later_every_time(asked: int, times: int, level: int):
    """Unless the listener said when."""
    assert properties_of(retry_of(a_failed_message(times), "g", asked, None))["DELAY"] == str(level)


def test_the_broker_is_told_how_often_it_failed():
    """It decides when that is too often, unless the consumer does."""
    command = retry_of(a_failed_message(2), "g", 0, 9).command(RETRY_QUEUE, 1234)

    assert {name: command.fields[name] for name in "bejlgn"} == {
        "b": "%RETRY%g",
        "e": "2",
        "j": "3",
        "l": "9",
        "g": "1234",
        "n": "a",
    }
    assert "l" not in retry_of(a_failed_message(2), "g", 0, None).command(RETRY_QUEUE, 1234).fields


def test_a_message_that_shall_not_come_again_is_over_the_limit():
    """Both for brokers that compare with the limit itself and for those that go one beyond."""
    retry = retry_of(a_failed_message(0), "g", -1, 9)

    assert (retry.times, retry.times_max) == (1, 0)


def test_a_large_body_is_compressed_again():
    """It may have been larger than a broker takes."""
    retry = retry_of(a_failed_message(body=b"a" * 10_000), "g", 0, None)

    assert len(retry.body) < 1000
    assert decompress(retry.body, retry.sys_flag) == b"a" * 10_000


def test_a_body_that_could_not_be_uncompressed_stays_as_it_is():
    """With the flags that say how it was compressed."""
    message = msgspec.structs.replace(a_failed_message(body=b"?" * 10_000), sys_flag=0x301 | 0x8)

    retry = retry_of(message, "g", 0, None)

    assert (retry.body, retry.sys_flag) == (b"?" * 10_000, 0x301)
