"""Clients that watch routes are told of changes: the name server as its peers meet it."""

import json

import pytest
from tests.support.cluster.machine import START_MS, MachineHarness
from tests.support.cluster.name_server_machine import (
    a_name_server,
    a_registration,
    a_topic,
    register,
    request_route,
    route_frame,
)
from tests.support.static_reports import a_leader_report, register_static
from tests.support.watching import (
    BROKER_CHANNEL,
    a_cluster,
    create_topic,
    delete_topic,
    next_tick_ms,
    pop_notices,
    request_watch,
    tick,
    unwatch,
    unwipe,
    watch,
    wipe,
)

from holdfast.machine.effects import Log, SendBytes
from holdfast.machine.events import TimerFired
from holdfast.machine.readings import LinkCapacity, Readings
from holdfast.model.topic import TopicConfig
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.push.route_push import COALESCE_MS, SLICE, TIMER
from holdfast.wire.cluster.watch import ROUTES_CHANGED, UNWATCH, WATCHING_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, JSON, Command, encode_command

WATCHING = {WATCHING_FIELD: "true"}
SECOND_MS = 1000


def readings_of(server: MachineHarness) -> Readings:
    assert isinstance(server.machine, NameServer)
    return server.machine.push.readings


def is_idle(server: MachineHarness) -> bool:
    """Return whether nothing at all is kept of watching clients, and no timer runs for them."""
    assert isinstance(server.machine, NameServer)
    push = server.machine.push
    counts = (len(push.watches), push.watches.channel_count, push.watches.topic_count, len(push.notices))
    return counts == (0, 0, 0, 0)


# Asking to be told.


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize(("topic", "code"), [("orders", 0), ("nothing", 17)])
def test_whoever_asks_to_watch_is_told_that_it_does(serializer: int, topic: str, code: int):
    """In both encodings, also of a topic that does not exist, and the second time too."""
    server = a_cluster()
    channel = server.connect()

    for _ in range(3):
        answer = request_watch(server, topic, channel, serializer=serializer)

        assert (answer.code, answer.fields) == (code, WATCHING)
        assert answer.body == request_route(server, topic, serializer=serializer).body


def test_whoever_does_not_ask_to_watch_is_neither_told_so_nor_of_changes():
    """An old client gets the answers that it always got, also beside those who watch, and never a 328."""
    server = a_cluster()
    watch(server, "orders", "nothing")
    old = server.connect()
    for topic in ("orders", "orders", "nothing"):
        assert request_route(server, topic, channel=old).fields == {}

    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    tick(server)

    assert pop_notices(server, old) == []


