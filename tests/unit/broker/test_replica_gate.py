"""Synchronous replication: what a sender is told, and when."""

from __future__ import annotations

import pytest
from tests.support.broker_desk import BrokerDesk, a_pull, a_send, codes
from tests.support.replicas import Pair

from holdfast.broker.replica_gate import TIMER
from holdfast.machine.events import ChannelId, StreamReceived
from holdfast.wire.codes import ResponseCode
from holdfast.wire.ha import encode_report


def a_pair(flush: str = "async", **options: object) -> Pair:
    pair = Pair(BrokerDesk(flush=flush, replication="sync", **options), flush=flush)
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    return pair


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_message_is_acknowledged_when_a_replica_has_it(flush: str) -> None:
    """Not before, though it is safe here."""
    pair = a_pair(flush)
    pair.follow()

    assert pair.master.ask(a_send()) == []
    pair.master.sync()
    assert pair.master.answers[1] == []
    pair.exchange()

    assert codes(pair.master.answers[1]) == [0]


def test_under_sync_flush_the_replicas_disk_is_waited_for() -> None:
    """What is only in its memory is not safe from a power cut there."""
    pair = a_pair("sync")
    pair.follow()
    pair.holds_syncs = True
    pair.master.ask(a_send())
    pair.master.sync()

    pair.exchange()
    assert pair.master.answers[1] == []
    pair.replica.sync()
    pair.exchange()

    assert codes(pair.master.answers[1]) == [0]


def test_what_is_not_on_this_disk_is_not_even_shipped() -> None:
    """A replica must not have what a crash could take back here."""
    pair = a_pair("sync")
    pair.follow()

    pair.master.ask(a_send())

    assert pair.master.streams[pair._channel] == b""
    pair.master.sync()
    assert pair.master.streams[pair._channel] != b""


def test_without_a_replica_the_sender_is_told_so_and_the_message_is_stored() -> None:
    """As upstream: an answer with everything in it, and another code."""
    pair = a_pair()

    (answer,) = pair.master.ask(a_send())

    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert (answer.fields["queueOffset"], "msgId" in answer.fields) == ("0", True)
    assert "no replica" in (answer.remark or "")
    assert codes(pair.master.ask(a_pull())) == [0]
    assert pair.master.rooms.replica_gate.unsafe == 1


def test_a_replica_that_does_not_answer_in_time_is_not_waited_for() -> None:
    """Nor does its late word answer twice."""
    pair = a_pair()
    pair.follow()
    pair.master.ask(a_send())

    pair.master.pass_time(2_999, TIMER)
    assert pair.master.answers[1] == []
    pair.master.pass_time(1, TIMER)
    assert codes(pair.master.answers[1]) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    pair.exchange()

    assert codes(pair.master.answers[1]) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


def test_a_replica_that_is_far_behind_is_not_waited_for() -> None:
    """Every sender would wait until it has caught up."""
    pair = a_pair(in_sync_limit=1_000)
    pair.send(20)
    assert pair.connect()
    channel = ChannelId(pair._channel)
    pair.master.feed(StreamReceived(channel, encode_report(0), pair.master.now_ms))

    (answer,) = pair.master.ask(a_send())
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    end = int(pair.master.store.written)
    pair.master.feed(StreamReceived(channel, encode_report(end), pair.master.now_ms))

    assert pair.master.ask(a_send()) == []


def test_every_answer_waits_for_its_own_message() -> None:
    """A replica that has the first has not the second."""
    pair = a_pair()
    assert pair.connect()
    channel = ChannelId(pair._channel)
    pair.master.feed(StreamReceived(channel, encode_report(0), pair.master.now_ms))
    pair.master.ask(a_send(opaque=1))
    middle = int(pair.master.store.written)
    pair.master.ask(a_send(opaque=2))
    pair.master.answers[1].clear()

    pair.master.feed(StreamReceived(channel, encode_report(middle), pair.master.now_ms))

    assert [answer.opaque for answer in pair.master.answers[1]] == [1]


def test_what_promises_no_message_does_not_wait() -> None:
    """A pull is answered though no replica is there, and as ever."""
    pair = a_pair()
    pair.master.ask(a_send())

    (pulled,) = pair.master.ask(a_pull())

    assert pulled.code == 0


def test_a_pull_in_the_same_read_as_a_send_keeps_its_code() -> None:
    """Only what promises a message promises less."""
    pair = a_pair()
    pair.master.ask(a_send())

    answers = pair.master.ask(a_send(opaque=5), a_pull(opaque=6))

    assert {answer.opaque: answer.code for answer in answers} == {5: ResponseCode.SLAVE_NOT_AVAILABLE, 6: 0}
