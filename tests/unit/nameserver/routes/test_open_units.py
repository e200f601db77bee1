"""The switch that opens units, alone: kept in the KV store, and exchanged with brokers."""

from holdfast.machine.effects import Log, WriteFile
from holdfast.machine.turn import Turn
from holdfast.model.dr_switch import CLOSED, DrSwitch, UnitOpening
from holdfast.nameserver.config.kv_config import FILE, UNITS, KvStore
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes.open_units import OpenUnits
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.cluster.units import switch_text

EAST = DrSwitch(10, (UnitOpening("east"),))
SHUT = DrSwitch(20, ())


class Units:
    """The switch of a name server, with its store."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.turn = Turn()
        self.changes = RouteChanges()
        self.kv = KvStore(self.turn, disk or SimDisk())
        self.open_units = OpenUnits(self.turn, self.kv, self.changes)

    def writes(self) -> list[bytes]:
        effects = self.turn.drain_effects()
        return [effect.data for effect in effects if isinstance(effect, WriteFile) and effect.path == FILE]


def test_a_newer_switch_of_a_broker_is_adopted_and_saved():
    """Every route may have changed, and an operator waits for that."""
    units = Units()

    assert units.open_units.merge_from_broker(switch_text(EAST), "10.0.0.1:1") is None

    assert units.open_units.switch == EAST
    assert (units.changes.are_all, units.changes.is_urgent) == (True, True)
    (written,) = units.writes()
    disk = SimDisk()
    disk.replace(FILE, written)
    assert Units(disk).open_units.switch == EAST


def test_a_broker_with_an_older_switch_gets_ours():
    """Nothing changes here. One that has the same gets nothing."""
    units = Units()
    units.open_units.adopt(SHUT)
    units.changes.clear()
    units.turn.drain_effects()

    assert units.open_units.merge_from_broker(switch_text(EAST), "10.0.0.1:1") == switch_text(SHUT)
    assert units.open_units.merge_from_broker(switch_text(SHUT), "10.0.0.1:1") is None

    assert not units.changes.are_all
    assert units.turn.drain_effects() == []


def test_a_saved_switch_that_cannot_be_read_is_reported():
    """The name server starts all the same: brokers know better."""
    turn = Turn()
    kv = KvStore(turn, None)
    kv.put(UNITS, "switch", "nonsense")

    assert OpenUnits(turn, kv, RouteChanges()).switch == CLOSED

    (log,) = turn.drain_effects()
    assert isinstance(log, Log)
    assert (log.level, log.event) == ("warning", "open units forgotten: they cannot be read")
