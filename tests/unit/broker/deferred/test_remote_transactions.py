"""A transaction is decided wherever its producer is connected, and wherever its half message is."""

import msgspec
import pytest
from tests.support.broker_clients import a_heartbeat, a_request, connect_client, pop_requests
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.broker_machines import TOPIC, StaticBrokers

from holdfast.model.leadership import Leader
from holdfast.model.mapping import new_logical_queue
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.message_id import parse_message_id

COMMIT, ROLL_BACK = 8, 12
TIMEOUT_MS = 6_000


@pytest.fixture
def desks() -> StaticBrokers:
    """Broker a leads queue 0, b leads queue 1; both have read their transactions."""
    desks = StaticBrokers("a", "b")
    desks.create("a", "b")
    let_time_pass(desks, 80)
    return desks


def let_time_pass(desks: StaticBrokers, milliseconds: int) -> None:
    """Let time pass everywhere, in steps that let calls go on."""
    for _ in range(8):
        for desk in [desk for desk in desks.brokers.values() if desk.is_up]:
            desk.pass_time(milliseconds // 8, "transactions", "members", "pauses", "calls")
        desks.deliver_all()


def send_half(desks: StaticBrokers, at: str, key: str, queue: int = 0) -> Command:
    properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    (answer,) = desks[at].call(a_send(TOPIC, queue=queue, body=key.encode(), f="4", i=properties))
    assert answer.code == 0, answer.remark
    return answer


def decide(
    desks: StaticBrokers, at: str, sent: Command, key: str, decision: int = COMMIT, **more: str
) -> list[Command]:
    fields = {
        "producerGroup": "p",
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": parse_message_id(sent.fields["msgId"]).position,
        "commitOrRollback": decision,
        "msgId": key,
        "transactionId": key,
    }
    return desks[at].call(a_request(RequestCode.END_TRANSACTION, **(fields | more)))


def bodies(desks: StaticBrokers) -> list[bytes]:
    return [body for _, body in desks.read_all(0)]


def undecided(desks: StaticBrokers) -> dict[str, int]:
    let_time_pass(desks, 8)
    return {name: desk.components.transaction_handler.undecided_count for name, desk in desks.brokers.items()}


def test_a_half_message_stays_with_the_broker_that_was_asked(desks: StaticBrokers) -> None:
    """Its sender will decide there; what it becomes goes to the leader of its queue."""
    sent = send_half(desks, "b", "K1")
    assert parse_message_id(sent.fields["msgId"]).address == desks.address("b")
    assert undecided(desks) == {"a": 0, "b": 1}

    (answer,) = decide(desks, "b", sent, "K1")

    assert answer.code == 0
    assert bodies(desks) == [b"K1"]
    assert undecided(desks) == {"a": 0, "b": 0}


@pytest.mark.parametrize(("decision", "expected"), [(COMMIT, [b"Ka"]), (ROLL_BACK, [])])
def test_a_decision_finds_its_half_message(desks: StaticBrokers, decision: int, expected: list[bytes]) -> None:
    """By its id: another one of the same group stands at the same place in the log of the broker that is asked."""
    sent, other = send_half(desks, "a", "Ka"), send_half(desks, "b", "Kb")
    assert sent.fields["queueOffset"] == other.fields["queueOffset"]
    assert sent.fields["msgId"][-16:] == other.fields["msgId"][-16:]

    (answer,) = decide(desks, "b", sent, "Ka", decision)

    assert answer.code == 0
    assert bodies(desks) == expected
    assert undecided(desks) == {"a": 0, "b": 1}


def test_a_decision_that_comes_twice_delivers_once(desks: StaticBrokers) -> None:
    """Whichever broker gets the second one."""
    sent = send_half(desks, "a", "Ka")
    decide(desks, "b", sent, "Ka")

    (again,) = decide(desks, "b", sent, "Ka")

    assert (again.code, again.remark) == (ResponseCode.SYSTEM_ERROR, "the transaction was decided before")
    assert bodies(desks) == [b"Ka"]


def test_a_decision_about_nothing_is_refused(desks: StaticBrokers) -> None:
    """So is one that was passed on already, to a broker that has no such half message: there are no circles."""
    sent = send_half(desks, "a", "Ka")

    (nothing,) = decide(desks, "b", sent, "another")
    (passed,) = decide(desks, "b", sent, "Ka", lo="false")

    assert nothing.code == passed.code == ResponseCode.SYSTEM_ERROR
    assert undecided(desks) == {"a": 1, "b": 0}


def decide_while_the_leader_is_down(desks: StaticBrokers) -> None:
    """Commit a half message of b, whose queue a leads, and let time pass in which its producer would be asked."""
    connect_client(desks["b"], 7, a_heartbeat("producer", producer_group="p"))
    sent = send_half(desks, "b", "K1")
    desks.kill("a")
    decide(desks, "b", sent, "K1")
    let_time_pass(desks, TIMEOUT_MS + 2_000)
    assert pop_requests(desks["b"], 7) == [], "its producer has said what he wants"
    (changed,) = decide(desks, "b", sent, "K1", ROLL_BACK)
    assert changed.code == ResponseCode.SYSTEM_BUSY
    desks.restart("a").now_ms = desks["b"].now_ms
    desks.announce_addresses(desks["b"])


def test_a_decision_is_not_forgotten_while_the_leader_is_down(desks: StaticBrokers) -> None:
    """It is told once: the message is delivered when there is a leader again, and nobody is asked meanwhile."""
    decide_while_the_leader_is_down(desks)

    let_time_pass(desks, 8_000)

    assert bodies(desks) == [b"K1"]
    assert undecided(desks) == {"a": 0, "b": 0}


def test_a_decision_is_not_forgotten_while_the_queue_moves(desks: StaticBrokers) -> None:
    """It came home while others were asked to take the message: then it is stored here."""
    decide_while_the_leader_is_down(desks)
    desks.move(0, "b")

    let_time_pass(desks, 8_000)

    assert bodies(desks) == [b"K1"]
    assert undecided(desks) == {"a": 0, "b": 0}


def test_producers_elsewhere_are_asked(desks: StaticBrokers) -> None:
    """The broker that they are connected to puts the question, and passes their answer on."""
    connect_client(desks["a"], 7, a_heartbeat("producer", producer_group="p"))
    let_time_pass(desks, 80)
    send_half(desks, "b", "K1")
    let_time_pass(desks, TIMEOUT_MS + 2_000)

    (question,) = pop_requests(desks["a"], 7)
    assert (question.code, question.is_one_way) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    assert b"HOLDFAST" not in question.body, "what we note for ourselves is nobody's business"
    fields = {name: question.fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "transactionId")}
    decision = a_request(RequestCode.END_TRANSACTION, producerGroup="p", commitOrRollback=COMMIT, msgId="K1", **fields)
    (answer,) = desks["a"].call(decision, channel=7)

    assert answer.code == 0
    assert bodies(desks) == [b"K1"]
    assert undecided(desks) == {"a": 0, "b": 0}


