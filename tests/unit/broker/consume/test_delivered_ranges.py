"""A position without an id is one of the log out of which its client was handed something, and of no other."""

import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, connect_client
from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.broker_machines import TOPIC, StaticBrokers, records

from holdfast.broker.consume.delivered_ranges import RANGES_MAX, DeliveredRanges
from holdfast.broker.mapping.offset_rewrite import find_last
from holdfast.machine.events import ChannelId
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import format_message_id, parse_message_id
from holdfast.wire.records.record import StoredRecord, encode_record

NEVER_AGAIN = -1
BROKERS = ("a", "b", "c")
CLIENT, OTHER = ChannelId(1), ChannelId(2)
HOST = pack_host("10.1.0.2:10911")


def a_record(position: int, *, store_host: bytes = HOST, born_host: bytes = bytes(8), body: bytes = b"x") -> bytes:
    return encode_record(StoredRecord(0, position, "T", 4, 9, 1, 0, 2, born_host, 3, store_host, 0, 0, 0, body, b""))


def note(
    handed: DeliveredRanges, *data: bytes, channel: ChannelId = CLIENT, group: str = "g", topic: str = "T"
) -> None:
    handed.add(channel, group, topic, b"".join(data), find_last(b"".join(data)))


# What is remembered.


def test_a_stretch_is_from_the_lowest_to_the_highest_position() -> None:
    """Of everything that was handed out of one log, in whatever order."""
    handed = DeliveredRanges()
    for positions in ([500, 600], [300], [700, 800, 900]):
        note(handed, *(a_record(position, body=b"x" * (position % 7)) for position in positions))

    assert handed.find(CLIENT, 700, "g") == [("T", format_message_id(HOST, 700))]
    assert [bool(handed.find(CLIENT, position, "g")) for position in (299, 300, 900, 901)] == [False, True, True, False]


@pytest.mark.parametrize("born", ["10.9.9.9:1", "[::9]:1"])
@pytest.mark.parametrize("store", ["10.1.0.2:10911", "[2001:db8::1]:10911"])
def test_the_host_is_found_wherever_it_stands(born: str, store: str) -> None:
    """Hosts have eight bytes or twenty."""
    handed = DeliveredRanges()
    note(handed, a_record(500, born_host=pack_host(born), store_host=pack_host(store)))

    assert handed.find(CLIENT, 500) == [("T", format_message_id(pack_host(store), 500))]


def test_each_client_and_each_group_has_its_own() -> None:
    """What another one was handed says nothing."""
    handed = DeliveredRanges()
    note(handed, a_record(500))

    assert handed.find(CLIENT, 500, "h") == handed.find(OTHER, 500, "g") == []
    assert len(handed.find(CLIENT, 500)) == 1


def test_clients_of_other_brokers_are_not_remembered() -> None:
    """The broker that they asked remembers them."""
    handed = DeliveredRanges()
    note(handed, a_record(500), channel=ChannelId(-1))

    assert len(handed) == 0


@pytest.mark.parametrize("data", [b"", bytes(90), bytes(200)])
def test_what_is_no_record_is_not_remembered(data: bytes) -> None:
    """It came from another broker: the client will say what is wrong with it."""
    handed = DeliveredRanges()
    note(handed, data)

    assert len(handed) == 0


def test_the_oldest_give_way() -> None:
    """Nobody makes a broker remember as much as he likes."""
    handed = DeliveredRanges()
    for number in range(RANGES_MAX + 1):
        note(handed, a_record(500), group=f"g{number}")

    assert len(handed) == RANGES_MAX
    assert handed.find(CLIENT, 500, "g0") == []
    assert handed.find(CLIENT, 500, "g1")


# What comes of it.


@pytest.fixture
def desks() -> StaticBrokers:
    """Each broker leads a queue, and holds one message: their logs are alike, byte by byte, but for ids and bodies."""
    desks = StaticBrokers(*BROKERS)
    desks.create(*BROKERS)
    for number, name in enumerate(BROKERS):
        properties = f"UNIQ_KEY\x01K{name}\x02TAGS\x01TagA\x02"
        (sent,) = desks[name].call(a_send(TOPIC, queue=number, body=name.encode(), i=properties))
        assert sent.code == 0
    return desks


def pull(desks: StaticBrokers, queue: int, **fields: str) -> int:
    """Let a client without mappings read a queue by way of a; return the position of the last record."""
    (answer,) = desks["a"].call(a_pull(TOPIC, queue=queue, **{"consumerGroup": "g"} | fields))
    return records(answer)[-1].position


