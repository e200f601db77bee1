"""Who wrote where, as the checkers judge it."""

import pytest

from holdfast.model.dr_switch import CLOSED, DrSwitch, UnitOpening
from holdfast.model.queue import MessageQueue
from holdfast.sim.checkers.ledger import AuditedRecord
from holdfast.sim.checkers.offset_identity import LogPosition, QueueOffset
from holdfast.sim.checkers.unit_isolation import UnitIsolationChecker, find_difference
from holdfast.sim.world.world import Violation

WEST = MessageQueue("t", "__syslo__west", 0)
EAST = MessageQueue("t", "__syslo__east", 0)


def held(broker: str, uid: str) -> AuditedRecord:
    return AuditedRecord(QueueOffset(broker, "t", 0, 0), LogPosition("h", 0), uid)


def test_a_producer_that_is_led_into_another_unit_is_noticed():
    """Before anything is written there."""
    borders = UnitIsolationChecker()
    borders.attempted("m", "west", WEST)
    borders.attempted("m", "", EAST)

    with pytest.raises(Violation, match="own unit"):
        borders.attempted("m", "west", EAST)


def test_a_message_in_another_unit_is_noticed():
    """Whoever put it there. What is retried is in normal topics, wherever it failed."""
    borders = UnitIsolationChecker()
    borders.attempted("m", "west", WEST)

    borders.audit([held("__syslo__west", "m"), held("broker-a", "m"), held("__syslo__east", "probe")])
    with pytest.raises(Violation, match="own messages"):
        borders.audit([held("__syslo__east", "m")])


def test_name_servers_that_differ_are_named():
    """With what each of them knows."""
    switch = DrSwitch(7, (UnitOpening("east"),))

    assert find_difference({"n1": switch, "n2": switch}) is None
    assert find_difference({}) is None
    assert find_difference({"n1": switch, "n2": CLOSED}) == "n1: version 7; n2: version 0"
