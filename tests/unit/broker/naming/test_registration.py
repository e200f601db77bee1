import zlib

import pytest

from holdfast.broker.flow.request import Request
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.naming.registration import (
    HELD_TIMER,
    HOLD_MAX_MS,
    OVERDUE_TIMER,
    REDIAL_MS,
    REDIAL_TIMER,
    TIMER,
    Registrar,
)
from holdfast.broker.options import BrokerOptions
from holdfast.broker.service import store_options
from holdfast.broker.tables.topics import TopicTable
from holdfast.broker.tables.unwritten_files import UnwrittenFiles
from holdfast.machine.effects import CloseChannel, Effect, Log, OpenChannel, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.model.topic import TopicConfig
from holdfast.sim.world.disk import SimDisk
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.registration import decode_registration
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import RESPONSE, Command, decode_command
from holdfast.wire.frames.frame import split_frames

NOW_MS = 1_700_000_000_000
FIRST, SECOND = ChannelId(11), ChannelId(12)


class Room:
    """A registrar, and what it asked for."""

    def __init__(self, *servers: str, zone: str | None = None) -> None:
        options = BrokerOptions(name="a", cluster="C", zone=zone, namesrv=servers, listen="127.0.0.1:10911")
        disk = SimDisk()
        store = MessageStore.open(disk, store_options(options), NOW_MS)
        self.topics = TopicTable(disk, options, NOW_MS)
        self.registrar = Registrar(options, self.topics, Mappings(options, disk, store, self.topics), UnwrittenFiles())
        self.effects: list[Effect] = []
        self.registrar.start(NOW_MS, self.effects)

    def open(self, channel: ChannelId, address: str) -> None:
        """Let a name server accept."""
        self.effects += self.registrar.channel_opened(channel, address, NOW_MS)

    def sent(self, channel: ChannelId) -> list[Command]:
        """Return what went to a name server since this was last asked."""
        data = b""
        for effect in list(self.effects):
            if isinstance(effect, SendBytes) and effect.channel == channel:
                data += b"".join(bytes(piece) for piece in effect.pieces)
                self.effects.remove(effect)
        return [decode_command(frame) for frame in split_frames(memoryview(data))[0]]

    def answer(
        self, channel: ChannelId, command: Command, code: int = 0, fields: dict[str, str] | None = None
    ) -> list[Effect]:
        """Let a name server answer *command*."""
        answer = Command(code=code, opaque=command.opaque, flag=RESPONSE, fields=fields or {})
        effects = self.registrar.answered(channel, answer)
        assert effects is not None
        return effects

    def create(self, name: str) -> Command | None:
        """Let a tool on channel 1 create a topic; return the answer unless it waits."""
        request = Request(
            command=Command(code=17, opaque=5), channel=ChannelId(1), peer="p", now_ms=NOW_MS, effects=self.effects
        )
        self.topics.put(TopicConfig(name=name), NOW_MS)
        return self.registrar.answer_registered(request, request.answer())


@pytest.fixture
def room() -> Room:
    room = Room("n1:9876")
    room.open(FIRST, "n1:9876")
    return room


def test_every_name_server_is_dialed_at_the_start() -> None:
    """And again at every round, while it cannot be reached."""
    room = Room("n1:9876", "n2:9876")

    assert [effect for effect in room.effects if isinstance(effect, OpenChannel)] == [
        OpenChannel("n1:9876"),
        OpenChannel("n2:9876"),
    ]
    assert SetTimer(TIMER, NOW_MS + 30_000) in room.effects
    log, _ = room.registrar.channel_failed("n1:9876", "refused", NOW_MS)
    later: list[Effect] = []
    room.registrar.on_timer(TIMER, NOW_MS + 30_000, later)
    assert isinstance(log, Log)
    assert [effect for effect in later if isinstance(effect, OpenChannel)] == [OpenChannel("n1:9876")]


def test_an_unreachable_name_server_is_reported_once() -> None:
    """Not at every round; its return is reported, too."""
    room = Room("n1:9876")
    first = room.registrar.channel_failed("n1:9876", "refused", NOW_MS)
    room.registrar.on_timer(TIMER, NOW_MS, [])
    second = room.registrar.channel_failed("n1:9876", "refused", NOW_MS)
    assert [len([effect for effect in told if isinstance(effect, Log)]) for told in (first, second)] == [1, 0]

    room.open(FIRST, "n1:9876")
    (back,) = room.answer(FIRST, room.sent(FIRST)[0])

    assert isinstance(back, Log)
    assert back.event == "registered again"


