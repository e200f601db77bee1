"""Group members of static topics: brokers exchange the lists of the members connected to them (7030).

    heartbeat, good-bye, closed connection ─> the local list changed ─> sent in full to every other broker, at once
    another broker's list changed ─> the union changed ─> members here are notified (40) and query it (38)

A client without mapping support knows one broker only; one with it is connected to several. Every broker returns the
same members of a group. A list is dropped half a minute after the last report of its broker, and at once when that
broker says good-bye. Reports include the subscriptions, so a relayed pull need not carry one. They also include the
names of producer groups, which other brokers may check for the state of transactions; a change of these alone is
reported every ten seconds only.

A broker of another cluster only gets the groups that read a topic whose scope covers both clusters. Any other group
divides the queues of its own cluster, and would count members that never see these queues.

Brokers send no reports while there is no static topic.
"""

from __future__ import annotations

from typing import Final

from holdfast.broker.flow.awaitables import PeerCall
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request, Timers
from holdfast.broker.flow.rpc import Rpc
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.clients import GROUPS_TIMER, ClientTable
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.remote_members import RemoteMembers, Report
from holdfast.machine.turn import Turn
from holdfast.model.errors import PeerFailed
from holdfast.model.scope import covers
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command
from holdfast.wire.requests.heartbeat import ConsumerGroupFields, ConsumerList
from holdfast.wire.requests.moves import GroupMemberList, decode_body, encode_body

TIMER: Final = "members"
ROUND_MS: Final = 10_000
LIFE_MS: Final = 30_000
BROKERS_MAX: Final = 1_024


