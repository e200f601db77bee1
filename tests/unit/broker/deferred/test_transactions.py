import random

import pytest
from tests.support.broker_clients import a_heartbeat, a_request, connect_client, pop_requests
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cold_reads import forbid_index_reads

from holdfast.broker.deferred.transactions import RUN_MAX, TIMER
from holdfast.broker.messages.writer import Draft
from holdfast.broker.tables.groups import TRANSACTION_GROUP
from holdfast.machine.effects import Log, ReadLog, SetTimer
from holdfast.machine.events import Stopping
from holdfast.model.topic import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord, decode_record, decode_records

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
TIMEOUT_MS = 6_000
INTERVAL_MS = 30_000


def a_desk(disk: SimDisk | None = None, **options: object) -> BrokerHarness:
    desk = BrokerHarness(disk=disk, **options)
    if desk.components.topics.find("T") is None:
        desk.make_topic("T")
    desk.pass_time(0, TIMER)
    return desk


@pytest.fixture
def desk() -> BrokerHarness:
    return a_desk()


def send_half(desk: BrokerHarness, number: int = 1, more: str = "") -> Command:
    properties = f"UNIQ_KEY\x01U{number}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02TAGS\x01TagA\x02{more}"
    (answer,) = desk.call(a_send(queue=2, body=b"%d" % number, f="4", i=properties))
    assert answer.code == 0
    return answer


def decide(desk: BrokerHarness, sent: Command, decision: int, **changes: object) -> list[Command]:
    fields = {
        "producerGroup": "p",
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": parse_message_id(sent.fields["msgId"]).position,
        "commitOrRollback": decision,
        "fromTransactionCheck": "false",
        "msgId": "U1",
    }
    return desk.call(a_request(RequestCode.END_TRANSACTION, **(fields | changes)))


def answer_check(desk: BrokerHarness, check: Command, decision: int) -> list[Command]:
    fields = {name: check.fields[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    return desk.call(
        a_request(RequestCode.END_TRANSACTION, producerGroup="p", commitOrRollback=decision, msgId="U1", **fields)
    )


def records(desk: BrokerHarness, topic: str, queue: int = 0) -> list[StoredRecord]:
    (answer,) = desk.call(a_pull(topic, queue=queue, maxMsgNums="4096"))
    return list(decode_records(answer.body))


def consumed(desk: BrokerHarness) -> list[int]:
    return [int(bytes(record.body)) for record in records(desk, "T", 2)]


def place(desk: BrokerHarness) -> tuple[int, int]:
    find = desk.components.offsets.find
    return find(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0, find(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) or 0


def look(desk: BrokerHarness, milliseconds: int = 0) -> None:
    """Let time pass, and let the room look twice: what it appends is asked about when it can be read."""
    desk.pass_time(milliseconds, TIMER, TIMER)


def test_a_half_message_is_not_seen_until_it_is_committed(desk: BrokerHarness) -> None:
    """Then once, where it was sent to, marked as committed and with the place of its half."""
    sent = send_half(desk)
    assert consumed(desk) == []

    (answer,) = decide(desk, sent, COMMIT)

    assert answer.code == 0
    (record,) = records(desk, "T", 2)
    properties = parse_properties(record.properties.decode())
    assert (bytes(record.body), record.sys_flag & 0xC) == (b"1", COMMIT)
    assert record.prepared_position == parse_message_id(sent.fields["msgId"]).position
    assert "REAL_TOPIC" not in properties
    assert "TRAN_MSG" not in properties
    assert (properties["TAGS"], properties["UNIQ_KEY"]) == ("TagA", "U1")


def test_the_answer_to_a_half_message_names_its_queue_and_its_place_among_halves(desk: BrokerHarness) -> None:
    """The client sends both back with its decision."""
    send_half(desk, 1)

    second = send_half(desk, 2)

    assert (second.fields["queueId"], second.fields["queueOffset"]) == ("2", "1")
    assert second.fields["transactionId"] == "U2"


def test_a_rolled_back_message_is_never_seen(desk: BrokerHarness) -> None:
    """And nobody is asked about it."""
    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))

    decide(desk, send_half(desk), ROLLBACK)

    look(desk, TIMEOUT_MS)
    assert consumed(desk) == []
    assert pop_requests(desk, 2) == []


def test_each_decision_is_written_as_4_x_brokers_read_it(desk: BrokerHarness) -> None:
    """One op record with one offset, tag `d`."""
    decide(desk, send_half(desk, 1), COMMIT)
    decide(desk, send_half(desk, 2), ROLLBACK)

    ops = records(desk, OP_HALF_TOPIC)

    assert [bytes(op.body) for op in ops] == [b"0", b"1"]
    assert all(parse_properties(op.properties.decode())["TAGS"] == "d" for op in ops)


def test_a_second_decision_changes_nothing(desk: BrokerHarness) -> None:
    """A commit that was sent twice delivers once; a late rollback takes nothing back."""
    sent = send_half(desk)
    decide(desk, sent, COMMIT)

    answers = decide(desk, sent, COMMIT) + decide(desk, sent, ROLLBACK)

    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR] * 2
    assert consumed(desk) == [1]


