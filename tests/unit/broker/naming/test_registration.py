import zlib

import pytest
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.flow.request import Request
from holdfast.broker.flow.rpc import TIMER as CALLS_TIMER
from holdfast.broker.flow.scheduler import PAUSE_TIMER
from holdfast.broker.naming.registration import HELD_TIMER, HOLD_MAX_MS, OVERDUE_MS, PURPOSE, REDIAL_MS, TIMER
from holdfast.machine.effects import CloseChannel, Effect, Log, OpenChannel, SetTimer
from holdfast.machine.events import ChannelClosed, ChannelFailed, ChannelId, ChannelOpened, Stopping
from holdfast.model.deletion import DeletionMarker
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.deletions import encode_markers
from holdfast.wire.cluster.registration import decode_registration
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import RESPONSE, Command, encode_command

TOOL, FIRST, SECOND = ChannelId(1), ChannelId(11), ChannelId(12)
ONE, TWO = "n1:9876", "n2:9876"


class Room(BrokerHarness):
    """A broker that has just started, and name servers that are played by hand."""

    def __init__(self, *servers: str, zone: str | None = None) -> None:
        super().__init__(name="a", cluster="C", zone=zone, namesrv=servers, listen="127.0.0.1:10911")
        self.started = list(self.effects)
        self.registrar = self.components.registration

    def open(self, channel: ChannelId, address: str) -> None:
        """Let a name server accept."""
        self.answers[channel] = []
        self.feed(ChannelOpened(channel, address, self.now_ms, address, PURPOSE))

    def fail(self, address: str = ONE) -> list[Effect]:
        """Let a name server refuse the connection."""
        return self.feed(ChannelFailed(address, "refused", self.now_ms, PURPOSE))

    def close(self, channel: ChannelId) -> list[Effect]:
        """Let a name server close its channel."""
        return self.feed(ChannelClosed(channel, self.now_ms))

    def sent(self, channel: ChannelId) -> list[Command]:
        """Return what went to a name server since this was last asked."""
        return self.pop_answers(channel)

    def answer(
        self, channel: ChannelId, command: Command, code: int = 0, fields: dict[str, str] | None = None
    ) -> list[Effect]:
        """Let a name server answer *command*."""
        answer = Command(code=code, opaque=command.opaque, flag=RESPONSE, fields=fields or {})
        return self.receive(channel, encode_command(answer))

    def register(self, channel: ChannelId, address: str, fields: dict[str, str] | None = None) -> None:
        """Let a name server accept, and answer the first registration."""
        self.open(channel, address)
        self.answer(channel, self.sent(channel)[0], fields=fields)

    def create(self, *names: str) -> Command | None:
        """Let a tool on channel 1 create topics; return the answer unless it waits."""
        request = Request(command=Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, opaque=5), channel=TOOL, peer="p")
        self.components.topics.put_all([TopicConfig(name=name) for name in names])
        answer = self.registrar.answer_registered(request, request.answer())
        self.pass_time(0, PAUSE_TIMER)  # What was begun is done in an event.
        return answer

    def pass_tick(self, milliseconds: int, *timers: str) -> list[Effect]:
        """Let time pass and *timers* fire; return the effects."""
        before = len(self.effects)
        self.pass_time(milliseconds, *timers)
        return self.effects[before:]


@pytest.fixture
def room() -> Room:
    """A broker that is connected to its name server, which has not answered yet."""
    room = Room(ONE)
    room.open(FIRST, ONE)
    return room


@pytest.fixture
def registered_room() -> Room:
    """A broker that is registered."""
    room = Room(ONE)
    room.register(FIRST, ONE)
    return room


def dials(effects: list[Effect]) -> list[str]:
    return [effect.address for effect in effects if isinstance(effect, OpenChannel)]


def log_lines(effects: list[Effect]) -> list[str]:
    return [effect.event for effect in effects if isinstance(effect, Log)]


def topics_in(command: Command) -> set[str]:
    return set(decode_registration(command.body, version=500).topic_config_serialize_wrapper.topic_config_table)


