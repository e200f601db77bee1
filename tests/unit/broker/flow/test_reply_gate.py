"""Synchronous flush and replication: what a sender is told, and when."""

from __future__ import annotations

import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes
from tests.support.cluster.replica_machines import ReplicaPair, make_static

from holdfast.broker.deferred.transactions import TIMER as TRANSACTIONS_TIMER
from holdfast.broker.flow.reply_gate import REPLICA_TIMER
from holdfast.broker.replication.ha_master import PURPOSE
from holdfast.machine.effects import CloseChannel, Effect, SendBytes
from holdfast.machine.events import ChannelId, ChannelOpened, StreamReceived
from holdfast.wire.cluster.ha import encode_report
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.requests.forward import ForwardFields
from holdfast.wire.requests.relay import RelayFields
from holdfast.wire.requests.sink import SINK, SinkStamp, record_texts

ONE, TWO = ChannelId(1), ChannelId(2)


@pytest.fixture
def local() -> BrokerHarness:
    """A broker with synchronous flush and without replicas."""
    return BrokerHarness(flush="sync")


def released(local: BrokerHarness, position: int) -> list[Effect]:
    """Return the effects of a sync up to *position*."""
    local.components.reply_gate.release_synced(position)
    return local.components.turn.drain_effects()


def test_an_answer_leaves_when_its_record_is_synced_and_not_before(local: BrokerHarness) -> None:
    """A sync releases what it covers, nothing behind it."""
    gate = local.components.reply_gate
    gate.hold(100, ONE, [b"a"])
    gate.hold(200, ONE, [b"b"])

    assert released(local, 99) == []
    assert released(local, 100) == [SendBytes(ONE, [b"a"])]
    assert released(local, 500) == [SendBytes(ONE, [b"b"])]
    assert released(local, 500) == []


def test_a_sync_answers_each_channel_with_one_write(local: BrokerHarness) -> None:
    """Answers of one channel leave together and in order."""
    gate = local.components.reply_gate
    gate.hold(1, ONE, [b"a"])
    gate.hold(2, TWO, [b"x"])
    gate.hold(3, ONE, [b"b", b"c"])

    assert released(local, 3) == [SendBytes(ONE, [b"a", b"b", b"c"]), SendBytes(TWO, [b"x"])]


def test_a_failed_disk_takes_all_promises_back(local: BrokerHarness) -> None:
    """Nothing is ever answered; each channel that waits is closed once."""
    gate = local.components.reply_gate
    gate.hold(1, ONE, [b"a"])
    gate.hold(2, TWO, [b"b"])
    gate.hold(3, ONE, [b"c"])

    gate.drop_unsynced()

    assert local.components.turn.drain_effects() == [CloseChannel(ONE), CloseChannel(TWO)]
    assert released(local, 1000) == []


def a_pair(flush: str = "async", **options: object) -> ReplicaPair:
    pair = ReplicaPair(BrokerHarness(flush=flush, replication="sync", **options), flush=flush)
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    return pair


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_message_is_acknowledged_when_a_replica_has_it(flush: str) -> None:
    """Not before, though it is safe here."""
    pair = a_pair(flush)
    pair.connect_and_catch_up()

    assert pair.master.call(a_send()) == []
    pair.master.sync()
    assert pair.master.answers[1] == []
    pair.exchange()

    assert codes(pair.master.answers[1]) == [0]


def test_a_replica_that_is_ahead_acknowledges_nothing() -> None:
    """It copied another log: beside one that is in sync, and a little late, its word counts for nobody."""
    pair = a_pair()
    pair.connect_and_catch_up()
    stranger = ChannelId(77)
    pair.master.streams[stranger] = bytearray()
    pair.master.feed(ChannelOpened(stranger, "10.0.0.7:4711", pair.master.now_ms, None, PURPOSE))
    pair.master.call(a_send())

    pair.master.feed(StreamReceived(stranger, encode_report(1 << 40), pair.master.now_ms))

    assert pair.master.answers[1] == []
    pair.exchange()
    assert codes(pair.master.answers[1]) == [0]