def test_a_static_topic_that_is_withheld_can_be_watched():
    """The answer is busy, and the client is told when there is a route."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, total=2))
    channel = server.connect()

    answer = request_watch(server, "orders", channel)
    register_static(server, "b", a_leader_report("b", 1, total=2))
    for _ in range(5):
        tick(server)

    assert (answer.code, answer.fields) == (ResponseCode.SYSTEM_BUSY, WATCHING)
    assert pop_notices(server, channel) == [["orders"]]


def test_a_rendered_answer_is_right_to_the_byte_for_those_who_watch():
    """Its size in front counts the field, whatever the number of the request; other queries of the read are plain."""
    server = a_cluster()
    channel = server.connect()
    request_route(server, "orders")
    numbers = (0, 7, 42, 2**31 - 1, -1, -(2**31))
    frames = [
        frame
        for number in numbers
        for frame in (
            encode_command(
                Command(
                    code=RequestCode.GET_ROUTEINFO_BY_TOPIC,
                    opaque=number,
                    fields={"topic": "orders", "watch": "true"},
                    version=479,
                )
            ),
            route_frame("orders", number),
        )
    ]

    server.receive(channel, b"".join(frames))
    answers = server.pop_answers(channel)

    assert [(answer.opaque, answer.fields) for answer in answers] == [
        (number, fields) for number in numbers for fields in (WATCHING, {})
    ]
    assert len({answer.body for answer in answers}) == 1
    assert json.loads(answers[0].body)["queueDatas"]


def test_whoever_watches_too_much_is_not_told_that_it_does():
    """Then it knows that it has to poll; what it watches already stays."""
    server = a_cluster(watches_per_channel_max=1)
    channel = watch(server, "orders")

    assert request_watch(server, "bills", channel).fields == {}
    assert request_watch(server, "bills", channel).fields == {}
    assert request_watch(server, "nothing", channel).fields == {}
    assert request_watch(server, "orders", channel).fields == WATCHING


# Not wanting to be told any more.


def test_whoever_unwatches_is_told_no_more_not_even_of_what_has_changed_already():
    """Of the rest it is."""
    server = a_cluster()
    channel = watch(server, "orders", "bills")
    server.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})

    assert unwatch(server, channel, "orders").code == ResponseCode.SUCCESS
    tick(server)

    assert pop_notices(server, channel) == [["bills"]]


@pytest.mark.parametrize("fields", [{}, {"topics": ""}, {"topics": "orders"}, {"topics": ";;no;such;;topics;"}])
def test_unwatching_what_is_not_watched_is_no_fault(fields: dict[str, str]):
    """By anybody, for anything; nothing comes of it, for others either."""
    server = a_cluster()
    channel = watch(server, "orders")

    answer = server.request(UNWATCH, fields)

    assert (answer.code, answer.fields) == (0, {})
    assert server.send_one_way(UNWATCH, fields) == []
    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    tick(server)
    assert pop_notices(server, channel) == [["orders"]]


def test_a_closed_channel_leaves_no_trace():
    """Also one that was owed a notice; nobody else misses anything."""
    server = a_cluster()
    channel, other = watch(server, "orders", "nothing"), watch(server, "orders")
    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})

    server.disconnect(channel)
    tick(server)

    assert pop_notices(server, channel) == []
    assert pop_notices(server, other) == [["orders"]]
    server.disconnect(other)
    assert is_idle(server)


# Ticks.


def test_a_name_server_where_nothing_happens_sets_no_timer():
    """Not for watching, and no more after what was owed has been told."""
    server = a_cluster()
    watch(server, "orders", "bills")
    assert next_tick_ms(server) is None

    delete_topic(server)

    assert tick(server)
    assert next_tick_ms(server) is None


def test_ticks_are_a_second_apart_and_no_change_waits_for_longer():
    """After a rest the first change waits a moment for others; those that follow wait for the next second."""
    server = a_cluster()
    channel = watch(server, "orders", "bills", "missing")
    delete_topic(server)
    server.now_ms += COALESCE_MS - 1
    create_topic(server)
    assert next_tick_ms(server) == START_MS + COALESCE_MS
    tick(server)
    assert pop_notices(server, channel) == [["missing", "orders"]]

    server.now_ms += 10
    wipe(server)
    assert next_tick_ms(server) == START_MS + COALESCE_MS + SECOND_MS
    server.now_ms += SECOND_MS - 20
    register(server, "a", body=a_registration(a_topic("bills", 8), counter=3), channel=BROKER_CHANNEL)
    tick(server)
    assert server.now_ms == START_MS + COALESCE_MS + SECOND_MS
    assert pop_notices(server, channel) == [["bills", "missing"]]
    server.now_ms += 10 * SECOND_MS
    unwipe(server)
    assert next_tick_ms(server) == server.now_ms + COALESCE_MS


def test_many_clients_are_told_in_slices_so_that_others_have_a_turn():
    """The timer fires again at once until all of this tick are told; a query in between is answered."""
    server = a_cluster()
    clients = [watch(server, "orders") for _ in range(2 * SLICE + 1)]
    delete_topic(server)
    server.now_ms = next_tick_ms(server) or 0
    sizes = []
    for _ in range(3):
        effects = server.feed(TimerFired(TIMER, server.now_ms))
        sizes.append(sum(bool(pop_notices(server, channel)) for channel in clients))
        assert request_route(server, "bills").code == 0

    assert sizes == [SLICE, SLICE, 1]
    assert [effect for effect in effects if not isinstance(effect, SendBytes)] == []


def test_frames_beyond_the_rate_go_with_the_next_tick():
    """Every client is told in the end."""
    server = a_cluster(notify_rate_max=30)
    clients = [watch(server, "orders") for _ in range(100)]
    delete_topic(server)

    counts = []
    while tick(server):
        counts.append(sum(bool(pop_notices(server, channel)) for channel in clients))

    assert counts == [30, 30, 30, 10]


# Under burden.


def test_under_burden_clients_are_told_every_ten_seconds_and_nothing_is_forgotten():
    """Memory, load or network from 60 % on; the operator is told once, with the reason."""
    server = a_cluster()
    channel = watch(server, "orders", "bills", "missing")
    readings_of(server).memory = 72.0
    delete_topic(server)
    tick(server)
    assert pop_notices(server, channel) == [["orders"]]  # The last notice was long ago.

    create_topic(server)
    began_ms = server.now_ms
    wipe(server)
    while not (notices := pop_notices(server, channel)):
        assert tick(server)

    assert notices == [["bills", "missing"]]
    assert server.now_ms - began_ms == 10 * SECOND_MS
    slowed = [effect for effect in server.effects if isinstance(effect, Log) and "route notices" in effect.event]
    assert [(log.level, log.event, log.fields["reason"]) for log in slowed] == [
        ("warning", "route notices slowed to one in 10 s", "memory 72 %")
    ]


def test_above_90_percent_nobody_is_told_until_it_is_less():
    """What changed meanwhile is told then, all at once; pausing and going on are told to the operator once each."""
    server = a_cluster()
    channel = watch(server, "orders", "missing")
    readings_of(server).load = 95.0
    delete_topic(server)
    for _ in range(30):
        assert tick(server)
        assert pop_notices(server, channel) == []
    create_topic(server)

    readings_of(server).load = 59.0
    tick(server)

    assert pop_notices(server, channel) == [["missing", "orders"]]
    assert [event for event in server.logged() if "route notices" in event] == [
        "route notices paused",
        "route notices every second again",
    ]
    assert next_tick_ms(server) is None


def test_an_operator_who_does_not_want_it_has_no_back_off():
    """Then the readings are shown, and that is all."""
    server = a_cluster(notify_back_off=False)
    channel = watch(server, "orders")
    readings_of(server).load = 200.0

    delete_topic(server)
    tick(server)

    assert pop_notices(server, channel) == [["orders"]]
    assert state_of(server)["pace"] == "every second"


def test_a_clock_that_is_set_back_holds_nothing_up():
    """Not under burden either."""
    server = a_cluster()
    channel = watch(server, "orders", "missing")
    readings_of(server).network = 61.0
    delete_topic(server)
    tick(server)
    pop_notices(server, channel)

    server.now_ms -= 3_600_000
    create_topic(server)
    tick(server)

    assert pop_notices(server, channel) == [["missing"]]


# What the operator sees.


def state_of(server: MachineHarness) -> dict[str, object]:
    answer = server.request(RequestCode.GET_PUSH_STATE)
    assert answer.code == 0
    return json.loads(answer.body)


def test_the_state_tells_who_watches_who_waits_and_why():
    """An unknown reading is called unknown."""
    server = a_cluster()
    channel = watch(server, "orders", "bills")
    watch(server, "orders")
    delete_topic(server)
    tick(server)
    pop_notices(server, channel)
    readings_of(server).memory, readings_of(server).load = 91.04, 61.0
    readings_of(server).link = LinkCapacity(10, "stated")
    unwatch(server, channel, "orders")
    wipe(server)

    assert state_of(server) == {
        "brokerEvents": "spread",
        "watchingClients": 2,
        "watchedTopics": 2,
        "watches": 2,
        "pendingClients": 1,
        "noticesSent": 2,
        "pace": "paused",
        "reason": "memory 92 %",
        "readings": {"memory": 91.0, "load": 61.0, "network": "unknown"},
        "linkCapacity": {"mbit": 10, "source": "stated"},
    }


def test_a_notice_is_a_oneway_request_with_names_and_nothing_else():
    """328, no body, names joined by a semicolon; it wants no answer, and one that comes is ignored."""
    server = a_cluster()
    channel = watch(server, "orders", "bills")
    wipe(server)
    tick(server)

    (notice,) = server.pop_answers(channel)

    assert (notice.code, notice.fields, notice.body) == (ROUTES_CHANGED, {"topics": "bills;orders"}, b"")
    assert (notice.is_one_way, notice.is_response, notice.serializer) == (True, False, JSON)


@pytest.mark.parametrize("broker_events", ["off", "spread"])
def test_a_change_that_a_full_registration_contained_first_is_pushed(broker_events: str):
    """A Java broker registers everything every 30 s; that may fall between a change of a topic and its announcement."""
    server = a_cluster(broker_events=broker_events)
    channel = watch(server, "orders")

    def register_topics(*topics: TopicConfig | str, counter: int) -> None:
        register(server, "a", body=a_registration(*topics, counter=counter), channel=BROKER_CHANNEL)

    changed = a_topic("orders", 5)
    register_topics(changed, "bills", counter=2)
    register_topics(changed, counter=2)
    tick(server)

    assert pop_notices(server, channel) == [["orders"]]
    register_topics(changed, "bills", counter=2)
    register_topics(changed, counter=2)
    tick(server)
    assert pop_notices(server, channel) == [], "nothing has changed since"
