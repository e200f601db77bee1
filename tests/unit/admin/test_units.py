"""Opening and closing units, against scripted name servers and brokers."""

import json

import pytest
from tests.support.cluster.scripted import ScriptedAccess
from tests.support.cluster.scripted_units import SERVERS, ScriptedUnits
from tests.support.static_reports import a_leader_report

from holdfast.admin.cluster_access import NameServerUnreachable, NotAllowed, NotFound
from holdfast.admin.units import GroupBacklog, Units, UnreadableQueues
from holdfast.model.dr_switch import CLOSED, DrSwitch, SwitchRefused, UnitOpening
from holdfast.model.errors import BrokerRefused
from holdfast.wire.cluster.units import KnownUnit
from holdfast.wire.frames.codes import RequestCode, ResponseCode

EAST = UnitOpening("east")


def units_of(reach: ScriptedAccess) -> Units:
    return Units(reach, lambda: 5000)


async def test_everybody_is_told_of_what_is_opened():
    """Name servers, and brokers that carry it to those who are away."""
    reach = ScriptedUnits()

    change = await units_of(reach).open(EAST)

    opened = DrSwitch(5000, (EAST,))
    assert (change.before, change.after, change.told, change.missed) == (CLOSED, opened, list(SERVERS), {})
    assert reach.switches == dict.fromkeys((*SERVERS, "a:1", "b:1"), opened)


async def test_the_newest_switch_that_anybody_has_is_changed():
    """One of the name servers may have missed the last change."""
    reach = ScriptedUnits(switches={"ns:1": CLOSED, "ns:2": DrSwitch(9000, (UnitOpening("west"),))})

    await units_of(reach).open(EAST)

    assert reach.switches["ns:1"] == DrSwitch(9001, (EAST, UnitOpening("west")))


async def test_who_is_away_is_named():
    """It is told by brokers when it is back. Where nobody can be told, nothing was done."""
    reach = ScriptedUnits(dead={"ns:2", "b:1"})

    change = await units_of(reach).open(EAST)

    assert change.told == ["ns:1"]
    assert set(change.missed) == {"ns:2", "b"}
    with pytest.raises(NameServerUnreachable):
        await units_of(ScriptedUnits(dead=set(SERVERS))).open(EAST)


async def test_a_dry_run_tells_nobody():
    """It says what would be."""
    reach = ScriptedUnits()

    change = await units_of(reach).open(EAST, dry_run=True)

    assert change.after.openings == (EAST,)
    assert reach.requests_of(RequestCode.SET_DR_SWITCH) == []


@pytest.mark.parametrize(
    ("opening", "text"),
    [
        (UnitOpening("esat"), "no unit 'esat'"),
        (UnitOpening("east", topic="mails"), "no topic 'mails' in unit east"),
        (UnitOpening("*", topic="mails"), "no topic 'mails' anywhere"),
        (UnitOpening("west", topic="bills"), "no topic 'bills' in unit west"),
        (UnitOpening("east", group="nobody"), "'nobody' does not exist"),
    ],
)
async def test_what_would_open_nothing_is_refused(opening: UnitOpening, text: str):
    """By what is wrong with it."""
    reach = ScriptedUnits()

    with pytest.raises(NotFound, match=text):
        await units_of(reach).open(opening)
    assert reach.requests_of(RequestCode.SET_DR_SWITCH) == []


@pytest.mark.parametrize(
    "opening", [UnitOpening("east", topic="orders"), UnitOpening("east", topic="bills"), UnitOpening("*")]
)
async def test_topics_are_looked_for_in_the_unit(opening: UnitOpening):
    """Static and normal ones."""
    assert (await units_of(ScriptedUnits()).open(opening)).told


async def test_one_unit_alone_has_nothing_to_open():
    """There is nobody else to read."""
    with pytest.raises(NotAllowed, match="no other unit"):
        await units_of(ScriptedUnits(units={"east": KnownUnit(["a"])})).open(EAST)