def give_back(desks: StaticBrokers, position: int, language: str = "GO", channel: int = 1, **fields: object) -> Command:
    """Return what is at a position to a, for good, without a word which message it is."""
    command = a_request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        **({"offset": position, "group": "g", "delayLevel": NEVER_AGAIN} | fields),
    )
    command.language = language
    return desks["a"].call(command, channel=channel)[-1]


def dead(desks: StaticBrokers) -> list[bytes]:
    """Return what was given back at a."""
    if desks["a"].components.topics.find("%DLQ%g") is None:
        return []
    (pulled,) = desks["a"].call(a_pull("%DLQ%g"))
    return [bytes(record.body) for record in records(pulled)]


@pytest.mark.parametrize("holder", BROKERS)
def test_what_another_leader_answered_is_found_there(desks: StaticBrokers, holder: str) -> None:
    """The pull was passed on; at the same position here is another message of the same topic."""
    position = pull(desks, BROKERS.index(holder))

    assert give_back(desks, position).code == 0

    assert dead(desks) == [holder.encode()]


def test_what_was_read_out_of_an_older_segment_is_found_there(desks: StaticBrokers) -> None:
    """The queue is led here, and the message is not."""
    desks.move(1, "a")
    position = pull(desks, 1)

    assert give_back(desks, position).code == 0

    assert dead(desks) == [b"b"]


def test_what_a_third_broker_holds_is_found_there(desks: StaticBrokers) -> None:
    """Neither the broker that was asked nor the one that leads has it."""
    desks.move(1, "c")
    position = pull(desks, 1)

    assert give_back(desks, position).code == 0

    assert dead(desks) == [b"b"]


def test_a_pull_that_had_to_wait_is_remembered_as_well(desks: StaticBrokers) -> None:
    """A message of its own log that woke it."""
    waiting = a_pull(TOPIC, queue=0, offset=1, consumerGroup="g", sysFlag="6")
    assert desks["a"].call(waiting) == []
    desks["a"].connect(3)
    (sent,) = desks["a"].call(a_send(TOPIC, queue=0, body=b"late"), channel=3)

    assert give_back(desks, parse_message_id(sent.fields["msgId"]).position).code == 0

    assert dead(desks) == [b"late"]


def test_of_two_messages_at_one_position_none_is_taken_for_the_other(desks: StaticBrokers) -> None:
    """The client was handed both; it is told what would tell them apart."""
    position = pull(desks, 0)
    assert pull(desks, 1) == position

    answer = give_back(desks, position)

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "originMsgId" in (answer.remark or "")
    assert dead(desks) == []
    assert give_back(desks, position, originMsgId="Kb").code == 0


def test_the_library_in_cpp_dials_the_host_that_stored_a_message(desks: StaticBrokers) -> None:
    """It tells no ids: here it means this log, though it was handed another message at that position from here."""
    position = pull(desks, 1)

    assert give_back(desks, position, "CPP").code == 0

    assert dead(desks) == [b"a"]


def test_what_was_never_handed_out_is_not_given_back(desks: StaticBrokers) -> None:
    """A message of a static topic is there, and its client can have meant one of any broker."""
    position = parse_message_id(desks["a"].call(a_send(TOPIC, queue=0, body=b"a"))[0].fields["msgId"]).position

    assert give_back(desks, position).code == ResponseCode.SYSTEM_ERROR
    assert dead(desks) == []


def test_a_client_that_comes_again_is_a_new_one(desks: StaticBrokers) -> None:
    """What is remembered of a connection ends with it."""
    position = pull(desks, 1)
    desks["a"].disconnect(1)
    desks["a"].connect(1)

    assert give_back(desks, position).code == ResponseCode.SYSTEM_ERROR
    assert len(desks["a"].components.pull_handler.delivered_ranges) == 0


@pytest.mark.parametrize("queue", [0, 1])
@pytest.mark.parametrize(("language", "fields"), [("PYTHON", {"hf.mapping": "1"}), ("JAVA", {})])
def test_of_clients_that_read_mappings_nothing_is_remembered(
    desks: StaticBrokers, queue: int, language: str, fields: dict[str, str]
) -> None:
    """They know whose messages they have."""
    command = a_pull(TOPIC, queue=queue, **fields)
    command.language, command.version = language, 513
    (answer,) = desks["a"].call(command)

    assert records(answer)
    assert len(desks["a"].components.pull_handler.delivered_ranges) == 0


def test_the_leader_remembers_nothing_of_what_it_answers_to_another_broker(desks: StaticBrokers) -> None:
    """The client is connected to that one."""
    pull(desks, 1)

    assert (
        len(desks["a"].components.pull_handler.delivered_ranges),
        len(desks["b"].components.pull_handler.delivered_ranges),
    ) == (1, 0)


