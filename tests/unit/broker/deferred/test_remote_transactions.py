"""A transaction is decided wherever its producer is connected, and wherever its half message is."""

import msgspec
import pytest
from tests.support.broker_clients import a_heartbeat, a_request, join, told
from tests.support.broker_desk import a_send
from tests.support.static_desks import TOPIC, StaticDesks

from holdfast.model.leadership import Leader
from holdfast.model.mapping import first_home
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.message_id import parse_message_id

COMMIT, ROLL_BACK = 8, 12
TIMEOUT_MS = 6_000


@pytest.fixture
def desks() -> StaticDesks:
    """Broker a leads queue 0, b leads queue 1; both have read their transactions."""
    desks = StaticDesks("a", "b")
    desks.create("a", "b")
    let_time_pass(desks, 80)
    return desks


def let_time_pass(desks: StaticDesks, milliseconds: int) -> None:
    """Let time pass everywhere, in steps that let calls go on."""
    for _ in range(8):
        for desk in [desk for desk in desks.desks.values() if desk.is_up]:
            desk.pass_time(milliseconds // 8, "transactions", "members", "pauses", "calls")
        desks.settle()


def send_half(desks: StaticDesks, at: str, key: str, queue: int = 0) -> Command:
    properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    (answer,) = desks[at].ask(a_send(TOPIC, queue=queue, body=key.encode(), f="4", i=properties))
    assert answer.code == 0, answer.remark
    return answer


def decide(desks: StaticDesks, at: str, sent: Command, key: str, decision: int = COMMIT, **more: str) -> list[Command]:
    fields = {
        "producerGroup": "p",
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": parse_message_id(sent.fields["msgId"]).position,
        "commitOrRollback": decision,
        "msgId": key,
        "transactionId": key,
    }
    return desks[at].ask(a_request(RequestCode.END_TRANSACTION, **(fields | more)))


def bodies(desks: StaticDesks) -> list[bytes]:
    return [body for _, body in desks.read_all(0)]


def undecided(desks: StaticDesks) -> dict[str, int]:
    let_time_pass(desks, 8)
    return {name: desk.rooms.transactions.undecided_count for name, desk in desks.desks.items()}


def test_a_half_message_stays_with_the_broker_that_was_asked(desks: StaticDesks) -> None:
    """Its sender will decide there; what it becomes goes to the leader of its queue."""
    sent = send_half(desks, "b", "K1")
    assert parse_message_id(sent.fields["msgId"]).address == desks.address("b")
    assert undecided(desks) == {"a": 0, "b": 1}

    (answer,) = decide(desks, "b", sent, "K1")

    assert answer.code == 0
    assert bodies(desks) == [b"K1"]
    assert undecided(desks) == {"a": 0, "b": 0}


@pytest.mark.parametrize(("decision", "expected"), [(COMMIT, [b"Ka"]), (ROLL_BACK, [])])
def test_a_decision_finds_its_half_message(desks: StaticDesks, decision: int, expected: list[bytes]) -> None:
    """By its id: another one of the same group stands at the same place in the log of the broker that is asked."""
    sent, other = send_half(desks, "a", "Ka"), send_half(desks, "b", "Kb")
    assert sent.fields["queueOffset"] == other.fields["queueOffset"]
    assert sent.fields["msgId"][-16:] == other.fields["msgId"][-16:]

    (answer,) = decide(desks, "b", sent, "Ka", decision)

    assert answer.code == 0
    assert bodies(desks) == expected
    assert undecided(desks) == {"a": 0, "b": 1}


def test_a_decision_that_comes_twice_delivers_once(desks: StaticDesks) -> None:
    """Whichever broker gets the second one."""
    sent = send_half(desks, "a", "Ka")
    decide(desks, "b", sent, "Ka")

    (again,) = decide(desks, "b", sent, "Ka")

    assert (again.code, again.remark) == (ResponseCode.SYSTEM_ERROR, "the transaction was decided before")
    assert bodies(desks) == [b"Ka"]


def test_a_decision_about_nothing_is_refused(desks: StaticDesks) -> None:
    """So is one that was passed on already, to a broker that has no such half message: there are no circles."""
    sent = send_half(desks, "a", "Ka")

    (nothing,) = decide(desks, "b", sent, "another")
    (passed,) = decide(desks, "b", sent, "Ka", lo="false")

    assert nothing.code == passed.code == ResponseCode.SYSTEM_ERROR
    assert undecided(desks) == {"a": 1, "b": 0}


def decide_while_the_leader_is_down(desks: StaticDesks) -> None:
    """Commit a half message of b, whose queue a leads, and let time pass in which its producer would be asked."""
    join(desks["b"], 7, a_heartbeat("producer", produces="p"))
    sent = send_half(desks, "b", "K1")
    desks.go_down("a")
    decide(desks, "b", sent, "K1")
    let_time_pass(desks, TIMEOUT_MS + 2_000)
    assert told(desks["b"], 7) == [], "its producer has said what he wants"
    (changed,) = decide(desks, "b", sent, "K1", ROLL_BACK)
    assert changed.code == ResponseCode.SYSTEM_BUSY
    desks.restart("a").now_ms = desks["b"].now_ms
    desks.introduce(desks["b"])


def test_a_decision_is_not_forgotten_while_the_leader_is_down(desks: StaticDesks) -> None:
    """It is told once: the message is delivered when there is a leader again, and nobody is asked meanwhile."""
    decide_while_the_leader_is_down(desks)

    let_time_pass(desks, 8_000)

    assert bodies(desks) == [b"K1"]
    assert undecided(desks) == {"a": 0, "b": 0}


def test_a_decision_is_not_forgotten_while_the_queue_moves(desks: StaticDesks) -> None:
    """It came home while others were asked to take the message: then it is stored here."""
    decide_while_the_leader_is_down(desks)
    desks.move(0, "b")

    let_time_pass(desks, 8_000)

    assert bodies(desks) == [b"K1"]
    assert undecided(desks) == {"a": 0, "b": 0}


def test_producers_elsewhere_are_asked(desks: StaticDesks) -> None:
    """The broker that they are connected to puts the question, and passes their answer on."""
    join(desks["a"], 7, a_heartbeat("producer", produces="p"))
    let_time_pass(desks, 80)
    send_half(desks, "b", "K1")
    let_time_pass(desks, TIMEOUT_MS + 2_000)

    (question,) = told(desks["a"], 7)
    assert (question.code, question.is_one_way) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    assert b"HOLDFAST" not in question.body, "what we note for ourselves is nobody's business"
    fields = {name: question.fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "transactionId")}
    decision = a_request(RequestCode.END_TRANSACTION, producerGroup="p", commitOrRollback=COMMIT, msgId="K1", **fields)
    (answer,) = desks["a"].ask(decision, channel=7)

    assert answer.code == 0
    assert bodies(desks) == [b"K1"]
    assert undecided(desks) == {"a": 0, "b": 0}


