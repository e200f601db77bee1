"""The switch for the loss of a site at a name server: kept, adopted, told; and what each kind of client sees."""

from typing import Any

import pytest
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, register
from tests.support.cluster.name_server_units import (
    OLD,
    request_aware_route,
    request_unit_route,
    two_static_units,
    two_units,
)
from tests.support.cluster.raw_requests import JAVA_5
from tests.support.cluster.route_views import java_publish, java_subscribe
from tests.support.static_reports import a_leader_report, address_of, register_static

from holdfast.machine.effects import SetTimer, WriteFile
from holdfast.machine.events import DiskFault, FileWritten, TimerFired
from holdfast.model.dr_switch import CLOSED, DrSwitch, UnitOpening
from holdfast.nameserver.config.kv_config import FILE
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.push.route_push import TIMER
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.cluster.units import UnitState, decode_switch, encode_switch, switch_text
from holdfast.wire.cluster.watch import ROUTES_CHANGED
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command

EAST = DrSwitch(10, (UnitOpening("east"),))
SHUT = DrSwitch(20, ())


def set_switch(server: MachineHarness, switch: DrSwitch) -> Command:
    return server.request(RequestCode.SET_DR_SWITCH, {}, body=encode_switch(switch))


def state(server: MachineHarness) -> UnitState:
    return java_json.decode(server.request(RequestCode.GET_DR_SWITCH, {}).body, UnitState)


def opened(server: MachineHarness, switch: DrSwitch = EAST) -> MachineHarness:
    assert set_switch(server, switch).code == ResponseCode.SUCCESS
    return server


def wrote(server: MachineHarness) -> list[bytes]:
    return [effect.data for effect in server.effects if isinstance(effect, WriteFile) and effect.path == FILE]


def queues(body: bytes) -> list[tuple[str, int, int, int]]:
    """Return name, read queues, write queues and permission of every part of a route."""
    datas = decode_route(body).queue_datas
    return [(data.broker_name, data.read_queues, data.write_queues, data.permission) for data in datas]


def test_a_name_server_tells_how_long_it_has_been_there():
    """Whoever asks one that was just started knows that brokers have yet to come."""
    server = a_name_server()

    assert state(server).age_ms == 0
    server.now_ms += 2_500
    assert state(server).age_ms == 2_500


# Changing and keeping it.


def test_a_change_is_answered_when_it_is_on_disk():
    """Whoever gave the order relies on it. After a restart it is there before anybody asks."""
    server = a_name_server(data="somewhere")
    channel = server.connect()
    request = server.new_request(RequestCode.SET_DR_SWITCH, {}, body=encode_switch(EAST))
    server.receive(channel, encode_command(request))
    assert server.pop_answers(channel) == []

    server.feed(FileWritten(FILE, server.now_ms))

    (answer,) = server.pop_answers(channel)
    assert answer.code == ResponseCode.SUCCESS
    again = a_name_server(kv_content=wrote(server)[-1], data="somewhere")
    assert state(again).switch == EAST