def test_under_sync_flush_the_replicas_disk_is_waited_for() -> None:
    """What is only in its memory is not safe from a power cut there."""
    pair = a_pair("sync")
    pair.connect_and_catch_up()
    pair.is_sync_paused = True
    pair.master.call(a_send())
    pair.master.sync()

    pair.exchange()
    assert pair.master.answers[1] == []
    pair.replica.sync()
    pair.exchange()

    assert codes(pair.master.answers[1]) == [0]


def test_what_is_not_on_this_disk_is_not_even_shipped() -> None:
    """A replica must not have what a crash could take back here."""
    pair = a_pair("sync")
    pair.connect_and_catch_up()

    pair.master.call(a_send())

    assert pair.master.streams[pair._channel] == b""
    pair.master.sync()
    assert pair.master.streams[pair._channel] != b""


def test_without_a_replica_the_sender_is_told_so_and_the_message_is_stored() -> None:
    """As upstream: an answer with everything in it, and another code."""
    pair = a_pair()

    (answer,) = pair.master.call(a_send())

    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert (answer.fields["queueOffset"], "msgId" in answer.fields) == ("0", True)
    assert "no replica" in (answer.remark or "")
    assert codes(pair.master.call(a_pull())) == [0]
    assert pair.master.components.reply_gate.unreplicated_count == 1


def test_a_replica_that_does_not_answer_in_time_is_not_waited_for() -> None:
    """Nor does its late word answer twice."""
    pair = a_pair()
    pair.connect_and_catch_up()
    pair.master.call(a_send())

    pair.master.pass_time(2_999, REPLICA_TIMER)
    assert pair.master.answers[1] == []
    pair.master.pass_time(1, REPLICA_TIMER)
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

    (answer,) = pair.master.call(a_send())
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    end = int(pair.master.store.written)
    pair.master.feed(StreamReceived(channel, encode_report(end), pair.master.now_ms))

    assert pair.master.call(a_send()) == []


def test_every_answer_waits_for_its_own_message() -> None:
    """A replica that has the first has not the second."""
    pair = a_pair()
    assert pair.connect()
    channel = ChannelId(pair._channel)
    pair.master.feed(StreamReceived(channel, encode_report(0), pair.master.now_ms))
    pair.master.call(a_send(opaque=1))
    middle = int(pair.master.store.written)
    pair.master.call(a_send(opaque=2))
    pair.master.answers[1].clear()

    pair.master.feed(StreamReceived(channel, encode_report(middle), pair.master.now_ms))

    assert [answer.opaque for answer in pair.master.answers[1]] == [1]


def test_what_promises_no_message_does_not_wait() -> None:
    """A pull is answered though no replica is there, and as ever."""
    pair = a_pair()
    pair.master.call(a_send())

    (pulled,) = pair.master.call(a_pull())

    assert pulled.code == 0


def test_a_pull_in_the_same_read_as_a_send_keeps_its_code() -> None:
    """Only what promises a message promises less."""
    pair = a_pair()
    pair.master.call(a_send())

    answers = pair.master.call(a_send(opaque=5), a_pull(opaque=6))

    assert {answer.opaque: answer.code for answer in answers} == {5: ResponseCode.SLAVE_NOT_AVAILABLE, 6: 0}


def a_half(opaque: int = 1) -> Command:
    return a_send(f="4", i="UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02", opaque=opaque)


def a_forward() -> Command:
    fields = ForwardFields(source="c", stream="level 1", position=7, settled=0, topic="S", queue_id=0)
    return Command(code=RequestCode.FORWARD_MESSAGE, opaque=1, fields=to_fields(fields), body=b"forwarded")


