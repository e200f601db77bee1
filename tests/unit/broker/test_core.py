"""The broker against peers that lie, flood, or never listen: it answers or hangs up, and is the same afterwards."""

import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes

from holdfast.broker.deferred.transactions import TIMER as TRANSACTIONS_TIMER
from holdfast.broker.dispatch import _DELIVERED_SIZE_MAX
from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.broker.tables.creation_limit import CREATED_AT_ONCE_MAX
from holdfast.machine.effects import CloseChannel, Log, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command

_ENDLESS_NUMBER = "9" * 5000
_UNIQUE = "UNIQ_KEY\x01A\x02"


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


@pytest.mark.parametrize("name", ["../../x", "..", ".", "a/b", "", "x" * 300, "a\0b"])
def test_no_name_reaches_a_folder_that_is_not_a_topics(desk: BrokerHarness, name: str) -> None:
    """Names of topics and groups become folders, which are written and removed."""
    before = desk.disk.list("consumequeue")
    desk.call(a_send())

    answers = desk.call(
        a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name),
        a_request(RequestCode.CONSUMER_SEND_MSG_BACK, group=name, offset=0, delayLevel=-1),
        a_pull(consumerGroup=name),
        a_send(f"%RETRY%{name}"),
    )

    assert 0 not in codes(answers)
    assert desk.components.groups.find(name) is None
    assert desk.components.topics.find(f"%RETRY%{name}") is None
    assert desk.disk.list("consumequeue") == before


def test_a_group_whose_retry_topic_would_be_no_file_name_is_refused(desk: BrokerHarness) -> None:
    """A folder that cannot be made would stop all writes."""
    (longest,) = desk.call(a_pull(consumerGroup="g" * 248))
    (longer,) = desk.call(a_pull(consumerGroup="g" * 249))

    assert longest.code == ResponseCode.PULL_NOT_FOUND
    assert longer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_numbers_without_end_in_properties_mean_nothing(desk: BrokerHarness) -> None:
    """Neither at the sending nor later, when a timer looks at what was stored."""
    prepared = f"{_UNIQUE}TRAN_MSG\x01true\x02PGROUP\x01p\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{_ENDLESS_NUMBER}\x02"

    answers = desk.call(a_send(i=f"{_UNIQUE}DELAY\x01{_ENDLESS_NUMBER}\x02"), a_send(i=prepared, f="4"))
    for _ in range(3):
        desk.pass_time(10_000, TRANSACTIONS_TIMER)

    assert codes(answers) == [0, 0]
    assert desk.components.transaction_handler.undecided_count == 1