def test_nobody_is_asked_where_there_are_no_producers(desks: StaticDesks) -> None:
    """That does not count as a question: the half message waits."""
    send_half(desks, "b", "K1")
    let_time_pass(desks, TIMEOUT_MS + 2_000)

    assert undecided(desks) == {"a": 0, "b": 1}
    halves = desks["b"].store.find_queue("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert halves is not None
    assert halves.offset_max == 1


def test_a_question_without_a_half_message_is_refused(desks: StaticDesks) -> None:
    """So is one about a group of which nobody is here any more."""
    (nonsense,) = desks["a"].ask(Command(code=RequestCode.CHECK_TRANSACTION_STATE, body=b"nonsense"))

    assert nonsense.code == ResponseCode.INVALID_PARAMETER


def grow_unheard_of(desks: StaticDesks) -> None:
    """Let b lead another queue, of which a knows no more than that."""
    mappings = desks["b"].rooms.mappings
    mapping = mappings.find(TOPIC)
    assert mapping is not None
    grown = msgspec.structs.replace(mapping, total=3).put(first_home(2, "b", 1), epoch=mapping.epoch + 1)
    mappings.change(grown, now_ms=desks["b"].now_ms)
    desks["a"].rooms.view.teach_leader(MessageQueue(TOPIC, "b", 2), Leader("b", 0))
    desks.settle()


def level_logs(desks: StaticDesks) -> None:
    """Let the logs of a and b be of one length."""
    for name in "ab":
        desks[name].make_topic("N")
    before = desks["b"].store.written
    desks["b"].ask(a_send("N", body=bytes(1_000)))
    overhead = desks["b"].store.written - before - 1_000
    desks["a"].ask(a_send("N", body=bytes(desks["b"].store.written - desks["a"].store.written - overhead)))


def test_a_decision_without_an_id_goes_where_its_half_message_went(desks: StaticDesks) -> None:
    """It was passed on, to a leader; here another one of the same group stands at the same place."""
    grow_unheard_of(desks)
    level_logs(desks)
    own, sent = send_half(desks, "a", "O"), send_half(desks, "a", "P", queue=2)
    assert own.fields["queueOffset"] == sent.fields["queueOffset"]
    assert own.fields["msgId"][-16:] == sent.fields["msgId"][-16:]

    decide(desks, "a", sent, "", ROLL_BACK)

    assert undecided(desks) == {"a": 1, "b": 0}


def test_a_decision_without_an_id_is_about_what_is_here_where_nothing_else_was_passed_on(desks: StaticDesks) -> None:
    """As producers know it from normal topics."""
    own = send_half(desks, "a", "O")

    decide(desks, "a", own, "")

    assert bodies(desks) == [b"O"]
    assert undecided(desks) == {"a": 0, "b": 0}