def an_envelope() -> Command:
    """Return what another broker brings for a client of its own."""
    fields = RelayFields(source="c", boot=1, number=1, client="10.0.0.5:1", topic="S", queue=0)
    return Command(code=RequestCode.RELAY, opaque=1, fields=to_fields(fields), body=encode_command(a_send("S")))


def some_rows() -> Command:
    """Return rows of a sink that wants them exactly once."""
    text = f"{SINK}\x01{record_texts('q', 7, 0, 0, [1], is_last=False)[0]}\x02".encode()
    stamp = SinkStamp(
        query="q", batch=7, partition=0, first=0, count=1, checksum_before=0, checksum_after=1, is_last=False
    )
    return a_send("S", code=320, m="true", i=f"{SINK}\x01{stamp.to_text()}\x02", body=encode_items([(0, b"row", text)]))


def what_appends(pair: ReplicaPair) -> dict[str, Command]:
    """Return a request of every kind that puts something into the log, and is answered for that."""
    pair.master.call(a_send(), a_half())
    pair.master.sync()
    sent, half = pair.master.answers[1]
    position, half_at = (parse_message_id(answer.fields["msgId"]).position for answer in (sent, half))
    given_back = {"offset": position, "group": "g", "delayLevel": 0}
    decision = {
        "producerGroup": "p", "tranStateTableOffset": half.fields["queueOffset"], "commitLogOffset": half_at,
        "commitOrRollback": 8, "msgId": "U",
    }  # fmt: skip
    return {
        "send": a_send(),
        "batch": a_send(code=320, m="true", body=encode_items([(0, b"one", b""), (0, b"two", b"")])),
        "half message": a_half(),
        "end of a transaction": a_request(RequestCode.END_TRANSACTION, **decision),
        "given back": a_request(RequestCode.CONSUMER_SEND_MSG_BACK, **given_back),
        "forwarded": a_forward(),
        "relayed": an_envelope(),
        "rows of a sink": some_rows(),
    }


KINDS = (
    "send", "batch", "half message", "end of a transaction", "given back", "forwarded", "relayed", "rows of a sink",
)  # fmt: skip


def a_pair_with_everything(flush: str = "async") -> ReplicaPair:
    pair = a_pair(flush)
    make_static(pair.master)
    pair.master.pass_time(1_000, TRANSACTIONS_TIMER)  # Before it takes decisions it looks what is undecided.
    pair.master.sync()
    return pair


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_whatever_is_appended_and_acknowledged_is_at_a_replica_then(flush: str, kind: str) -> None:
    """However it comes into the log, and whether its answer names a message or not."""
    pair = a_pair_with_everything(flush)
    request = what_appends(pair)[kind]
    pair.connect_and_catch_up()

    assert pair.master.call(request) == []
    pair.master.sync()
    assert pair.master.answers[1] == []
    pair.exchange()

    assert codes(pair.master.answers[1]) == [0]


@pytest.mark.parametrize("kind", ["forwarded", "rows of a sink"])
def test_what_is_brought_again_is_not_known_before_a_replica_has_it(kind: str) -> None:
    """Whoever did not hear the answer in time and asks again would believe what the first answer could not say yet."""
    pair = a_pair_with_everything()
    request = what_appends(pair)[kind]
    pair.connect_and_catch_up()
    pair.master.call(request)

    (too_early,) = pair.master.call(request)
    pair.exchange()
    (again,) = pair.master.call(request)

    assert too_early.code == ResponseCode.SYSTEM_BUSY
    assert again.code == {"forwarded": 0, "rows of a sink": ResponseCode.SINK_OUT_OF_SEQUENCE}[kind]


def test_giving_back_does_not_fail_for_want_of_a_replica() -> None:
    """A client that is told so sends the message once more, and both come again, and both again."""
    pair = a_pair_with_everything()

    (answer,) = pair.master.call(what_appends(pair)["given back"])

    assert answer.code == 0
