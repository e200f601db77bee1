"""Batches in logical queues: split, whole, and piece by piece, wherever their records are."""

from __future__ import annotations

import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import a_pull
from tests.support.cluster.broker_machines import TOPIC, StaticBrokers, records
from tests.support.inner_batches import JAVA_4, JAVA_5, make_items, put_batch

from holdfast.broker.messages.batch_cache import UnpackReason
from holdfast.model.topic import BATCH_QUEUE
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import is_inner_batch

OURS = ("PYTHON", 479)


def make_desks() -> StaticBrokers:
    """Return two brokers with a logical queue of 30 messages in five batches, that was moved from one to the other."""
    desks = StaticBrokers("a", "b")
    for desk in desks.brokers.values():
        desk.store.set_queue_type(TOPIC, BATCH_QUEUE)
    desks.create("a", "b")
    put(desks, 0, 10)
    put(desks, 10, 4, codec=Codec.ZSTD)
    desks.move(0, "b")
    put(desks, 14, 10, codec=Codec.LZ4)
    put(desks, 24, 5)
    put(desks, 29, 1)
    return desks


def put(desks: StaticBrokers, start: int, count: int, *, codec: Codec | None = None) -> None:
    """Let the leader of logical queue 0 have a batch."""
    leader = desks.queue().leader
    put_batch(desks[leader.broker], make_items(start, count, tags=("x", "y")), codec=codec, queue=leader.queue_id)


def pull(desks: StaticBrokers, offset: int, who: tuple[str, int], *, at: str = "b", **fields: str) -> Command:
    command = a_pull(TOPIC, offset=offset, **fields)
    command.language, command.version = who
    (answer,) = desks[at].call(command)
    return answer


def read_all(
    desks: StaticBrokers, start: int, who: tuple[str, int], *, at: str = "b", **fields: str
) -> list[tuple[int, bytes]]:
    """Read from *start* to the end as a client does that opens nothing."""
    got, offset = [], start
    while offset < 30:
        answer = pull(desks, offset, who, at=at, **fields)
        delta = int(answer.fields["offsetDelta"])
        got += [(record.offset + delta, bytes(record.body)) for record in records(answer)]
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])
    return got


@pytest.mark.parametrize("start", [0, 3, 12, 14, 20, 27, 29])
@pytest.mark.parametrize(("number", "at"), [("1", "b"), ("3", "a"), ("32", "b"), ("32", "a")])
def test_an_old_client_reads_single_messages_with_logical_numbers(start: int, number: str, at: str) -> None:
    """At the leader and through another broker, of earlier segments too; the delta that it does not know is nothing."""
    desks = make_desks()

    got = read_all(desks, start, JAVA_4, at=at, maxMsgNums=number)

    assert got == [(at, b"%03d" % at) for at in range(start, 30)]
    answer = pull(desks, 16, JAVA_4)
    assert answer.fields["offsetDelta"] == "0"
    assert {record.queue_id for record in records(answer)} == {0}


def test_each_broker_opens_its_own_batches_once() -> None:
    """However small the pieces are in which they are asked for."""
    desks = make_desks()

    read_all(desks, 0, JAVA_4, maxMsgNums="2")

    assert desks["a"].components.batch_cache.unpacked[UnpackReason.SPLIT] == 2
    assert desks["b"].components.batch_cache.unpacked[UnpackReason.SPLIT] == 3


def test_tags_are_found_over_the_border_of_a_segment() -> None:
    """By an old client, from within a batch."""
    desks = make_desks()

    got = read_all(desks, 8, JAVA_4, subscription="x")

    assert [offset for offset, _ in got] == list(range(8, 30, 2))


@pytest.mark.parametrize(("who", "said"), [(OURS, {"hf.mapping": "1", "opensBatches": "true"}), (JAVA_5, {})])
def test_who_opens_batches_gets_them_whole_from_both_segments(who: tuple[str, int], said: dict[str, str]) -> None:
    """With the delta that it adds."""
    desks = make_desks()

    old, new = pull(desks, 0, who, **said), pull(desks, 14, who, **said)

    for answer, first, delta in ((old, 0, 0), (new, 14, 14)):
        got = records(answer)
        assert all(is_inner_batch(record.sys_flag) for record in got)
        assert (got[0].offset + delta, answer.fields["offsetDelta"]) == (first, str(delta))
    assert [sum(desk.components.batch_cache.unpacked.values()) for desk in desks.brokers.values()] == [0, 0]


@pytest.mark.parametrize("start", [3, 17])
def test_java_5_gets_the_rest_of_a_batch_as_single_messages(start: int) -> None:
    """In either segment: it would deliver once more what is before."""
    desks = make_desks()

    answer = pull(desks, start, JAVA_5)

    end = 10 if start == 3 else 24
    delta = int(answer.fields["offsetDelta"])
    assert [record.offset + delta for record in records(answer)] == list(range(start, end))
    assert answer.fields["nextBeginOffset"] == str(end)


@pytest.mark.parametrize("number", [2, 12, 17, 29])
@pytest.mark.parametrize("at", ["a", "b"])
def test_a_message_of_a_batch_is_returned_at_any_broker(number: int, at: str) -> None:
    """Which finds the batch in somebody's log, and takes its message out."""
    desks = make_desks()
    answer = pull(desks, number, JAVA_4, maxMsgNums="1")
    (record,) = records(answer)
    fields = {"offset": record.position, "group": "g", "delayLevel": -1, "originTopic": TOPIC}

    (returned,) = desks[at].call(a_request(RequestCode.CONSUMER_SEND_MSG_BACK, **fields, originMsgId=f"U{number}"))
    (refused,) = desks[at].call(a_request(RequestCode.CONSUMER_SEND_MSG_BACK, **fields, originMsgId="U99"))

    (pulled,) = desks[at].call(a_pull("%DLQ%g"))
    assert [bytes(dead.body) for dead in records(pulled)] == [b"%03d" % number]
    assert returned.code == ResponseCode.SUCCESS
    assert refused.code in {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}
