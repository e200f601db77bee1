"""Who consumes static topics anywhere: brokers tell each other the members that are connected to them (7030).

    heartbeat, good-bye, closed connection ─> the local list changed ─> told to every other broker, whole, at once
    another broker's list changed ─> the union changed ─> members here are told (40) and ask for it (38)

A client that cannot read mappings knows one broker only, and one that can is connected to several. Asked for the
members of a group, every broker answers the same. A list is dropped half a minute after its broker's last word, and at
once when it says good-bye. What groups subscribe to travels along: a pull that is passed on need not say it. So do the
names of groups of producers, who may be asked about transactions from elsewhere; they are told every ten seconds only.

A broker of another cluster is told of those groups only that read a topic which is fixed in both: the members of any
other group share out the queues of their own cluster, and would count somebody who never sees them.

Nothing is told while there is no static topic.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import PeerCall, Procedure
from holdfast.broker.flow.peer_calls import Calls
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.flow.turn import Errands
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.groups import GroupTable
from holdfast.machine.effects import Effect, SetTimer
from holdfast.model.errors import PeerFailed
from holdfast.model.group import Subscription
from holdfast.model.scope import covers
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command
from holdfast.wire.frames.fields import from_fields
from holdfast.wire.requests.heartbeat import ConsumerGroupFields, ConsumerList
from holdfast.wire.requests.moves import Members, decode_body, encode_body

TIMER: Final = "members"
ROUND_MS: Final = 10_000
LIFE_MS: Final = 30_000
BROKERS_MAX: Final = 1_024


class _Report(msgspec.Struct, frozen=True):
    """Another broker's list."""

    members: Members
    received_ms: int