def test_a_name_server_that_went_away_is_dialed_again_within_a_second(room: Room) -> None:
    """It comes back without any route; clients that start now must not wait for the next round."""
    lost = room.registrar.channel_closed(FIRST, NOW_MS)
    dialed: list[Effect] = []
    room.registrar.on_timer(REDIAL_TIMER, NOW_MS + REDIAL_MS, dialed)
    failed = room.registrar.channel_failed("n1:9876", "refused", NOW_MS + REDIAL_MS)

    assert [effect.event for effect in lost if isinstance(effect, Log)] == ["cannot register"]
    assert SetTimer(REDIAL_TIMER, NOW_MS + REDIAL_MS) in lost
    assert dialed == [OpenChannel("n1:9876")]
    assert failed == [SetTimer(REDIAL_TIMER, NOW_MS + 2 * REDIAL_MS)]


@pytest.mark.parametrize(("zone", "fields"), [(None, {}), ("Hill", {"__ZONE_NAME": "Hill"})])
def test_a_broker_registers_with_its_zone(zone: str | None, fields: dict[str, str]) -> None:
    """If it has one: an empty zone would be a zone, too."""
    room = Room("n1:9876", zone=zone)
    room.open(FIRST, "n1:9876")

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
    assert registered.topic_config_table == room.topics.all()
    assert registered.data_version == room.topics.data_version


def test_the_card_is_presented_again_at_every_round(room: Room) -> None:
    """Name servers forget who is silent."""
    room.sent(FIRST)

    room.registrar.on_timer(TIMER, NOW_MS + 30_000, room.effects)

    assert [command.code for command in room.sent(FIRST)] == [RequestCode.REGISTER_BROKER]
    assert SetTimer(TIMER, NOW_MS + 60_000) in room.effects


def test_a_changed_topic_is_announced_at_once(room: Room) -> None:
    """And once."""
    room.sent(FIRST)
    room.topics.put(TopicConfig(name="T"), NOW_MS)

    room.registrar.announce_changes(room.effects)
    room.registrar.announce_changes(room.effects)

    (command,) = room.sent(FIRST)
    registered = decode_registration(command.body, version=command.version).topic_config_serialize_wrapper
    assert "T" in registered.topic_config_table


def test_a_lost_name_server_is_dialed_again(room: Room) -> None:
    """At the next round, or when there is something to tell."""
    room.registrar.channel_closed(FIRST, NOW_MS)
    room.topics.put(TopicConfig(name="T"), NOW_MS)
    room.effects.clear()

    room.registrar.announce_changes(room.effects)

    assert room.effects == [OpenChannel("n1:9876")]


def test_who_creates_a_topic_is_answered_when_the_name_servers_know_it() -> None:
    """All of them: its next question may go to any."""
    room = Room("n1:9876", "n2:9876")
    for channel, address in ((FIRST, "n1:9876"), (SECOND, "n2:9876")):
        room.open(channel, address)
        room.answer(channel, room.sent(channel)[0])

    assert room.create("T") is None
    assert room.answer(FIRST, room.sent(FIRST)[0]) == []
    (answer,) = room.answer(SECOND, room.sent(SECOND)[0])

    assert isinstance(answer, SendBytes)
    assert answer.channel == 1


def test_a_later_registration_counts_for_those_who_wait_for_an_earlier_one(room: Room) -> None:
    """It says the same and more."""
    room.answer(FIRST, room.sent(FIRST)[0])
    room.create("T1")
    room.create("T2")
    _, last = room.sent(FIRST)

    answers = room.answer(FIRST, last)

    assert len(answers) == 2


@pytest.mark.parametrize("how", ["refuses", "goes away", "says nothing"])
def test_a_name_server_in_trouble_holds_nobody_up(room: Room, how: str) -> None:
    """The topic is made; a second is all that a tool waits."""
    room.answer(FIRST, room.sent(FIRST)[0])
    room.create("T")
    (command,) = room.sent(FIRST)
    effects: list[Effect] = []

    if how == "refuses":
        effects += room.answer(FIRST, command, code=1)
    elif how == "goes away":
        effects += room.registrar.channel_closed(FIRST, NOW_MS)
    else:
        assert SetTimer(HELD_TIMER, NOW_MS + HOLD_MAX_MS) in room.effects
        room.registrar.on_timer(HELD_TIMER, NOW_MS + HOLD_MAX_MS, effects)

    assert [effect.channel for effect in effects if isinstance(effect, SendBytes)] == [1]


def test_without_a_name_server_nobody_waits() -> None:
    """There is nobody to wait for."""
    answer = Room("n1:9876").create("T")

    assert answer is not None
    assert (answer.code, answer.opaque) == (0, 5)


def test_the_broker_says_good_bye(room: Room) -> None:
    """To every name server that it can reach."""
    room.sent(FIRST)

    room.registrar.stop(room.effects)

    (command,) = room.sent(FIRST)
    assert command.code == RequestCode.UNREGISTER_BROKER
    assert command.fields == {
        "brokerName": "a",
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": "C",
        "brokerId": "0",
    }


