"""The members of groups that are connected to other brokers, as those report them (7030)."""

from __future__ import annotations

import msgspec

from holdfast.model.group import Subscription
from holdfast.wire.requests.moves import GroupMemberList


class Report(msgspec.Struct, frozen=True):
    """The last report of another broker, and when it arrived."""

    members: GroupMemberList
    received_ms: int


class RemoteMembers:
    """The last report of each broker, by its name."""

    def __init__(self) -> None:
        self.reports: dict[str, Report] = {}

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the newest subscription of *group* to *topic* that another broker reported."""
        found = [
            subscription
            for report in self.reports.values()
            for subscription in report.members.subscriptions.get(group, ())
            if subscription.topic == topic
        ]
        return max(found, key=lambda subscription: subscription.sub_version, default=None)