class GroupMembers:
    """Members here, and what other brokers say of theirs."""

    def __init__(
        self,
        options: BrokerOptions,
        clients: ClientTable,
        groups: GroupTable,
        mappings: Mappings,
        view: ClusterView,
        calls: Calls,
        errands: Errands,
    ) -> None:
        self._name = options.name
        self._clients = clients
        self._groups = groups
        self._mappings = mappings
        self._view = view
        self._calls = calls
        self._errands = errands
        self._boot_ms = errands.now_ms
        self._version = 0
        self._acknowledged: dict[str, int] = {}  # broker to the version that it has heard
        self._reporting: set[str] = set()
        self._reports: dict[str, _Report] = {}
        clients.on_change = self._changed
        clients.far_subscription = self.subscription

    def handlers(self) -> Handlers:
        """Return what this room answers."""
        return {
            RequestCode.SHARE_MEMBERS: self.take,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
        }

    # Asking.

    def union(self, group: str) -> list[str]:
        """Return the client ids of a group, wherever they are connected, each once."""
        far = [client for report in self._reports.values() for client in report.members.groups.get(group, ())]
        return list(dict.fromkeys([*self._clients.members(group), *far]))

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return what *group* wants of *topic*, by another broker's word."""
        found = [
            subscription
            for report in self._reports.values()
            for subscription in report.members.subscriptions.get(group, ())
            if subscription.topic == topic
        ]
        return max(found, key=lambda subscription: subscription.sub_version, default=None)

    def find_producing(self, group: str) -> str | None:
        """Return another broker to which producers of *group* are connected, or None when nobody tells of any."""
        return next((name for name, report in self._reports.items() if group in report.members.producers), None)

    def list_members(self, request: Request) -> Answer:
        """Answer 38. A group without members is an error: the asking consumer then keeps the queues that it has."""
        group = from_fields(ConsumerGroupFields, request.command.fields).consumer_group
        members = self.union(group)
        if not members:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return request.answer(body=java_json.encode(ConsumerList(members)))

    # Hearing.

    def take(self, request: Request) -> Answer:
        """Answer 7030."""
        members = decode_body(request.command.body, Members)
        known = self._reports.get(members.broker)
        is_late = known is not None and (members.boot_ms, members.version) < (
            known.members.boot_ms,
            known.members.version,
        )
        is_rejected = members.broker == self._name or (known is None and len(self._reports) >= BROKERS_MAX)
        if not is_late and not is_rejected:
            for group in members.groups:
                self._groups.ensure(group, request.now_ms)
            touched = set(members.groups) | set(() if known is None else known.members.groups)
            before = {group: set(self.union(group)) for group in sorted(touched)}
            self._reports[members.broker] = _Report(members, request.now_ms)
            self._notify(before, request.effects)
        return request.answer()

    def _notify(self, before: dict[str, set[str]], effects: list[Effect]) -> None:
        """Tell members here of groups whose union is no longer what it was."""
        for group, members in before.items():
            if set(self.union(group)) != members:
                self._clients.notify(group, effects)

    def _drop_silent(self, now_ms: int, effects: list[Effect]) -> None:
        silent = [name for name, report in self._reports.items() if report.received_ms + LIFE_MS <= now_ms]
        for name in silent:
            before = {group: set(self.union(group)) for group in self._reports[name].members.groups}
            del self._reports[name]
            self._notify(before, effects)

    # Telling.

    def start(self, now_ms: int, effects: list[Effect]) -> None:
        """Begin to tell others from time to time."""
        effects.append(SetTimer(TIMER, now_ms + ROUND_MS))

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Tell everybody again: somebody may have restarted, or be new."""
        assert name == TIMER
        self._drop_silent(now_ms, effects)
        if self._mappings.topics():
            self._acknowledged.clear()
            self._errands.work.append(self._round())
        effects.append(SetTimer(TIMER, now_ms + ROUND_MS))

    def stop(self, effects: list[Effect]) -> None:
        """Say good-bye: nobody is connected here any more."""
        self._version += 1
        if self._mappings.topics():
            empty = Members(broker=self._name, boot_ms=self._boot_ms, version=self._version, groups={})
            for broker in self._view.brokers():
                address = self._view.address(broker)
                if address is not None:
                    command = Command(code=RequestCode.SHARE_MEMBERS, flag=ONE_WAY, body=encode_body(empty))
                    self._calls.tell(address, command, effects)

    def _changed(self, group: str) -> None:
        """Take note that members came to a group here, or left it."""
        if self._mappings.topics() and (self._is_shared(group) or self._version):
            self._version += 1
            self._report_all()

    def _round(self) -> Procedure[None]:
        yield from self._view.refresh()
        self._report_all()

    def _report_all(self) -> None:
        for broker in self._view.brokers():
            if broker not in self._reporting:
                self._reporting.add(broker)
                self._errands.work.append(self.tell(broker))

    def tell(self, broker: str) -> Procedure[None]:
        """Tell one broker until it has heard the newest; one that does not answer hears it with the next round."""
        try:
            while self._acknowledged.get(broker) != self._version:
                version = self._version
                address = yield from self._view.find_address(broker)
                members = self._to_wire(self._view.cluster_of(broker))
                command = Command(code=RequestCode.SHARE_MEMBERS, body=encode_body(members))
                yield PeerCall(address, command)
                self._acknowledged[broker] = version
        except PeerFailed:
            return
        finally:
            self._reporting.discard(broker)

    def _is_shared(self, group: str, cluster: str | None = None) -> bool:
        """Return whether *group* reads a static topic, one that is also fixed in *cluster* if that is given."""
        membership = self._clients.find_membership(group)
        records = map(self._mappings.find, () if membership is None else membership.subscriptions)
        return any(record is not None and (cluster is None or covers(record.scope, cluster)) for record in records)

    def _to_wire(self, cluster: str) -> Members:
        groups = self._clients.consumer_groups()
        is_concerned = any(covers(record.scope, cluster) for record in self._mappings.topics().values())
        shared = {name: found for name, found in groups.items() if self._is_shared(name, cluster)}
        return Members(
            broker=self._name,
            boot_ms=self._boot_ms,
            version=self._version,
            groups={name: found.client_ids() for name, found in shared.items()},
            subscriptions={name: list(found.subscriptions.values()) for name, found in shared.items()},
            producers=list(self._clients.producer_groups()) if is_concerned else [],
        )