def test_nobody_is_asked_where_there_are_no_producers(desks: StaticBrokers) -> None:
    """That does not count as a question: the half message waits."""
    send_half(desks, "b", "K1")
    let_time_pass(desks, TIMEOUT_MS + 2_000)

    assert undecided(desks) == {"a": 0, "b": 1}
    halves = desks["b"].store.find_queue("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert halves is not None
    assert halves.offset_max == 1


def test_a_question_without_a_half_message_is_refused(desks: StaticBrokers) -> None:
    """So is one about a group of which nobody is here any more."""
    (nonsense,) = desks["a"].call(Command(code=RequestCode.CHECK_TRANSACTION_STATE, body=b"nonsense"))

    assert nonsense.code == ResponseCode.INVALID_PARAMETER


def grow_unheard_of(desks: StaticBrokers) -> None:
    """Let b lead another queue, of which a knows no more than that."""
    mappings = desks["b"].components.mappings
    mapping = mappings.find(TOPIC)
    assert mapping is not None
    grown = msgspec.structs.replace(mapping, total=3).with_queues(new_logical_queue(2, "b", 1), epoch=mapping.epoch + 1)
    mappings.change(grown)
    desks["a"].components.view.record_leader(MessageQueue(TOPIC, "b", 2), Leader("b", 0))
    desks.deliver_all()


def level_logs(desks: StaticBrokers) -> None:
    """Let the logs of a and b be of one length."""
    for name in "ab":
        desks[name].make_topic("N")
    before = desks["b"].store.written
    desks["b"].call(a_send("N", body=bytes(1_000)))
    overhead = desks["b"].store.written - before - 1_000
    desks["a"].call(a_send("N", body=bytes(desks["b"].store.written - desks["a"].store.written - overhead)))


def test_a_decision_without_an_id_goes_where_its_half_message_went(desks: StaticBrokers) -> None:
    """It was passed on, to a leader; here another one of the same group stands at the same place."""
    grow_unheard_of(desks)
    level_logs(desks)
    own, sent = send_half(desks, "a", "O"), send_half(desks, "a", "P", queue=2)
    assert own.fields["queueOffset"] == sent.fields["queueOffset"]
    assert own.fields["msgId"][-16:] == sent.fields["msgId"][-16:]

    decide(desks, "a", sent, "", ROLL_BACK)

    assert undecided(desks) == {"a": 1, "b": 0}


def test_a_decision_without_an_id_is_about_what_is_here_where_nothing_else_was_passed_on(desks: StaticBrokers) -> None:
    """As producers know it from normal topics."""
    own = send_half(desks, "a", "O")

    decide(desks, "a", own, "")

    assert bodies(desks) == [b"O"]
    assert undecided(desks) == {"a": 0, "b": 0}