def test_a_fault_of_ours_leaves_nothing_staged(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged bodies are views of a receive buffer: written later, they would be somebody else's bytes."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(desk.components.pull_handler, "handle_pull", fail)
        with pytest.raises(ZeroDivisionError):
            desk.call(a_send(body=b"lost"), a_pull())
    desk.call(a_send(body=b"kept"))

    (pulled,) = desk.call(a_pull())
    assert b"kept" in pulled.body
    assert b"lost" not in pulled.body


def test_a_read_full_of_nonsense_is_one_line_of_log(desk: BrokerHarness) -> None:
    """What came before it is answered; of what comes behind it nothing is heard."""
    answers = desk.send_bytes(encode_command(a_send()) + b"\0\0\0\4\0\0\0\0" * 1000 + encode_command(a_send()))

    assert codes(answers) == [0]
    assert len([effect for effect in desk.effects if isinstance(effect, Log) and effect.event == "bad header"]) == 1
    assert [effect for effect in desk.effects if isinstance(effect, CloseChannel)] == [CloseChannel(ChannelId(1))]


def test_pulls_of_one_read_are_answered_up_to_a_limit(desk: BrokerHarness) -> None:
    """The others are told to ask again: a peer that never reads must not make us hold thousands of answers."""
    for _ in range(40):
        desk.call(a_send(body=bytes(100_000)), a_send(queue=1, body=bytes(100_000)))

    answers = desk.call(*[a_pull(offset=3, maxMsgBytes="4000000") for _ in range(100)])

    found = [answer for answer in answers if answer.code == 0]
    rest = [answer for answer in answers if answer.code != 0]
    assert sum(len(answer.body) for answer in found) < _DELIVERED_SIZE_MAX + 4_000_000
    assert len(found) + len(rest) == 100
    assert {answer.code for answer in rest} == {ResponseCode.PULL_RETRY_IMMEDIATELY}
    assert {answer.fields["nextBeginOffset"] for answer in rest} == {"3"}


def watch_writes(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files that are written from now on, without those kept for safety."""
    written: list[str] = []
    replace = desk.disk.replace

    def watch(path: str, data: bytes, *, is_private: bool = False) -> None:
        if not path.endswith(".bak"):
            written.append(path)
        replace(path, data, is_private=is_private)

    monkeypatch.setattr(desk.disk, "replace", watch)
    return written


def a_heartbeat(count: int) -> Command:
    beat = a_request(RequestCode.HEART_BEAT)
    groups = [{"groupName": f"g{number}"} for number in range(count)]
    beat.body = java_json.encode({"clientID": "c", "consumerDataSet": groups})
    return beat


def test_the_groups_of_one_heartbeat_are_kept_with_two_writes(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for their retry topics, at once, and some seconds later one for the groups, however many there are."""
    written = watch_writes(desk, monkeypatch)

    (answer,) = [told for told in desk.call(a_heartbeat(30)) if told.is_response]
    at_once = list(written)
    desk.pass_time(5_000, "kept files")

    assert answer.code == 0
    assert desk.components.clients.members("g29") == ["c"]
    assert at_once == ["config/topics.json"]
    assert written == ["config/topics.json", "config/subscriptionGroup.json"]
    assert {"g0", "g29"} <= BrokerHarness(disk=desk.disk).components.groups.all().keys()


def test_a_heartbeat_brings_a_bounded_number_of_groups_into_being(desk: BrokerHarness) -> None:
    """The client is told, and its next heartbeats bring the others."""
    beat = a_heartbeat(CREATED_AT_ONCE_MAX + 8)

    first = [told.code for told in desk.call(beat) if told.is_response]
    made = len(desk.components.groups.all())
    desk.pass_time(30_000)
    second = [told.code for told in desk.call(beat) if told.is_response]

    assert (first, second) == ([ResponseCode.SYSTEM_BUSY], [ResponseCode.SUCCESS])
    assert len(desk.components.groups.all()) == made + 8
    assert desk.components.clients.members(f"g{CREATED_AT_ONCE_MAX + 7}") == ["c"]


def test_a_queue_that_a_topic_does_not_have_keeps_no_offset(desk: BrokerHarness) -> None:
    """Or two billion of them could be kept for every topic."""
    desk.call(a_pull(consumerGroup="g"))

    (answer,) = desk.call(
        a_request(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=4, commitOffset=7)
    )

    assert answer.code == 0
    assert desk.components.offsets.queues_of("g", "T") == {}


def test_a_message_larger_than_a_log_file_is_refused_and_its_neighbours_are_not(desk: BrokerHarness) -> None:
    """The files of a store may be smaller than the largest message that is allowed."""
    answers = desk.call(a_send(), a_send(body=bytes(desk.store.log_file_size)), a_send())

    assert codes(answers) == [0, ResponseCode.MESSAGE_ILLEGAL, 0]


def test_a_read_creates_a_bounded_number_of_topics(desk: BrokerHarness) -> None:
    """The others are told to come again, and then succeed."""
    sends = [a_send(f"new-{number}") for number in range(CREATED_AT_ONCE_MAX + 2)]

    first = codes(desk.call(*sends))
    desk.pass_time(1)
    second = codes(desk.call(*sends))

    assert first == [0] * CREATED_AT_ONCE_MAX + [ResponseCode.SYSTEM_BUSY] * 2
    assert second == [0] * len(sends)


def test_the_topics_of_one_read_are_kept_with_one_write_before_they_are_answered(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, everybody waits for the disk once; a crash after the answer forgets none."""
    written = watch_writes(desk, monkeypatch)

    desk.call(*[a_send(f"new-{number}") for number in range(20)])

    assert written == ["config/topics.json"]
    assert {f"new-{number}" for number in range(20)} <= BrokerHarness(disk=desk.disk).components.topics.all().keys()


def test_a_topic_that_cannot_be_kept_is_not_promised(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel closes instead: the sender knows that it does not know."""

    def fail(path: str, data: bytes, *, is_private: bool) -> None:
        raise DiskFailed(f"no room for {path}")

    monkeypatch.setattr(desk.disk, "replace", fail)
    before = len(desk.effects)

    answers = desk.call(a_send("new"))

    assert answers == []
    assert CloseChannel(ChannelId(1)) in desk.effects[before:]
    assert [effect.event for effect in desk.effects[before:] if isinstance(effect, Log)] == ["disk failed"]


def test_a_topic_for_which_the_disk_has_no_space_is_reported_at_once_and_saved_later(desk: BrokerHarness) -> None:
    """The operator must not wait for the next periodic save to learn it, and nobody needs to create the topic again."""

    def refuse(call: str, path: str) -> None:
        if call == "replace":
            raise DiskFull(f"no room for {path}")

    desk.disk.before = refuse
    before = len(desk.effects)

    assert desk.call(a_send("new")) == []
    assert [effect.event for effect in desk.effects[before:] if isinstance(effect, Log)] == [
        "no space for configuration files"
    ]

    desk.disk.before = None
    desk.pass_time(5_000, SAVE_TIMER)
    assert desk.effects[-1] == SetTimer(SAVE_TIMER, desk.now_ms + 5_000)
    assert desk.logged()[-1] == "configuration files are written again"
    assert BrokerHarness(disk=desk.disk).components.topics.find("new") is not None


def test_a_file_is_written_although_the_event_that_saved_it_fails(desk: BrokerHarness) -> None:
    """Otherwise its `KeptFile` would wait for the result of a write that never began, and save nothing any more."""

    async def fail() -> None:
        raise ZeroDivisionError

    desk.components.offsets.commit("g", "T", 0, 5)
    desk.components.turn.spawn(fail())

    with pytest.raises(ZeroDivisionError):
        desk.pass_time(5_000, SAVE_TIMER)
    desk.pass_time(0, "housekeep")

    assert b'"T@g":{"0":5}' in (desk.disk.read_file("config/consumerOffset.json") or b"")


def test_what_a_failed_event_has_caused_is_dropped(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its effects nor its records reach the next event."""
    turn = desk.components.turn

    def fail(*_: object) -> None:
        turn.close(ChannelId(1))
        raise ZeroDivisionError

    monkeypatch.setattr(desk.components.pull_handler, "handle_pull", fail)
    with pytest.raises(ZeroDivisionError):
        desk.call(a_send(), a_pull())

    assert not turn
    assert desk.store.queue("T", 0).next_offset == 0


def test_housekeeping_begins_after_a_second_and_cleaning_after_ten() -> None:
    """Not while the broker starts: it has more urgent work then."""
    desk = BrokerHarness()

    timers = {effect.name: effect.at_ms - desk.now_ms for effect in desk.effects if isinstance(effect, SetTimer)}
    assert (timers["housekeep"], timers["clean"]) == (1_000, 10_000)