def test_every_name_server_is_dialed_at_the_start() -> None:
    """And again every second, while it cannot be reached."""
    room = Room(ONE, TWO)
    failed = room.fail()
    room.open(SECOND, TWO)
    again = room.pass_tick(REDIAL_MS, PAUSE_TIMER)

    assert dials(room.started) == [ONE, TWO]
    assert SetTimer(TIMER, room.now_ms - REDIAL_MS + 30_000) in room.started
    assert (dials(failed), dials(again)) == ([], [ONE])


def test_an_unreachable_name_server_is_reported_once() -> None:
    """Not at every attempt; its return is reported, too."""
    room = Room(ONE)
    first = room.fail()
    room.pass_time(REDIAL_MS, PAUSE_TIMER)
    second = room.fail()
    room.pass_time(REDIAL_MS, PAUSE_TIMER)
    room.open(FIRST, ONE)
    back = room.answer(FIRST, room.sent(FIRST)[0])

    (line,) = [effect for effect in first if isinstance(effect, Log)]
    assert (line.event, line.fields) == ("cannot register", {"namesrv": ONE, "reason": "refused"})
    assert (log_lines(second), log_lines(back)) == ([], ["registered again"])


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_name_server_that_went_away_is_dialed_again_within_a_second(room: Room, *, is_answered: bool) -> None:
    """It comes back without any route; clients that start now must not wait for the next round."""
    if is_answered:
        room.answer(FIRST, room.sent(FIRST)[0])
    lost = room.close(FIRST)
    dialed = room.pass_tick(REDIAL_MS, PAUSE_TIMER)
    room.open(SECOND, ONE)

    (line,) = [effect for effect in lost if isinstance(effect, Log)]
    assert (line.event, line.fields["reason"]) == ("cannot register", "the connection was closed")
    assert (dials(lost), dials(dialed)) == ([], [ONE])
    assert [command.code for command in room.sent(SECOND)] == [RequestCode.REGISTER_BROKER]


@pytest.mark.parametrize(("zone", "fields"), [(None, {}), ("Hill", {"__ZONE_NAME": "Hill"})])
def test_a_broker_registers_with_its_zone(zone: str | None, fields: dict[str, str]) -> None:
    """If it has one: an empty zone would be a zone, too."""
    room = Room(ONE, zone=zone)
    room.open(FIRST, ONE)

    (command,) = room.sent(FIRST)

    assert {name: text for name, text in command.fields.items() if name.startswith("__")} == fields


def test_a_new_channel_gets_the_whole_card(room: Room) -> None:
    """Who, where, and every topic; the checksum is over the body."""
    (command,) = room.sent(FIRST)

    registered = decode_registration(command.body, version=command.version).topic_config_serialize_wrapper
    assert command.code == RequestCode.REGISTER_BROKER
    assert command.fields["brokerAddr"] == "127.0.0.1:10911"
    assert (command.fields["brokerName"], command.fields["clusterName"], command.fields["brokerId"]) == ("a", "C", "0")
    assert command.fields["bodyCrc32"] == str(zlib.crc32(command.body) & 0x7FFFFFFF)
    assert registered.topic_config_table == room.components.topics.all()
    assert registered.data_version == room.components.topics.data_version


def test_the_card_is_presented_again_at_every_round(registered_room: Room) -> None:
    """Name servers forget who is silent."""
    room = registered_room

    later = room.pass_tick(30_000, TIMER)

    assert [command.code for command in room.sent(FIRST)] == [RequestCode.REGISTER_BROKER]
    assert SetTimer(TIMER, room.now_ms + 30_000) in later


def test_a_changed_topic_is_announced_at_once(registered_room: Room) -> None:
    """And once."""
    room = registered_room

    room.create("T")
    (command,) = room.sent(FIRST)
    room.answer(FIRST, command)

    assert "T" in topics_in(command)
    assert room.sent(FIRST) == []


def test_what_changes_during_a_registration_is_registered_when_that_is_answered(room: Room) -> None:
    """Everything at once."""
    room.create("T1")
    room.create("T2")
    (first,) = room.sent(FIRST)

    room.answer(FIRST, first)

    (second,) = room.sent(FIRST)
    assert not {"T1", "T2"} & topics_in(first)
    assert topics_in(second) >= {"T1", "T2"}


