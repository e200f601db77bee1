"""Components of a broker: how they are assembled, and what a replica does not start."""

import pytest
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.flow.component import MasterComponent
from holdfast.machine.effects import SetTimer


def timers_of(broker: BrokerHarness) -> set[str]:
    """Return the timers that were set at the start."""
    return {effect.name for effect in broker.effects if isinstance(effect, SetTimer)}


def test_a_replica_starts_nothing_that_writes_to_the_log() -> None:
    """It would end in another log than its master's."""
    master = BrokerHarness()
    replica = BrokerHarness(name="a", replica_of="a", ha_master="10.0.0.9:10912")
    writing = [component for component in master.components._built if isinstance(component, MasterComponent)]
    timers = {name for component in writing for name in component.timers()}

    assert {"delays", "transactions"} <= timers & timers_of(master)
    assert not (timers - {"kept files"}) & timers_of(replica)


def test_no_request_has_two_handlers() -> None:
    """The later one would silently replace the earlier."""
    built = BrokerHarness().components._built
    codes = [code for component in built for code in component.handlers()]

    assert len(set(codes)) == len(codes)


def test_a_second_handler_of_a_request_is_refused() -> None:
    """When the handlers are collected, at the start."""
    components = BrokerHarness().components
    components._built.append(components.topics)
    assert components.handlers()

    components._built.append(components.clients)

    with pytest.raises(AssertionError, match="ClientTable offers handlers of"):
        components.handlers()