def test_a_disk_that_refuses_is_told():
    """It holds until the next restart."""
    server = a_name_server(data="somewhere")
    channel = server.connect()
    server.receive(channel, encode_command(server.new_request(RequestCode.SET_DR_SWITCH, {}, body=encode_switch(EAST))))

    server.feed(DiskFault("no room", server.now_ms, path=FILE))

    (answer,) = server.pop_answers(channel)
    assert (answer.code, "not saved" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert state(server).switch == EAST


@pytest.mark.parametrize("is_failed", [False, True])
def test_a_repeated_change_is_answered_when_it_is_on_disk(*, is_failed: bool):
    """The first write may still be in flight, or may have failed."""
    server = a_name_server(data="somewhere")
    first, second = server.connect(), server.connect()
    server.receive(first, encode_command(server.new_request(RequestCode.SET_DR_SWITCH, {}, body=encode_switch(EAST))))
    if is_failed:
        server.feed(DiskFault("no room", server.now_ms, path=FILE))

    server.receive(second, encode_command(server.new_request(RequestCode.SET_DR_SWITCH, {}, body=encode_switch(EAST))))
    assert server.pop_answers(second) == []

    server.feed(FileWritten(FILE, server.now_ms))
    if not is_failed:
        assert server.pop_answers(second) == []
        server.feed(FileWritten(FILE, server.now_ms))
    (answer,) = server.pop_answers(second)
    assert answer.code == ResponseCode.SUCCESS
    assert len(wrote(server)) == 2


def test_what_is_older_is_refused_and_the_same_is_fine():
    """A late order changes nothing; a repeated one neither."""
    server = opened(a_name_server(), SHUT)

    assert set_switch(server, EAST).code == ResponseCode.ILLEGAL_OPERATION
    assert set_switch(server, SHUT).code == ResponseCode.SUCCESS
    assert state(server).switch == SHUT
    assert server.request(RequestCode.SET_DR_SWITCH, {}, body=b"{").code == ResponseCode.SYSTEM_ERROR


def test_nobody_changes_it_by_the_way():
    """The KV store is open to every tool; this part of it has a version."""
    server = opened(a_name_server())
    fields = {"namespace": "HOLDFAST_UNITS", "key": "switch", "value": "{}"}

    assert server.request(RequestCode.PUT_KV_CONFIG, fields).code == ResponseCode.ILLEGAL_OPERATION
    assert server.request(RequestCode.DELETE_KV_CONFIG, fields).code == ResponseCode.ILLEGAL_OPERATION
    assert state(server).switch == EAST


def test_what_was_kept_and_cannot_be_read_is_told():
    """The name server starts all the same: brokers know better."""
    kept = b'{"configTable":{"HOLDFAST_UNITS":{"switch":"nonsense"}}}'
    server = a_name_server(kv_content=kept, data="somewhere")

    assert "open units forgotten: they cannot be read" in server.logged()
    assert state(server).switch == CLOSED


def test_the_units_that_are_known_are_told_with_their_topics():
    """Also of one whose brokers are all dead."""
    server = a_name_server()
    channel = server.connect()
    register_static(server, "a", a_leader_report("a", 0, 1, scope="east"), cluster="east", channel=channel)
    register(server, "b", address_of("b"), channel=server.connect(), clusterName="west")
    server.disconnect(channel)

    units = state(server).units

    assert {name: (unit.brokers, unit.topics) for name, unit in units.items()} == {
        "east": ([], ["orders"]),
        "west": (["b"], []),
    }


# Brokers carry it.


def bring(server: MachineHarness, switch: DrSwitch | None, name: str = "a", cluster: str = "east") -> Command:
    text = None if switch is None else switch_text(switch)
    more = {} if text is None else {"hf.units": text}
    return register(server, name, address_of(name), channel=server.connect(), clusterName=cluster, **more)


def test_a_name_server_that_was_away_has_it_with_the_first_registration():
    """Before it has any route to tell; and it keeps it, though nobody waits for that."""
    server = a_name_server(data="somewhere")
    assert request_unit_route(server, "orders", "west").code == ResponseCode.TOPIC_NOT_EXIST

    bring(server, EAST)

    assert queues(request_unit_route(server, "orders", "west").body) == [("a", 4, 0, 4)]
    again = a_name_server(kv_content=wrote(server)[-1], data="somewhere")
    assert state(again).switch == EAST


def test_one_that_missed_the_closing_is_put_right_the_same_way():
    """What it kept is older than what the first broker brings."""
    server = opened(a_name_server())

    bring(server, SHUT)

    assert state(server).switch == SHUT
    assert request_unit_route(server, "orders", "west").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_broker_that_knows_less_is_told_in_the_answer():
    """It carries it on. One that knows the same is told nothing."""
    server = opened(a_name_server())

    told = [bring(server, known).fields.get("hf.units") for known in (None, DrSwitch(5, ()), EAST)]

    assert [text and decode_switch(text) for text in told] == [EAST, EAST, None]
    assert "hf.units" not in bring(a_name_server(), None).fields


def test_what_a_broker_brings_and_cannot_be_read_costs_nothing():
    """The registration counts."""
    server = a_name_server()

    answer = register(server, "a", address_of("a"), clusterName="east", **{"hf.units": "nonsense"})

    assert answer.code == ResponseCode.SUCCESS
    assert state(server).switch == CLOSED


# What is seen while a unit is open.


@pytest.mark.parametrize("topic", ["orders", "%RETRY%billing", "shop%orders"])
@pytest.mark.parametrize("how", [{}, JAVA_5, OLD])
def test_queues_of_other_units_are_there_to_read_for_clients_of_every_kind(topic: str, how: dict[str, Any]):
    """Those of the own unit as ever. Told as queues that take no writes, so that no producer chooses them."""
    server = opened(two_units(topic))

    assert queues(request_unit_route(server, topic, "west", client=how).body) == [("a", 4, 0, 4), ("b", 4, 4, 6)]
    assert queues(request_unit_route(server, topic, "east", client=how).body) == [("a", 4, 4, 6), ("b", 4, 0, 4)]

    assert set_switch(server, SHUT).code == ResponseCode.SUCCESS
    assert queues(request_unit_route(server, topic, "west", client=how).body) == [("b", 4, 4, 6)]


def test_static_queues_of_other_units_are_read_and_not_written_by_java_5():
    """Its producer takes the queues that an order configuration names, its consumer those of the mapping."""
    server = opened(two_static_units())
    east, west = (
        [(f"__syslo__{unit}", number) for number in range(count)] for unit, count in (("east", 2), ("west", 3))
    )

    for unit, own in (("east", east), ("west", west), ("north", [])):
        body = request_unit_route(server, "orders", unit, client=JAVA_5).body
        assert java_subscribe(body) == [*east, *west]
        assert java_publish(body) == own


def test_static_queues_of_other_units_are_read_and_not_written_by_ours():
    """The same route."""
    server = opened(two_static_units())

    for unit in ("east", "west"):
        route = decode_route(request_aware_route(server, "orders", unit).body)
        assert {queue.broker_name for queue in route.readable("orders")} == {"__syslo__east", "__syslo__west"}
        assert {queue.broker_name for queue in route.publishable("orders")} == {f"__syslo__{unit}"}


def test_static_queues_of_other_units_are_read_and_not_written_by_older_clients():
    """A mock broker for each unit; that of the others takes no writes."""
    server = opened(two_static_units())

    assert queues(request_unit_route(server, "orders", "west", client=OLD).body) == [
        ("__syslo__east", 2, 0, 4),
        ("__syslo__west", 3, 3, 6),
    ]


def test_whoever_has_no_unit_writes_nothing_into_one_that_is_open_by_name():
    """It reads everything, as ever. Where all are open, none is lost, and nothing changes."""
    server = opened(two_static_units())
    normal = opened(two_units("bills"))

    java = request_unit_route(server, "orders", client=JAVA_5).body
    assert {name for name, _ in java_publish(java)} == {"__syslo__west"}
    assert {name for name, _ in java_subscribe(java)} == {"__syslo__east", "__syslo__west"}
    assert queues(request_unit_route(server, "orders", client=OLD).body)[0] == ("__syslo__east", 2, 0, 4)
    assert queues(request_unit_route(normal, "bills").body) == [("a", 4, 0, 4), ("b", 4, 4, 6)]

    set_switch(normal, DrSwitch(11, (UnitOpening("*"),)))
    assert queues(request_unit_route(normal, "bills").body) == [("a", 4, 4, 6), ("b", 4, 4, 6)]


def test_the_template_of_automatic_creation_stays_in_its_unit():
    """Java sets its numbers of queues anew, and looks at the permission only."""
    server = opened(two_units("TBW102"))

    assert queues(request_unit_route(server, "TBW102", "west").body) == [("b", 4, 4, 6)]
    assert queues(request_unit_route(server, "TBW102").body)[0] == ("a", 4, 0, 4)


def test_a_global_topic_is_nobodys_to_open():
    """It is read and written in every unit, always."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0, 1), cluster="east")
    register(server, "b", address_of("b"), body=a_registration("bills"), channel=server.connect(), clusterName="west")
    before = [request_unit_route(server, "orders", unit, client=JAVA_5).body for unit in ("east", "west", "")]

    opened(server)

    assert [request_unit_route(server, "orders", unit, client=JAVA_5).body for unit in ("east", "west", "")] == before


def test_an_opening_for_one_group_is_for_those_who_say_that_they_are_in_it():
    """Others see what they saw: a client that tells no group cannot be told apart."""
    server = opened(two_units("orders", "%RETRY%billing"), DrSwitch(10, (UnitOpening("east", group="billing"),)))

    hosts = {
        who: [data.broker_name for data in decode_route(request_aware_route(server, *who).body).queue_datas]
        for who in (
            ("orders", "west", "billing"),
            ("orders", "west", "audit"),
            ("orders", "west", ""),
            ("%RETRY%billing", "west", ""),
        )
    }

    assert list(hosts.values()) == [["a", "b"], ["b"], ["b"], ["a", "b"]]


def test_what_a_dead_unit_has_is_not_told():
    """Nobody could read it. The own unit is told as ever."""
    server = a_name_server()
    channel = server.connect()
    register_static(server, "a", a_leader_report("a", 0, 1, scope="east"), cluster="east", channel=channel)
    register_static(server, "b", a_leader_report("b", 0, 1, scope="west"), cluster="west")
    server.disconnect(channel)
    opened(server)

    body = request_unit_route(server, "orders", "west", client=JAVA_5).body

    assert {name for name, _ in java_subscribe(body)} == {name for name, _ in java_publish(body)} == {"__syslo__west"}


# Telling it.


def test_those_who_see_a_difference_are_told_within_a_second():
    """Clients of other units and of the opened one, not those to whom the opening means nothing."""
    server = two_units("orders")
    channels = {unit: server.connect() for unit in ("east", "west", "")}
    for unit, channel in channels.items():
        fields = {"topic": "orders", "watch": "true", "hf.mapping": "1", **({"scope": unit} if unit else {})}
        server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, channel=channel)

    opened(server, DrSwitch(10, (UnitOpening("*"),)))
    (timer,) = [effect for effect in server.effects if isinstance(effect, SetTimer) and effect.name == TIMER]
    assert timer.at_ms - server.now_ms <= 1000
    server.feed(TimerFired(TIMER, timer.at_ms))

    told = {unit: [command.code for command in server.pop_answers(channel)] for unit, channel in channels.items()}
    assert told == {"east": [ROUTES_CHANGED], "west": [ROUTES_CHANGED], "": []}


def test_a_change_in_one_unit_is_not_told_to_those_of_another():
    """They see no difference."""
    server = two_units("orders")
    channels = {unit: server.connect() for unit in ("east", "west")}
    for unit, channel in channels.items():
        fields = {"topic": "orders", "watch": "true", "scope": unit}
        server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, channel=channel)

    body = a_registration("orders", "more", counter=2)
    register(server, "c", address_of("c"), body=body, channel=server.connect(), clusterName="east")
    for at_ms in range(1000, 12_000, 1000):
        server.feed(TimerFired(TIMER, server.now_ms + at_ms))

    assert [len(server.pop_answers(channel)) for channel in channels.values()] == [1, 0]


def test_no_burden_of_the_machine_holds_it_back():
    """Other notices wait until memory is there again; a lost site does not."""
    server = two_units("orders")
    assert isinstance(server.machine, NameServer)
    server.machine.push.readings.memory = 99.0
    channel = server.connect()
    fields = {"topic": "orders", "watch": "true", "scope": "west"}
    server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, channel=channel)

    opened(server)
    server.feed(TimerFired(TIMER, server.now_ms + 200))
    assert [command.code for command in server.pop_answers(channel)] == [ROUTES_CHANGED]

    body = a_registration("orders", "more", counter=2)
    register(server, "b", address_of("b"), body=body, channel=server.connect(), clusterName="north")
    for at_ms in range(1000, 12_000, 1000):
        server.feed(TimerFired(TIMER, server.now_ms + at_ms))
    assert server.pop_answers(channel) == []
