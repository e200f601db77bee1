from random import Random

from holdfast.machine.effects import Effect
from holdfast.machine.events import Event
from holdfast.sim.world.network import Network
from holdfast.sim.world.node import BuiltMachine, Node
from holdfast.sim.world.shell import HostEnvironment
from holdfast.sim.world.world import World


class Idle:
    """A machine that does nothing."""

    def handle(self, _event: Event) -> list[Effect]:
        return []


def test_what_a_start_finds_counts_as_synced():
    """It is served from then on, so no power cut may take it; a later start that finds less does not change that."""
    found = iter((100, 40))
    world = World(1)
    around = HostEnvironment(name="a", host="10.0.0.1", rng=Random(1))
    node = Node(world, Network(world), around, lambda _around, _now_ms: BuiltMachine(Idle(), synced=next(found)))

    node.start()
    first = node.synced
    node.kill()
    node.start()

    assert (first, node.synced) == (100, 100)
