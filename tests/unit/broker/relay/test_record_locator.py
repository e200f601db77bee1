"""A record is found by its id wherever it is, and never taken for another one at the same position."""

import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.broker_machines import TOPIC, StaticBrokers, records

from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.message_id import parse_message_id

NEVER_AGAIN = -1
BROKERS = ("a", "b", "c")


@pytest.fixture
def desks() -> StaticBrokers:
    """Each broker leads a queue, and holds one message: their logs are alike, byte by byte, but for ids and bodies."""
    desks = StaticBrokers(*BROKERS)
    desks.create(*BROKERS)
    return desks


def send_all(desks: StaticBrokers) -> dict[str, Command]:
    """Let every broker take a message of the same size; return the answers."""
    answers = {}
    for number, name in enumerate(BROKERS):
        properties = f"UNIQ_KEY\x01K{name}\x02TAGS\x01TagA\x02"
        (answers[name],) = desks[name].call(a_send(TOPIC, queue=number, body=name.encode(), i=properties))
    assert len({parse_message_id(answer.fields["msgId"]).position for answer in answers.values()}) == 1
    return answers


def give_back(desks: StaticBrokers, at: str, sent: Command, **fields: object) -> tuple[int, list[bytes]]:
    """Return a message to a broker for good; return the answer's code, and the dead letters there."""
    position = parse_message_id(sent.fields["msgId"]).position
    asked = {"offset": position, "group": "g", "delayLevel": NEVER_AGAIN, "originTopic": TOPIC}
    (answer,) = desks[at].call(a_request(RequestCode.CONSUMER_SEND_MSG_BACK, **(asked | fields)))
    if answer.code != 0:
        return answer.code, []
    (pulled,) = desks[at].call(a_pull("%DLQ%g"))
    return answer.code, [bytes(record.body) for record in records(pulled)]


@pytest.mark.parametrize("holder", BROKERS)
def test_a_message_is_known_by_its_senders_key(desks: StaticBrokers, holder: str) -> None:
    """As Java clients tell it: also where another message stands at that position in the log that is asked."""
    sent = send_all(desks)[holder]

    assert give_back(desks, "a", sent, originMsgId=f"K{holder}") == (0, [holder.encode()])


@pytest.mark.parametrize("holder", BROKERS)
def test_a_message_is_known_by_host_and_position(desks: StaticBrokers, holder: str) -> None:
    """As clients tell it that know no other id."""
    sent = send_all(desks)[holder]

    assert give_back(desks, "a", sent, originMsgId=sent.fields["msgId"]) == (0, [holder.encode()])


def test_the_host_in_an_id_is_asked_first(desks: StaticBrokers) -> None:
    """Nobody else need be asked then."""
    sent = send_all(desks)["c"]

    give_back(desks, "a", sent, originMsgId=sent.fields["msgId"])

    assert {owner for owner, _ in desks._connections} == {"a", "c"}


def test_a_message_that_nobody_has_is_refused(desks: StaticBrokers) -> None:
    """Its consumer then sends it again by itself; any other message would be a lie."""
    sent = send_all(desks)["a"]

    assert give_back(desks, "a", sent, originMsgId="another")[0] == 1


def test_hosts_that_are_no_brokers_are_not_dialled(desks: StaticBrokers) -> None:
    """Whoever writes an id cannot make a broker connect to where he likes."""
    sent = send_all(desks)["c"]
    position = sent.fields["msgId"][-16:]

    code, _ = give_back(desks, "a", sent, originMsgId=f"0A090909000023AB{position}")

    assert code == 1
    assert "10.9.9.9" not in str(desks["a"].effects)


def test_a_broker_that_is_down_keeps_nobody_from_looking_on(desks: StaticBrokers) -> None:
    """What it may hold is not found; what others hold is."""
    sent = send_all(desks)
    desks.kill("b")

    assert give_back(desks, "a", sent["c"], originMsgId="Kc") == (0, [b"c"])
    assert give_back(desks, "a", sent["b"], originMsgId="Kb")[0] == 1


def test_a_message_that_comes_again_is_found_in_the_retry_topic(desks: StaticBrokers) -> None:
    """It has the key of the first, its topic by name, and a place of its own."""
    sent = send_all(desks)["c"]
    position = parse_message_id(sent.fields["msgId"]).position
    again = {"offset": position, "group": "g", "delayLevel": 1, "originTopic": TOPIC, "originMsgId": "Kc"}
    desks["a"].call(a_request(RequestCode.CONSUMER_SEND_MSG_BACK, **again))
    desks["a"].pass_time(1_000, "delays")
    (pulled,) = desks["a"].call(a_pull("%RETRY%g"))
    (second,) = records(pulled)
    assert second.reconsume_times == 1

    last = again | {"offset": second.position, "delayLevel": NEVER_AGAIN}
    (answer,) = desks["a"].call(a_request(RequestCode.CONSUMER_SEND_MSG_BACK, **last))
    (dead,) = desks["a"].call(a_pull("%DLQ%g"))

    assert answer.code == 0
    assert [(bytes(record.body), record.reconsume_times) for record in records(dead)] == [(b"c", 2)]