@pytest.mark.parametrize(
    "changes",
    [{"producerGroup": "other"}, {"tranStateTableOffset": 1}, {"commitLogOffset": 10**6}],
    ids=["another group", "another offset", "another position"],
)
def test_a_decision_must_fit_its_message(desk: BrokerHarness, changes: dict[str, object]) -> None:
    """Otherwise somebody decides about a stranger's message."""
    (answer,) = decide(desk, send_half(desk), COMMIT, **changes)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert consumed(desk) == []


def test_only_half_messages_can_be_decided_about(desk: BrokerHarness) -> None:
    """A plain message of the group is none."""
    (plain,) = desk.call(a_send(queue=2, i="UNIQ_KEY\x01U\x02PGROUP\x01p\x02"))

    (answer,) = decide(desk, plain, ROLLBACK)

    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_not_knowing_is_no_decision(desk: BrokerHarness) -> None:
    """It is not even answered, as upstream does not answer it."""
    assert decide(desk, send_half(desk), UNKNOWN) == []
    assert consumed(desk) == []


def test_a_silent_sender_is_asked(desk: BrokerHarness) -> None:
    """When its time is up: with the message as it was sent, and the place that the answer must name."""
    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))
    send_half(desk)

    look(desk, TIMEOUT_MS - 1)
    assert pop_requests(desk, 2) == []
    look(desk, 1)

    (check,) = pop_requests(desk, 2)
    record = decode_record(check.body)
    properties = parse_properties(record.properties.decode())
    assert (check.code, check.is_one_way) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    assert (record.topic, record.queue_id, bytes(record.body)) == ("T", 2, b"1")
    assert (properties["PGROUP"], properties["TRANSACTION_CHECK_TIMES"]) == ("p", "1")
    assert (check.fields["msgId"], check.fields["transactionId"]) == ("U1", "U1")
    assert check.fields["tranStateTableOffset"] == str(record.offset)
    assert check.fields["commitLogOffset"] == str(record.position)
    assert parse_message_id(check.fields["offsetMsgId"]).position == record.position


def test_the_answer_to_a_question_decides(desk: BrokerHarness) -> None:
    """Once; the decision about the copy that it was asked about is the decision about the message."""
    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))
    sent = send_half(desk)
    look(desk, TIMEOUT_MS)
    (check,) = pop_requests(desk, 2)

    (answer,) = answer_check(desk, check, COMMIT)
    (late,) = decide(desk, sent, COMMIT)

    assert (answer.code, late.code) == (0, ResponseCode.SYSTEM_ERROR)
    assert consumed(desk) == [1]
    look(desk, INTERVAL_MS * 3)
    assert pop_requests(desk, 2) == []


def test_a_sender_that_does_not_know_is_asked_again(desk: BrokerHarness) -> None:
    """After the interval, with the number of times."""
    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))
    send_half(desk)
    look(desk, TIMEOUT_MS)
    pop_requests(desk, 2)

    look(desk, INTERVAL_MS - 1)
    assert pop_requests(desk, 2) == []
    look(desk, 1)

    (check,) = pop_requests(desk, 2)
    assert parse_properties(decode_record(check.body).properties.decode())["TRANSACTION_CHECK_TIMES"] == "2"


def test_a_message_that_nobody_ever_decides_about_is_set_aside() -> None:
    """After the last question; an operator finds it in its own topic."""
    desk = a_desk(transaction_check_max=1)
    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))
    send_half(desk)
    look(desk, TIMEOUT_MS)

    look(desk, INTERVAL_MS)

    (aside,) = records(desk, CHECK_MAX_TOPIC)
    assert bytes(aside.body) == b"1"
    assert consumed(desk) == []
    assert any(isinstance(effect, Log) and effect.event == "transaction never decided" for effect in desk.effects)


def test_a_question_that_nobody_could_be_asked_does_not_count(desk: BrokerHarness) -> None:
    """A producer that is away for an hour finds its transactions still open."""
    send_half(desk)
    for _ in range(20):
        look(desk, INTERVAL_MS)

    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))
    look(desk, INTERVAL_MS)

    (check,) = pop_requests(desk, 2)
    assert parse_properties(decode_record(check.body).properties.decode())["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_sender_can_ask_for_more_time(desk: BrokerHarness) -> None:
    """With a property of its message."""
    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))
    send_half(desk, more="CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")

    look(desk, 59_999)
    assert pop_requests(desk, 2) == []
    look(desk, 1)
    assert len(pop_requests(desk, 2)) == 1


def test_under_sync_flush_a_question_waits_until_its_copy_can_be_decided_about() -> None:
    """The answer may come before the disk is done, and would not find the message."""
    desk = a_desk(flush="sync")
    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))
    properties = "UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    desk.call(a_send(queue=2, f="4", i=properties))
    desk.sync()

    look(desk, TIMEOUT_MS)
    assert pop_requests(desk, 2) == []
    desk.sync()
    look(desk, 50)

    assert len(pop_requests(desk, 2)) == 1