class GroupMembers(MasterComponent):
    """Group members at this broker and, from their reports, at other brokers."""

    def __init__(
        self,
        options: BrokerOptions,
        clients: ClientTable,
        groups: GroupTable,
        mappings: Mappings,
        view: ClusterView,
        rpc: Rpc,
        remote: RemoteMembers,
        turn: Turn,
    ) -> None:
        self._name = options.name
        self._clients = clients
        self._groups = groups
        self._mappings = mappings
        self._view = view
        self._rpc = rpc
        self._turn = turn
        self._boot_ms = turn.now_ms
        self._version = 0
        self._acknowledged: dict[str, int] = {}  # broker to the version that it has acknowledged
        self._reporting: set[str] = set()
        self._reports = remote.reports

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {
            RequestCode.SHARE_MEMBERS: self.handle_report,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
        }

    # Queries.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer, GROUPS_TIMER: self._report_changes}

    def all_members(self, group: str) -> list[str]:
        """Return the client ids of a group, wherever they are connected, each once."""
        remote = [client for report in self._reports.values() for client in report.members.groups.get(group, ())]
        return list(dict.fromkeys([*self._clients.members(group), *remote]))

    def find_producer_broker(self, group: str) -> str | None:
        """Return another broker to which producers of *group* are connected, or None if no broker reported any."""
        return next((name for name, report in self._reports.items() if group in report.members.producers), None)

    def list_members(self, request: Request) -> Answer:
        """Return the members of a group (38). An empty group is an error: the consumer then keeps its queues."""
        group = request.header_as(ConsumerGroupFields).consumer_group
        members = self.all_members(group)
        if not members:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return request.answer(body=java_json.encode(ConsumerList(members)))

    # Reports of other brokers.

    def handle_report(self, request: Request) -> Answer:
        """Store another broker's report (7030), unless a newer one is known."""
        members = decode_body(request.command.body, GroupMemberList)
        known = self._reports.get(members.broker)
        is_late = known is not None and (members.boot_ms, members.version) < (
            known.members.boot_ms,
            known.members.version,
        )
        is_rejected = members.broker == self._name or (known is None and len(self._reports) >= BROKERS_MAX)
        if not is_late and not is_rejected:
            for group in members.groups:
                self._groups.ensure(group)
            touched = set(members.groups) | set(() if known is None else known.members.groups)
            before = {group: set(self.all_members(group)) for group in sorted(touched)}
            self._reports[members.broker] = Report(members, self._turn.now_ms)
            self._notify(before)
        return request.answer()

    def _notify(self, before: dict[str, set[str]]) -> None:
        """Notify the members connected here of each group whose union changed."""
        for group, members in before.items():
            if set(self.all_members(group)) != members:
                self._clients.notify(group)

    def _drop_silent(self) -> None:
        silent = [name for name, report in self._reports.items() if report.received_ms + LIFE_MS <= self._turn.now_ms]
        for name in silent:
            before = {group: set(self.all_members(group)) for group in self._reports[name].members.groups}
            del self._reports[name]
            self._notify(before)

    # Reports to other brokers.

    def start(self) -> None:
        """Start the timer that repeats the report."""
        self._turn.set_timer(TIMER, self._turn.now_ms + ROUND_MS)

    def on_timer(self) -> None:
        """Repeat the report to every broker, as one may be new or have restarted; drop the lists of silent brokers."""
        self._drop_silent()
        if self._mappings.topics():
            self._acknowledged.clear()
            self._turn.spawn(self._refresh_and_report())
        self._turn.set_timer(TIMER, self._turn.now_ms + ROUND_MS)

    def stop(self) -> None:
        """Say good-bye: report that no member is connected here any more."""
        self._version += 1
        if self._mappings.topics():
            empty = GroupMemberList(broker=self._name, boot_ms=self._boot_ms, version=self._version, groups={})
            for broker in self._view.brokers():
                address = self._view.address(broker)
                if address is not None:
                    command = Command(code=RequestCode.SHARE_MEMBERS, flag=ONE_WAY, body=encode_body(empty))
                    self._rpc.send_one_way(address, command)

    def _report_changes(self) -> None:
        """Report that members joined or left groups here."""
        changed = self._clients.drain_changed_groups()
        if self._mappings.topics() and (self._version or any(map(self._is_shared, changed))):
            self._version += 1
            self._report_all()

    async def _refresh_and_report(self) -> None:
        await self._view.refresh()
        self._report_all()

    def _report_all(self) -> None:
        for broker in self._view.brokers():
            if broker not in self._reporting:
                self._reporting.add(broker)
                self._turn.spawn(self.report_to(broker))

    async def report_to(self, broker: str) -> None:
        """Report to one broker until it has the newest version. A broker that fails gets the next round's report."""
        try:
            while self._acknowledged.get(broker) != self._version:
                version = self._version
                address = await self._view.find_address(broker)
                members = self._to_wire(self._view.cluster_of(broker))
                command = Command(code=RequestCode.SHARE_MEMBERS, body=encode_body(members))
                await PeerCall(address, command)
                self._acknowledged[broker] = version
        except PeerFailed:
            return
        finally:
            self._reporting.discard(broker)

    def _is_shared(self, group: str, cluster: str | None = None) -> bool:
        """Return whether *group* reads a static topic; if *cluster* is given, one whose scope covers that cluster."""
        membership = self._clients.find_membership(group)
        records = map(self._mappings.find, () if membership is None else membership.subscriptions)
        return any(record is not None and (cluster is None or covers(record.scope, cluster)) for record in records)

    def _to_wire(self, cluster: str) -> GroupMemberList:
        groups = self._clients.consumer_groups()
        is_concerned = any(covers(record.scope, cluster) for record in self._mappings.topics().values())
        shared = {name: found for name, found in groups.items() if self._is_shared(name, cluster)}
        return GroupMemberList(
            broker=self._name,
            boot_ms=self._boot_ms,
            version=self._version,
            groups={name: found.client_ids() for name, found in shared.items()},
            subscriptions={name: list(found.subscriptions.values()) for name, found in shared.items()},
            producers=list(self._clients.producer_groups()) if is_concerned else [],
        )
