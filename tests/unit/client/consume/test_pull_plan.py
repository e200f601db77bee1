"""What to pull next, and what an answer means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.consume.test_process_queue import a_message
from tests.unit.client.messages.test_unpacking import GOLDEN, QUEUE, a_record

from holdfast.client.consume.process_queue import ProcessQueue
from holdfast.client.consume.pull_plan import (
    Prefetch,
    PullLimits,
    PullStatus,
    error_pause_s,
    filter_by_tags,
    pull_command,
    read_pull_answer,
)
from holdfast.model.errors import BrokerRefused, HoldfastError, RemoteProtocolError
from holdfast.model.filter import parse_tags
from holdfast.wire.frames.command import Command
from holdfast.wire.records.inner_batch import BatchSupport
from holdfast.wire.requests.pull import pull_header

EVERYTHING = parse_tags("T", "*", version=9)
OFFSETS = {"suggestWhichBrokerId": "1", "nextBeginOffset": "6", "minOffset": "2", "maxOffset": "8"}


def test_a_pull_says_what_is_wanted():
    """For a member of a group the heartbeat has said which messages."""
    command = pull_command(group="g", queue=QUEUE, offset=5, subscription=EVERYTHING, commit_offset=4)

    fields = pull_header(command).fields
    assert (fields.consumer_group, fields.topic, fields.queue_id, fields.queue_offset) == ("g", "T", 3, 5)
    assert (fields.sys_flag, fields.commit_offset, fields.sub_version) == (3, 4, 9)
    assert (fields.subscription, fields.suspend_timeout_millis, fields.broker_name) == (None, 15000, "broker-a")
    assert pull_header(command).batch_support is BatchSupport.REQUESTED


def test_a_pull_by_itself_brings_its_subscription():
    """And waits only if it wants to."""
    tags = parse_tags("T", "a || b")

    fields = pull_header(
        pull_command(group="g", queue=QUEUE, offset=0, subscription=tags, suspend_ms=0, with_subscription=True)
    ).fields

    assert (fields.sys_flag, fields.subscription, fields.expression_type) == (4, "a || b", "TAG")


def test_messages_that_were_found_are_read():
    """With the places that the answer names."""
    outcome = read_pull_answer(Command(code=0, fields=OFFSETS, body=GOLDEN), QUEUE, EVERYTHING)

    assert outcome.status is PullStatus.FOUND
    assert [message.body for message in outcome.messages] == [b"hi"]
    assert (outcome.next_offset, outcome.broker_id) == (6, 1)


@pytest.mark.parametrize(
    ("code", "status"), [(19, PullStatus.NOTHING_NEW), (20, PullStatus.NO_MATCH), (21, PullStatus.OFFSET_MOVED)]
)
def test_nothing_found_is_an_answer_too(code: int, status: PullStatus):
    """With the offset to go on at."""
    outcome = read_pull_answer(Command(code=code, fields=OFFSETS), QUEUE, EVERYTHING)

    assert (outcome.status, outcome.messages, outcome.next_offset) == (status, [], 6)


def test_a_refusal_is_raised():
    """With the broker's code."""
    with pytest.raises(BrokerRefused) as caught:
        read_pull_answer(Command(code=24, remark="no"), QUEUE, EVERYTHING)
    assert caught.value.code == 24


def test_an_answer_without_offsets_is_refused():
    """Guessing would skip or repeat."""
    with pytest.raises(RemoteProtocolError, match="nextBeginOffset"):
        read_pull_answer(Command(code=19), QUEUE, EVERYTHING)


def test_only_exact_tags_are_wanted():
    """The broker looks at hashes: "Aa" and "BB" have the same."""
    body = b"".join(a_record(properties=b"TAGS\x01%b\x02" % tag) for tag in (b"Aa", b"BB")) + a_record(properties=b"")

    outcome = read_pull_answer(Command(code=0, fields=OFFSETS, body=body), QUEUE, parse_tags("T", "Aa"))

    assert [message.tags for message in outcome.messages] == ["Aa"]
    assert filter_by_tags(outcome.messages, EVERYTHING) == outcome.messages


def test_limits_are_by_count_by_bytes_and_by_span():
    """Whichever is reached first."""
    window = ProcessQueue(QUEUE, 0)
    window.add([a_message(0), a_message(1)], 2)

    assert PullLimits(message_count_max=3, byte_count_max=9, span_max=3).allow(window)
    assert not PullLimits(message_count_max=2).allow(window)
    assert not PullLimits(byte_count_max=8).allow(window)
    assert not PullLimits(span_max=2).allow(window)


def test_queues_share_what_may_be_pulled_ahead():
    """But each may pull once."""
    prefetch = Prefetch(message_count_max=1000, byte_count_max=10 * 1024 * 1024)

    assert prefetch.share(0) == prefetch.share(1)
    assert prefetch.share(10).message_count_max == 100
    assert prefetch.share(10).byte_count_max == 1024 * 1024
    assert prefetch.share(1000).message_count_max == 32
    assert prefetch.share(1000).byte_count_max == 256 * 1024


@given(
    code=st.sampled_from([0, 19, 20, 21, 1]),
    fields=st.dictionaries(st.sampled_from([*OFFSETS, "offsetDelta"]), st.text(max_size=30) | st.just("5")),
    body=st.binary(max_size=200) | st.just(GOLDEN) | st.binary(max_size=20).map(lambda tail: GOLDEN + tail),
)
def test_any_answer_is_read_or_refused(code: int, fields: dict[str, str], body: bytes):
    """With a typed error: nothing a broker says ends a reader."""
    answer = Command(code=code, fields=fields, body=body)
    if code == 1:
        with pytest.raises(BrokerRefused):
            read_pull_answer(answer, QUEUE, EVERYTHING)
        return
    try:
        outcome = read_pull_answer(answer, QUEUE, EVERYTHING)
    except HoldfastError:
        return
    assert outcome.status == code
    if outcome.status is not PullStatus.FOUND:
        assert (outcome.messages, outcome.next_offset) == ([], int(fields["nextBeginOffset"]))


def test_the_pauses_after_failures_grow():
    """A broker that is back soon is pulled from soon; one that stays away is not bothered."""
    assert [error_pause_s(failures) for failures in range(1, 8)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3, 3])
    assert error_pause_s(10_000) == 3
