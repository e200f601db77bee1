"""In a healthy cluster every name server knows every broker, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.nameserver.core import NameServer
from holdfast.sim.orders import ORDERED_TOPIC, PLAIN_TOPIC
from holdfast.sim.world import Violation

if TYPE_CHECKING:
    from holdfast.sim.cluster import Cluster


def check_routes(cluster: Cluster) -> None:
    """Compare what every name server says with who is really there."""
    alive = sorted(node.name for node in cluster.brokers if node.is_up)
    for node in cluster.name_servers:
        assert node.shell is not None
        machine = node.shell.machine
        assert isinstance(machine, NameServer)
        for topic in (PLAIN_TOPIC, ORDERED_TOPIC):
            hosts = sorted(machine.routes.topics.get(topic, {}))
            if hosts != alive:
                raise Violation("routes are true", f"{node.name} says {topic} is at {hosts}, alive are {alive}")