def test_who_creates_a_topic_is_answered_when_the_name_servers_know_it() -> None:
    """All of them: its next question may go to any."""
    room = Room(ONE, TWO)
    room.register(FIRST, ONE)
    room.register(SECOND, TWO)

    assert room.create("T") is None
    room.answer(FIRST, room.sent(FIRST)[0])
    assert room.answers[TOOL] == []
    room.answer(SECOND, room.sent(SECOND)[0])

    assert [answer.opaque for answer in room.answers[TOOL]] == [5]


def test_an_earlier_registration_does_not_count_for_a_later_topic(room: Room) -> None:
    """It was on its way when the topic was created."""
    assert room.create("T") is None
    room.answer(FIRST, room.sent(FIRST)[0])
    assert room.answers[TOOL] == []

    room.answer(FIRST, room.sent(FIRST)[0])

    assert len(room.answers[TOOL]) == 1


@pytest.mark.parametrize("how", ["refuses", "goes away", "says nothing"])
def test_a_name_server_in_trouble_holds_nobody_up(registered_room: Room, how: str) -> None:
    """The topic is made; a second is all that a tool waits."""
    room = registered_room
    room.create("T")
    (command,) = room.sent(FIRST)

    if how == "refuses":
        room.answer(FIRST, command, code=1)
    elif how == "goes away":
        room.close(FIRST)
    else:
        assert SetTimer(HELD_TIMER, room.now_ms + HOLD_MAX_MS) in room.effects
        room.pass_time(HOLD_MAX_MS, HELD_TIMER)

    assert [answer.code for answer in room.answers[TOOL]] == [0]