async def test_what_is_open_is_not_opened_again_and_what_is_not_is_not_closed():
    """Refused, as it would change nothing."""
    reach = ScriptedUnits(switches=dict.fromkeys(SERVERS, DrSwitch(1, (EAST,))))

    with pytest.raises(SwitchRefused, match="unit east is open already"):
        await units_of(reach).open(EAST)
    with pytest.raises(SwitchRefused, match="unit west is not open"):
        await units_of(reach).close(UnitOpening("west"))
    assert (await units_of(reach).close(EAST)).after.openings == ()


async def test_a_group_with_members_of_another_kind_is_not_opened_alone():
    """They do not tell their group to name servers, and would see other queues than the rest."""
    java = {"connectionSet": [{"clientId": "jay", "clientAddr": "x:2", "language": "JAVA", "version": 513}]}
    reach = ScriptedUnits()
    reach.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: json.dumps(java).encode())

    with pytest.raises(NotAllowed, match="jay of group billing is not a Holdfast client"):
        await units_of(reach).open(UnitOpening("east", group="billing"))
    assert (await units_of(ScriptedUnits()).open(UnitOpening("east", group="billing"))).told


async def test_a_unit_that_is_none_is_named_with_the_nearest():
    """Unless it is open: then it can be closed, though nothing is left of it. Where units are unknown nobody judges."""
    cluster = ScriptedUnits()
    units = units_of(cluster)

    await units.require_unit("east")
    with pytest.raises(NotFound, match="no unit 'eastt'; did you mean 'east'"):
        await units.require_unit("eastt")
    cluster.switches = dict.fromkeys(SERVERS, DrSwitch(7, (UnitOpening("eastt"),)))
    await units.require_unit("eastt")
    cluster.on(RequestCode.GET_DR_SWITCH, lambda _: 3)
    await units.require_unit("anything")


async def test_a_global_topic_is_nobodys_to_open():
    """It is read and written in every unit, always."""
    cluster = ScriptedUnits()
    cluster.on(RequestCode.GET_TOPICS_BY_CLUSTER, lambda _: json.dumps({"topicList": ["everywhere"]}).encode())
    report = {"bname": "a", "topic": "everywhere", "scope": "__global__", "totalQueues": 1}
    route = {"brokerDatas": [], "queueDatas": [], "topicQueueMappingByBroker": {"a": report}}
    cluster.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _: json.dumps(route).encode())

    with pytest.raises(NotAllowed, match="nothing would change: everywhere is global"):
        await units_of(cluster).open(UnitOpening("east", topic="everywhere"))


async def test_a_name_server_that_knows_no_units_is_named():
    """Its clients see everything."""
    reach = ScriptedUnits()
    reach.on(RequestCode.GET_DR_SWITCH, lambda _: ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    with pytest.raises(NotAllowed, match="ns:1 does not support units"):
        await units_of(reach).status()


async def test_a_java_broker_has_nothing_to_do_with_it():
    """But one that refuses is told of."""
    reach = ScriptedUnits()
    codes = {"a:1": ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "b:1": ResponseCode.ILLEGAL_OPERATION}
    reach.on(RequestCode.SET_DR_SWITCH, lambda asked: int(codes[asked.address]) if asked.address in codes else {})

    assert set((await units_of(reach).open(EAST)).missed) == {"b"}


async def test_a_name_server_that_has_a_newer_one_stops_the_change():
    """Somebody else was quicker."""
    reach = ScriptedUnits()
    reach.on(RequestCode.SET_DR_SWITCH, lambda _: int(ResponseCode.ILLEGAL_OPERATION))

    with pytest.raises(BrokerRefused):
        await units_of(reach).open(EAST)


async def test_the_status_shows_what_is_left_and_what_cannot_be_read():
    """Only of what is open: by group what its brokers count, and what lies on brokers that are gone."""
    key = json.dumps({"topic": "orders", "brokerName": "__syslo__east", "queueId": 0})
    stats = {"consumeTps": 0, "offsetTable": {key: {"brokerOffset": 40, "consumerOffset": 10}}}
    rows = {
        "a": a_leader_report("a", 0, scope="east"),
        "dead": a_leader_report("dead", 1, scope="east"),
        "b": a_leader_report("b", 0, 1, scope="west"),
    }
    units = {"east": KnownUnit(["a"], ["orders"]), "west": KnownUnit(["b"], ["orders"])}
    reach = ScriptedUnits(switches={"ns:1": DrSwitch(7, (EAST,)), "ns:2": CLOSED}, units=units)
    reach.on(RequestCode.GET_CONSUME_STATS, lambda _: json.dumps(stats).encode())
    reach.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda _: json.dumps({"topicQueueMappingByBroker": rows}).encode())

    found = await units_of(reach).status()

    east, west = found.units
    assert (found.version, found.openings, found.is_equal) == (7, [EAST], False)
    assert [(server.address, server.version) for server in found.name_servers] == [("ns:1", 7), ("ns:2", 0)]
    assert east.openings == ["unit east"]
    assert east.backlogs == [GroupBacklog("billing", 30, 1)]
    assert east.unreadable == [UnreadableQueues("orders", "dead", [1])]
    assert (west.openings, west.backlogs, west.unreadable) == ([], [], [])
    assert {asked.address for asked in reach.requests_of(RequestCode.GET_CONSUME_STATS)} == {"a:1"}


