"""Every broker with its status, and the brokers that are down and still have segments of logical queues."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.admin.cluster import BrokerStatus
from holdfast.admin.operations import Admin
from holdfast.admin.static_topics import ClusterMappings
from holdfast.admin.tables import count_text
from holdfast.model.leader_planning import count_led_queues

_DISK_PERCENT: Final = 80.0


class BrokerList(msgspec.Struct, frozen=True):
    """The brokers of a cluster.

    Attributes:
        brokers: Every broker that the name server knows.
        down: Brokers that it does not know any more and that have segments: name to the number of queues they lead.
    """

    brokers: list[BrokerStatus]
    down: dict[str, int]


async def list_brokers(admin: Admin, view: ClusterMappings | None = None) -> BrokerList:
    """Return the brokers of a cluster.

    Args:
        admin: The cluster.
        view: Its mappings, if they have been read already.
    """
    statuses = await admin.cluster.statuses()
    if view is None:
        if all(status.leads is None for status in statuses):
            return BrokerList(statuses, {})
        view = await admin.static_topics.read()
    counts = count_led_queues(view.leaders)
    return BrokerList(statuses, {name: counts.get(name, 0) for name in view.lost_brokers})


def find_broker_problems(found: BrokerList) -> list[str]:
    """Return what needs the attention of an operator, one line each."""
    lines = [f"{each.name} does not answer: {each.fault}" for each in found.brokers if each.fault is not None]
    for name, leads in found.down.items():
        effect = (
            f"leads {count_text(leads, 'logical queue')}: start it, or `holdfast broker evacuate {name} --force`"
            if leads
            else "has older messages: they cannot be read until it returns"
        )
        lines.append(f"{name} is down and {effect}")
    lines += [
        f"the disk of {each.name} is {each.disk_used_percent:.0f} % full"
        for each in found.brokers
        if each.disk_used_percent is not None and each.disk_used_percent >= _DISK_PERCENT
    ]
    if found.brokers and all(each.draining for each in found.brokers):
        lines.append("every broker is drained: none gets new logical queues (`holdfast broker spread BROKER`)")
    return lines