def test_being_registered_means_that_a_name_server_said_yes(room: Room) -> None:
    """Not merely that there is a channel."""
    assert not room.registrar.is_registered()

    room.answer(FIRST, room.sent(FIRST)[0])
    assert room.registrar.is_registered()

    room.registrar.channel_closed(FIRST, NOW_MS)
    assert not room.registrar.is_registered()


def test_answers_on_other_channels_are_not_ours(room: Room) -> None:
    """A client's answer to a relayed question takes another way."""
    assert room.registrar.answered(ChannelId(99), Command(code=0, flag=RESPONSE)) is None


def test_a_channel_that_nobody_dialed_for_us_is_closed(room: Room) -> None:
    """It can only be a name server that was taken off the list."""
    assert room.registrar.channel_opened(ChannelId(50), "n9:9876", NOW_MS) == [CloseChannel(ChannelId(50))]


def test_a_registration_that_is_not_answered_is_repeated_on_a_fresh_connection(room: Room) -> None:
    """After two ticks, told once: the old connection may be one that only we believe in."""
    later: list[Effect] = []
    room.registrar.on_timer(OVERDUE_TIMER, NOW_MS, later)
    assert [effect for effect in later if not isinstance(effect, SetTimer)] == []

    room.registrar.on_timer(OVERDUE_TIMER, NOW_MS, later)
    room.effects.clear()
    room.open(SECOND, "n1:9876")

    assert CloseChannel(FIRST) in later
    assert OpenChannel("n1:9876") in later
    assert [effect.fields["reason"] for effect in later if isinstance(effect, Log)] == ["no answer to a registration"]
    assert [command.code for command in room.sent(SECOND)] == [RequestCode.REGISTER_BROKER]
    assert room.registrar.channel_closed(FIRST, NOW_MS) == []


def test_a_name_server_that_answers_between_two_ticks_is_kept(room: Room) -> None:
    """Also when the next registration is already under way."""
    (first,) = room.sent(FIRST)
    later: list[Effect] = []
    room.registrar.on_timer(OVERDUE_TIMER, NOW_MS, later)
    room.answer(FIRST, first)
    room.registrar.on_timer(TIMER, NOW_MS, room.effects)
    room.registrar.on_timer(OVERDUE_TIMER, NOW_MS, later)

    assert not [effect for effect in later if isinstance(effect, CloseChannel | OpenChannel | Log)]


def registered(room: Room, channel: ChannelId = FIRST) -> list[set[str]]:
    """Return the topics of every registration that went out since this was last asked, and answer none of them."""
    bodies = [command.body for command in room.sent(channel) if command.code == RequestCode.REGISTER_BROKER]
    return [
        set(decode_registration(body, version=500).topic_config_serialize_wrapper.topic_config_table) for body in bodies
    ]


def test_a_name_server_that_wants_it_hears_of_a_changed_topic_alone() -> None:
    """Others get the whole card, and so does it at the next round."""
    room = Room("n1:9876", "n2:9876")
    room.open(FIRST, "n1:9876")
    room.open(SECOND, "n2:9876")
    (first,), (second,) = room.sent(FIRST), room.sent(SECOND)
    room.answer(FIRST, first, fields={"hf.single": "true"})
    room.answer(SECOND, second)

    room.create("orders")

    assert registered(room, FIRST) == [{"orders"}]
    (everything,) = registered(room, SECOND)
    assert len(everything) > 5
    room.registrar.on_timer(TIMER, NOW_MS, room.effects)
    assert registered(room, FIRST) == [everything]


def test_several_topics_that_changed_are_told_with_the_whole_card(room: Room) -> None:
    """Only one topic alone is no start of a broker."""
    room.answer(FIRST, room.sent(FIRST)[0], fields={"hf.single": "true"})
    room.topics.put_all([TopicConfig(name="orders"), TopicConfig(name="bills")], NOW_MS)

    room.registrar.announce_changes(room.effects)

    (told,) = registered(room)
    assert {"orders", "bills"} < told
    assert len(told) > 5


@pytest.mark.parametrize("how", ["never answered", "refused", "on another connection"])
def test_only_who_took_the_whole_card_hears_of_a_topic_alone(room: Room, how: str) -> None:
    """Whoever does not know the rest of it must not take a part for it."""
    card = room.sent(FIRST)[0]
    if how != "never answered":
        room.answer(FIRST, card, fields={"hf.single": "true"})
    if how == "refused":
        room.registrar.on_timer(TIMER, NOW_MS, room.effects)
        room.answer(FIRST, room.sent(FIRST)[0], code=1, fields={"hf.single": "true"})
    channel = FIRST
    if how == "on another connection":
        room.registrar.channel_closed(FIRST, NOW_MS)
        channel = SECOND
        room.open(channel, "n1:9876")
        room.sent(channel)

    room.create("orders")

    (told,) = registered(room, channel)
    assert len(told) > 5
