"""The protocol of a component, and how a name server is put together by it."""

from random import Random

import pytest

from holdfast.machine.component import Component, collect_handlers
from holdfast.machine.events import ChannelId
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.sim.world.disk import SimDisk


def test_a_component_that_has_nothing_offers_nothing() -> None:
    """So each component names only what it has."""
    component = Component()

    component.start()
    component.channel_closed(ChannelId(1))
    component.on_synced(7)
    component.stop()

    assert (component.handlers(), component.timers(), component.files(), list(component.metrics())) == ({}, {}, (), [])


def test_every_component_of_a_name_server_is_built_by_its_core() -> None:
    """One that is not in the loop would get no event."""
    disk = SimDisk()
    disk.replace("plain_acl.yml", b"accounts: []")
    components = NameServer(NameServerOptions(), Random(7), acl_folder=(disk, "plain_acl.yml"))._components
    assert {type(component) for component in components} == {
        kind
        for kind in Component.__subclasses__()
        if kind.__module__.startswith(("holdfast.nameserver", "holdfast.access"))
    }


def test_no_two_components_offer_the_same() -> None:
    """The later one would silently replace the earlier."""
    components = NameServer(NameServerOptions(), Random(7))._components
    codes = [code for component in components for code in component.handlers()]
    timers: list[str] = []
    for component in components:
        timers += {*component.timers(), *(file.retry_timer for file in component.files() if file.retry_timer)}

    assert len(set(codes)) == len(codes)
    assert len(set(timers)) == len(timers)


def test_a_second_handler_of_a_request_is_refused() -> None:
    """When a role collects the handlers, at its start."""
    components = NameServer(NameServerOptions(), Random(7))._components
    assert len(collect_handlers(components)) == len({code for each in components for code in each.handlers()})

    with pytest.raises(AssertionError, match="offers handlers of"):
        collect_handlers([*components, *components])