@pytest.mark.parametrize(
    ("opening", "left"),
    [
        (UnitOpening("east", topic="orders"), 30),
        (UnitOpening("east", topic="bills"), 4),
        (UnitOpening("*", topic="bills", group="billing"), 4),
        (UnitOpening("east", group="others"), 0),
    ],
)
async def test_only_what_is_open_is_left_to_read(opening: UnitOpening, left: int):
    """The rest waits for the unit itself: whoever waits for the end of it here would wait for ever. Retries count."""
    ends = {"orders": 40, "bills": 12, "%RETRY%billing": 12}
    table = {
        json.dumps({"topic": topic, "brokerName": "a", "queueId": 0}): {"brokerOffset": end, "consumerOffset": 10}
        for topic, end in ends.items()
    }
    reach = ScriptedUnits(switches=dict.fromkeys(SERVERS, DrSwitch(7, (opening,))))
    reach.on(RequestCode.GET_CONSUME_STATS, lambda _: json.dumps({"consumeTps": 0, "offsetTable": table}).encode())

    (east, _) = (await units_of(reach).status()).units

    assert sum(each.lag for each in east.backlogs) == left + (2 if opening.topic == "orders" else 0)


@pytest.mark.parametrize("fresh", SERVERS)
async def test_of_several_name_servers_the_one_is_believed_that_has_been_there_longest(fresh: str):
    """No broker has come back yet to one that was just replaced: it knows of no unit, and of nothing that is left."""
    ages_ms = dict.fromkeys(SERVERS, 60_000) | {fresh: 200}
    reach = ScriptedUnits(
        switches=dict.fromkeys(SERVERS, DrSwitch(9, (EAST,))), ages_ms=ages_ms, without_brokers={fresh}
    )
    reach.on(RequestCode.GET_CONSUME_STATS, lambda _: b'{"consumeTps": 0, "offsetTable": {}}')

    status = await units_of(reach).status()
    change = await units_of(reach).close(EAST)

    assert [(unit.name, unit.brokers) for unit in status.units] == [("east", ["a"]), ("west", ["b"])]
    assert {asked.address for asked in reach.requests_of(RequestCode.GET_BROKER_CLUSTER_INFO)} == {*SERVERS} - {fresh}
    assert (change.told, change.missed) == (list(SERVERS), {})


async def test_where_all_name_servers_were_just_started_brokers_are_waited_for():
    """They come back within seconds; whoever looks sooner would be told that there is no unit."""
    reach = ScriptedUnits(ages_ms={"ns:1": 1_000, "ns:2": 400}, without_brokers=set(SERVERS))
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        reach.without_brokers.clear()
        reach.ages_ms = dict.fromkeys(SERVERS, 3_000)

    change = await Units(reach, lambda: 5000, sleep).open(EAST)

    assert slept == [2.0]
    assert change.after.openings == (EAST,)