def test_what_was_decided_stays_decided_after_a_crash() -> None:
    """And what was not is asked about: the log alone tells."""
    desk = a_desk(flush="sync")
    for number in range(4):
        desk.call(a_send(queue=2, body=b"%d" % number, f="4", i=f"UNIQ_KEY\x01U{number}\x02PGROUP\x01p\x02"))
    desk.sync()
    halves = list(desk.answers[1])
    decide(desk, halves[1], COMMIT)
    decide(desk, halves[3], ROLLBACK)
    desk.sync()
    desk.disk.crash(random.Random(3))

    again = a_desk(desk.disk)
    again.now_ms = desk.now_ms
    look(again)
    connect_client(again, 2, a_heartbeat("c", producer_group="p"))
    (refused,) = decide(again, halves[1], COMMIT)
    look(again, TIMEOUT_MS)

    checks = pop_requests(again, 2)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert sorted(bytes(decode_record(check.body).body) for check in checks) == [b"0", b"2"]
    assert consumed(again) == [1]


def test_a_decision_is_not_taken_before_the_log_was_read() -> None:
    """It might be the second one; the sender will be asked."""
    desk = a_desk()
    sent = send_half(desk)
    desk.feed(Stopping(desk.now_ms))
    desk.store.close(desk.now_ms)
    again = BrokerHarness(disk=desk.disk)

    (early,) = decide(again, sent, COMMIT)
    again.pass_time(0, TIMER)
    (ready,) = decide(again, sent, COMMIT)

    assert (early.code, ready.code) == (ResponseCode.SYSTEM_BUSY, 0)
    assert consumed(again) == [1]


def test_ops_of_a_5_x_broker_are_read() -> None:
    """It packs many offsets into one."""
    desk = a_desk()
    sent = [send_half(desk, number) for number in range(4)]
    op = Draft(
        topic=OP_HALF_TOPIC,
        queue_id=0,
        body=b"0,2,3,",
        properties={"TAGS": "d"},
        born_ms=1,
        born_host=pack_host("127.0.0.1:1"),
    )
    desk.components.writer.append(op)
    desk.pass_time(0, "stats")  # the event that writes it
    desk.store.close(desk.now_ms)

    again = a_desk(desk.disk)
    answers = [decide(again, half, COMMIT)[0].code for half in sent]

    assert answers == [1, 0, 1, 1]
    assert consumed(again) == [1]


def test_the_place_in_both_queues_follows_what_is_decided(desk: BrokerHarness) -> None:
    """So that a restart, or a Java broker, reads no more than it must."""
    first, second, third = (send_half(desk, number) for number in range(3))
    decide(desk, third, COMMIT)
    decide(desk, first, COMMIT)
    look(desk)
    assert place(desk) == (1, 0)

    decide(desk, second, COMMIT)
    look(desk)

    assert place(desk) == (3, 3)


def test_the_place_does_not_pass_what_the_disk_might_lose() -> None:
    """A saved offset beyond an unsynced decision would forget the message for ever."""
    desk = a_desk(flush="sync")
    desk.call(a_send(queue=2, f="4", i="UNIQ_KEY\x01U1\x02PGROUP\x01p\x02"))
    desk.sync()
    (sent,) = desk.answers[1]
    decide(desk, sent, COMMIT)

    look(desk)
    assert place(desk)[0] == 0
    desk.sync()
    look(desk)

    assert place(desk) == (1, 1)


def test_a_stuck_transaction_does_not_hold_the_place_of_the_others(desk: BrokerHarness) -> None:
    """It is written anew behind them when it is asked about."""
    connect_client(desk, 2, a_heartbeat("c", producer_group="p"))
    send_half(desk, 1)
    for number in range(2, 6):
        decide(desk, send_half(desk, number), COMMIT)

    look(desk, TIMEOUT_MS)

    assert place(desk) == (5, 5)
    assert desk.components.transaction_handler.undecided_count == 1


def test_many_half_messages_are_read_in_turns(desk: BrokerHarness) -> None:
    """Other events get theirs in between; the timer is set at once."""
    for number in range(RUN_MAX + 5):
        send_half(desk, number)
    desk.store.close(desk.now_ms)
    again = BrokerHarness(disk=desk.disk)
    again.effects.clear()

    again.pass_time(0, TIMER)
    assert again.components.transaction_handler.undecided_count == RUN_MAX
    assert SetTimer(TIMER, again.now_ms) in again.effects

    again.pass_time(0, TIMER)
    assert again.components.transaction_handler.undecided_count == RUN_MAX + 5


def test_what_was_undecided_before_a_restart_is_read_off_the_loop(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half messages and decisions may be long gone from memory."""
    sent = [send_half(desk, number) for number in range(70)]
    for half in sent[:69]:
        decide(desk, half, COMMIT)
    desk.store.close(desk.now_ms)
    again = BrokerHarness(disk=desk.disk)
    forbid_index_reads(again, monkeypatch)

    again.pass_time(0, TIMER)

    assert any("consumequeue" in effect.file.path for effect in again.effects if isinstance(effect, ReadLog))
    assert again.components.transaction_handler.undecided_count == 1
    assert decide(again, sent[69], COMMIT)[0].code == 0
    assert decide(again, sent[0], COMMIT)[0].code != 0