def test_a_broker_that_may_hold_it_and_is_silent_is_named(desks: StaticBrokers) -> None:
    """No other message is taken instead; the client may try again."""
    position = pull(desks, 1)
    desks.kill("b")

    answer = give_back(desks, position)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "one of b" in (answer.remark or "")
    assert dead(desks) == []


def test_what_else_stands_in_that_log_was_not_handed_out(desks: StaticBrokers) -> None:
    """A message of another topic, between two that were."""
    desks["b"].make_topic("N")
    (sent,) = desks["b"].call(a_send("N", body=b"another"))
    desks["b"].call(a_send(TOPIC, queue=1, body=b"behind"))
    pull(desks, 1)

    answer = give_back(desks, parse_message_id(sent.fields["msgId"]).position)

    assert (answer.code, dead(desks)) == (ResponseCode.SYSTEM_ERROR, [])


# Normal topics beside static ones.


def send_normal(desks: StaticBrokers, *before: bytes) -> int:
    desks["a"].components.topics.put(TopicConfig(name="N"))
    for body in before:
        desks["a"].call(a_send("N", body=body))
    (sent,) = desks["a"].call(a_send("N", body=b"normal"))
    return parse_message_id(sent.fields["msgId"]).position


def test_a_message_of_a_normal_topic_is_the_one_that_is_here(desks: StaticBrokers) -> None:
    """Its clients know who has it. What they were handed of other logs around that position holds no message there."""
    position = send_normal(desks, b"odd" * 9)
    for body in (b"x", b"y", b"z"):
        desks["b"].call(a_send(TOPIC, queue=1, body=body))
    assert pull(desks, 1) > position
    desks.kill("c")  # Which has nothing to do with it.

    assert give_back(desks, position).code == 0

    assert dead(desks) == [b"normal"]


def test_a_topic_tells_messages_at_one_position_apart(desks: StaticBrokers) -> None:
    """One is of a normal topic and here, the other was handed out of another log."""
    position = send_normal(desks)
    desks["b"].call(a_send(TOPIC, queue=1, body=b"static"))
    assert pull(desks, 1) == position

    assert give_back(desks, position).code == ResponseCode.INVALID_PARAMETER
    assert give_back(desks, position, originTopic="N").code == 0
    assert give_back(desks, position, originTopic=TOPIC).code == 0

    assert dead(desks) == [b"normal", b"static"]


@pytest.mark.parametrize(("subscribed", "told", "code"), [("N", "N", 0), ("M", "", 1), ("N", "M", 1)])
def test_what_the_group_cannot_have_read_is_not_given_back(
    desks: StaticBrokers, subscribed: str, told: str, code: int
) -> None:
    """By its subscriptions, or by the topic that the client names itself."""
    position = send_normal(desks)
    connect_client(desks["a"], 5, a_heartbeat("c", consumer_group="g", topics=(a_subscription(subscribed),)))

    assert give_back(desks, position, originTopic=told, channel=5).code == code


def test_what_no_consumer_reads_is_not_given_back(desks: StaticBrokers) -> None:
    """Half a transaction stands at that position."""
    sent = desks["a"].call(a_send(TOPIC, queue=0, f="4", i="UNIQ_KEY\x01H\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"))
    position = parse_message_id(sent[0].fields["msgId"]).position

    assert give_back(desks, position, "CPP").code == ResponseCode.SYSTEM_ERROR


# Looking at it.


def view(desks: StaticBrokers, position: int) -> Command:
    return desks["a"].call(a_request(RequestCode.VIEW_MESSAGE_BY_ID, offset=position))[-1]


def test_a_message_is_shown_that_only_another_log_has(desks: StaticBrokers) -> None:
    """With logical numbers, to the client to whom it was handed; to others there is none."""
    desks["b"].call(a_send(TOPIC, queue=1, body=b"far"))
    position = pull(desks, 1)
    desks["a"].connect(2)

    (shown,) = records(view(desks, position))

    assert (bytes(shown.body), shown.queue_id, shown.offset) == (b"far", 1, 1)
    (refused,) = desks["a"].call(a_request(RequestCode.VIEW_MESSAGE_BY_ID, offset=position), channel=2)
    assert refused.code == ResponseCode.SYSTEM_ERROR


def test_a_message_whose_id_names_this_broker_is_that_of_this_log(desks: StaticBrokers) -> None:
    """Clients dial the address in the id."""
    position = pull(desks, 1)

    (shown,) = records(view(desks, position))

    assert bytes(shown.body) == b"a"


def test_a_message_of_a_silent_broker_is_not_shown(desks: StaticBrokers) -> None:
    """The answer names the broker."""
    desks["b"].call(a_send(TOPIC, queue=1, body=b"far"))
    position = pull(desks, 1)
    desks.kill("b")

    answer = view(desks, position)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "one of b" in (answer.remark or "")
