"""Brokers carry the switch for the loss of a site from one name server to the others."""

import msgspec
from tests.support.cluster.simulated import MovingCluster

from holdfast.broker.naming.dr_switch_sync import NAME
from holdfast.model.dr_switch import CLOSED, DrSwitch, UnitOpening
from holdfast.nameserver.core import NameServer
from holdfast.store.base.config_files import config_path
from holdfast.wire.cluster.units import UnitState, encode_switch
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

EAST = DrSwitch(10, (UnitOpening("east"),))
SHUT = DrSwitch(20, ())


def set_switch(cluster: MovingCluster, broker: str, switch: DrSwitch) -> Command:
    return cluster.call(broker, Command(code=RequestCode.SET_DR_SWITCH, body=encode_switch(switch)))


def known_by(cluster: MovingCluster, broker: str) -> DrSwitch:
    answer = cluster.call(broker, Command(code=RequestCode.GET_DR_SWITCH))
    return msgspec.json.decode(answer.body, type=UnitState).switch


def known_at(cluster: MovingCluster, number: int) -> DrSwitch:
    shell = cluster.name_servers[number].shell
    assert shell is not None
    assert isinstance(shell.machine, NameServer)
    return shell.machine.open_units.switch


def test_a_name_server_that_was_down_is_told_by_the_first_broker():
    """Though the operator told only brokers, while it was away."""
    cluster = MovingCluster("a", "b", name_servers=2)
    cluster.name_servers[1].kill()

    assert set_switch(cluster, "a", EAST).code == ResponseCode.SUCCESS
    cluster.run(500)
    assert known_at(cluster, 0) == EAST
    cluster.name_servers[1].start()

    assert cluster.run(5_000, lambda: known_at(cluster, 1) == EAST)


def test_a_broker_that_was_down_is_told_by_name_servers():
    """With the answer to its registration; it tells the other ones."""
    cluster = MovingCluster("a", "b")
    cluster.kill("b")
    set_switch(cluster, "a", EAST)

    cluster.restart("b")
    cluster.run(3_000)

    assert known_by(cluster, "b") == EAST


def test_it_outlives_the_broker():
    """A name server may be away for longer."""
    cluster = MovingCluster("a", name_servers=2)
    for server in cluster.name_servers:
        server.kill()
    set_switch(cluster, "a", EAST)
    cluster.run(500)
    cluster.kill("a")
    cluster.restart("a")
    cluster.run(500)

    cluster.name_servers[1].start()

    assert cluster.run(5_000, lambda: known_at(cluster, 1) == EAST)


def test_what_is_older_is_refused():
    """Orders may come late."""
    cluster = MovingCluster("a")
    set_switch(cluster, "a", SHUT)

    assert set_switch(cluster, "a", EAST).code == ResponseCode.ILLEGAL_OPERATION
    assert set_switch(cluster, "a", SHUT).code == ResponseCode.SUCCESS
    assert known_by(cluster, "a") == SHUT


def test_one_that_was_never_used_leaves_no_trace():
    """Not in registrations, and not on disk."""
    cluster = MovingCluster("a")
    cluster.run(5_000)

    assert known_by(cluster, "a") == CLOSED
    assert cluster.components["a"].dr_switch.text is None
    disk = cluster.brokers["a"].disk
    assert disk is not None
    assert disk.find_size(config_path(NAME)) is None


def test_members_have_to_be_heard_of_again_when_something_is_closed():
    """Not when it is opened, and not when more is."""
    cluster = MovingCluster("a")
    clients = cluster.components["a"].clients

    for switch, is_closing in (
        (EAST, False),
        (DrSwitch(11, (UnitOpening("east"), UnitOpening("west"))), False),
        (DrSwitch(12, (UnitOpening("west"),)), True),
        (SHUT, True),
    ):
        clients._is_short_timeout_due = False
        set_switch(cluster, "a", switch)
        assert clients._is_short_timeout_due == is_closing