def test_every_tool_waits_for_a_silent_name_server_in_its_own_time(registered_room: Room) -> None:
    """Those who come later do not prolong the time of those who came before."""
    room = registered_room
    room.create("T1")
    room.pass_time(HOLD_MAX_MS // 2, PAUSE_TIMER)
    room.create("T2")

    later = room.pass_tick(HOLD_MAX_MS // 2, HELD_TIMER)

    assert len(room.answers[TOOL]) == 1
    assert SetTimer(HELD_TIMER, room.now_ms + HOLD_MAX_MS // 2) in later


def test_without_a_name_server_nobody_waits() -> None:
    """There is nobody to wait for."""
    answer = Room(ONE).create("T")

    assert answer is not None
    assert (answer.code, answer.opaque) == (0, 5)


def test_the_broker_says_good_bye(registered_room: Room) -> None:
    """To every name server that it can reach."""
    room = registered_room

    room.feed(Stopping(room.now_ms))

    (command,) = room.sent(FIRST)
    assert command.code == RequestCode.UNREGISTER_BROKER
    assert command.fields == {
        "brokerName": "a",
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": "C",
        "brokerId": "0",
    }


def test_who_has_said_good_bye_registers_no_more(room: Room) -> None:
    """Whatever was under way: it would be known again, and never be removed."""
    (registration,) = room.sent(FIRST)
    room.create("T")
    room.registrar.leave()

    room.answer(FIRST, registration)
    room.pass_time(30_000, TIMER)

    assert [command.code for command in room.sent(FIRST)] == [RequestCode.UNREGISTER_BROKER]


def test_being_registered_means_that_a_name_server_said_yes(room: Room) -> None:
    """Not merely that there is a channel."""
    assert not room.registrar.is_registered()

    room.answer(FIRST, room.sent(FIRST)[0])
    assert room.registrar.is_registered()

    room.close(FIRST)
    assert not room.registrar.is_registered()


def test_a_registration_that_is_not_answered_is_repeated_on_a_fresh_connection(room: Room) -> None:
    """After ten seconds, told once: the old connection may be one that only we believe in."""
    early = room.pass_tick(OVERDUE_MS - 1, CALLS_TIMER)
    late = room.pass_tick(1, CALLS_TIMER)
    room.open(SECOND, ONE)

    assert not [effect for effect in early if isinstance(effect, CloseChannel | OpenChannel | Log)]
    assert CloseChannel(FIRST) in late
    assert dials(late) == [ONE]
    assert [effect.fields["reason"] for effect in late if isinstance(effect, Log)] == ["no answer to a registration"]
    assert [command.code for command in room.sent(SECOND)] == [RequestCode.REGISTER_BROKER]
    assert log_lines(room.close(FIRST)) == []
    assert [effect for effect in room.answer(SECOND, Command(code=0, opaque=1)) if isinstance(effect, Log)] != []


def test_a_name_server_that_wants_it_hears_of_a_changed_topic_alone() -> None:
    """Others get the whole card, and so does it at the next round."""
    room = Room(ONE, TWO)
    room.register(FIRST, ONE, {"hf.single": "true"})
    room.register(SECOND, TWO)

    room.create("orders")
    (part,), (everything,) = room.sent(FIRST), room.sent(SECOND)
    room.answer(FIRST, part)
    room.pass_time(30_000, TIMER)

    assert topics_in(part) == {"orders"}
    assert len(topics_in(everything)) > 5
    assert [topics_in(command) for command in room.sent(FIRST)] == [topics_in(everything)]


def test_several_topics_that_changed_are_told_with_the_whole_card() -> None:
    """Only one topic alone is no start of a broker."""
    room = Room(ONE)
    room.register(FIRST, ONE, {"hf.single": "true"})

    room.create("orders", "bills")

    (told,) = room.sent(FIRST)
    assert {"orders", "bills"} < topics_in(told)
    assert len(topics_in(told)) > 5


def test_topics_that_changed_during_a_registration_follow_it_one_by_one() -> None:
    """Registered together they would look like the start of a broker, of which watching clients hear nothing."""
    room = Room(ONE)
    room.register(FIRST, ONE, {"hf.single": "true"})
    room.create("first")
    (part,) = room.sent(FIRST)
    room.create("orders")
    room.create("bills")

    told = []
    for _ in range(2):
        room.answer(FIRST, part, fields={"hf.single": "true"})
        (part,) = room.sent(FIRST)
        told.append(topics_in(part))

    assert told == [{"orders"}, {"bills"}]


def test_a_tool_waits_until_its_own_topic_is_registered() -> None:
    """Not for topics that others create after it, and not for less than its own."""
    room = Room(ONE)
    room.register(FIRST, ONE, {"hf.single": "true"})
    room.create("first")
    (part,) = room.sent(FIRST)
    assert room.create("orders") is None
    assert room.create("bills") is None

    answered = []
    for _ in range(3):
        room.pop_answers(TOOL)
        room.answer(FIRST, part, fields={"hf.single": "true"})
        answered.append(len(room.pop_answers(TOOL)))
        part = next(iter(room.sent(FIRST)), part)

    assert answered == [1, 1, 1]


def test_a_deletion_marker_that_arrives_with_a_new_topic_makes_no_full_registration() -> None:
    """The topic is created again. A full registration would look like the start of a broker."""
    room = Room(ONE)
    room.register(FIRST, ONE, {"hf.single": "true"})

    room.components.topics.deletions.merge(encode_markers([DeletionMarker("orders", 5)]))
    room.create("orders")

    (told,) = room.sent(FIRST)
    assert topics_in(told) == {"orders"}


@pytest.mark.parametrize("how", ["never answered", "refused", "on another connection"])
def test_only_who_took_the_whole_card_hears_of_a_topic_alone(room: Room, how: str) -> None:
    """Whoever does not know the rest of it must not take a part for it."""
    card, channel = room.sent(FIRST)[0], FIRST
    if how == "never answered":
        room.answer(FIRST, card)
    else:
        room.answer(FIRST, card, fields={"hf.single": "true"})
    if how == "refused":
        room.pass_time(30_000, TIMER)
        room.answer(FIRST, room.sent(FIRST)[0], code=1, fields={"hf.single": "true"})
    if how == "on another connection":
        room.close(FIRST)
        room.pass_time(REDIAL_MS, PAUSE_TIMER)
        channel = SECOND
        room.register(channel, ONE)

    room.create("orders")

    (told,) = room.sent(channel)
    assert len(topics_in(told)) > 5
