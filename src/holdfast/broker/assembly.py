"""Builds the components of a broker, and asks all of them alike.

Each component gets only the collaborators that it needs. A component offers handlers by request code. A component with
background work is started, woken by its own timer, and stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from holdfast.access.acl_follower import AclFollower
from holdfast.access.authority import Authority
from holdfast.access.directory_store import AccessStore
from holdfast.access.door import Door
from holdfast.access.login_server import LoginServer
from holdfast.access.role_secrets import RoleSecrets
from holdfast.access.rule_requests import RuleRequests
from holdfast.access.sessions import Sessions
from holdfast.access.sync_requests import SyncRequests
from holdfast.access.user_requests import UserRequests
from holdfast.broker.admin.broker_admin import BrokerAdmin
from holdfast.broker.admin.client_admin import ClientAdmin
from holdfast.broker.admin.group_admin import GroupAdmin
from holdfast.broker.admin.mapping_admin import MappingAdmin
from holdfast.broker.admin.offset_reset import OffsetResetHandler
from holdfast.broker.admin.queries import QueryHandler
from holdfast.broker.admin.static_admin import StaticAdmin
from holdfast.broker.admin.topic_admin import TopicAdmin
from holdfast.broker.consume.consumed_topics import ConsumedTopics
from holdfast.broker.consume.consumer_offsets import OffsetRequests, OffsetTable
from holdfast.broker.consume.lag import LagCalculator
from holdfast.broker.consume.parked_pull_check import ParkedPullCheck
from holdfast.broker.consume.pull import PullHandler
from holdfast.broker.consume.refused_pulls import RefusedPulls
from holdfast.broker.deferred.remote_transactions import RemoteTransactions
from holdfast.broker.deferred.scheduled_messages import DelayedDelivery
from holdfast.broker.deferred.transactions import TransactionHandler
from holdfast.broker.failover.forced_open import ForcedMoves
from holdfast.broker.failover.offset_backup import OffsetBackup
from holdfast.broker.failover.offset_floors import OffsetFloors
from holdfast.broker.failover.queue_leases import LeaseRenewal
from holdfast.broker.flow.component import SAVE_TIMER, MasterComponent
from holdfast.broker.flow.peer_login import login_settings
from holdfast.broker.flow.reply_gate import ReplyGate
from holdfast.broker.flow.request import Handlers
from holdfast.broker.flow.rpc import Rpc
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.mapping.queue_view import Queues
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.messages.send_gate import SendGate
from holdfast.broker.messages.writer import LogWriter
from holdfast.broker.move.move_payload import MovePayload
from holdfast.broker.move.move_source import MoveSource
from holdfast.broker.move.move_target import MoveTarget
from holdfast.broker.move.segment_expiry import SegmentExpiry
from holdfast.broker.naming.access_sync import AccessSync
from holdfast.broker.naming.dr_switch_sync import DrSwitchSync
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.options import BrokerOptions
from holdfast.broker.produce.batch_send import BatchSends
from holdfast.broker.produce.exactly_once import SinkProgress
from holdfast.broker.produce.fast_send import FastSends
from holdfast.broker.produce.request_reply import ReplyHandler
from holdfast.broker.produce.send_back import SendBackHandler
from holdfast.broker.produce.slow_send import SlowSends
from holdfast.broker.relay.auto_create_guard import AutoCreateGuard
from holdfast.broker.relay.forward_dedup import ForwardedNames
from holdfast.broker.relay.group_gossip import GroupMembers
from holdfast.broker.relay.guests import Guests
from holdfast.broker.relay.held_leases import HeldLeases
from holdfast.broker.relay.lock_requests import LockRequests
from holdfast.broker.relay.message_forwarder import MessageForwarder
from holdfast.broker.relay.record_locator import RecordLocator
from holdfast.broker.relay.relay import Relay
from holdfast.broker.relay.relay_server import RelayedClients
from holdfast.broker.relay.suspects import SuspectTopics
from holdfast.broker.replication.ha_master import HaMaster
from holdfast.broker.replication.ha_replica import HaReplica
from holdfast.broker.replication.local_reads import CatchUp, LocalReads
from holdfast.broker.replication.master_return import MasterReturn
from holdfast.broker.replication.replica_mappings import ReplicaMappings
from holdfast.broker.replication.replica_report import ReplicaReport
from holdfast.broker.replication.replica_topics import ReplicaTopics
from holdfast.broker.replication.stream_login import StreamGate, parse_trusted
from holdfast.broker.replication.table_sync import ReplicaTables, TableSync
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.kept_files import KeptFiles
from holdfast.broker.tables.locks import QueueLocks
from holdfast.broker.tables.remote_members import RemoteMembers
from holdfast.broker.tables.stats import BrokerStats
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component, collect_handlers
from holdfast.machine.pressure import MemoryPressure
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.delay import DelayLevels
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.host import pack_host

_Component = TypeVar("_Component", bound=Component)


class Components:
    """The components of one broker.

    A component gets its collaborators in its constructor, so each is built after everything that it uses. The loops ask
    the components in that order.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        disk: Disk,
        rng: random.Random,
        now_ms: int,
        pressure: MemoryPressure | None = None,
        secrets: RoleSecrets | None = None,
        acl_folder: tuple[Disk, str] | None = None,
    ) -> None:
        self.options = options
        self.store = store
        self.turn = Turn(now_ms)
        self.pressure = pressure or MemoryPressure()
        self._disk = disk
        self._rng = rng
        self._secrets = secrets or RoleSecrets.none(rng)
        self._acl_folder = acl_folder
        self._host = pack_host(options.address)
        self._built: list[Component] = []
        self._build_tables()
        self._build_access()
        self._build_replication()
        self._build_pulls()
        self._build_relay()
        self._build_deferred()
        self._build_replica_tables()
        self._build_sends()
        self._build_moves()
        self._build_topic_admin()
        self._build_admin()
        self.kept_files = KeptFiles(self._built, options.offset_save_interval_ms, self.turn)

    def _add(self, component: _Component) -> _Component:
        """Add a component that has been built."""
        self._built.append(component)
        return component

    def _build_tables(self) -> None:
        """Build the tables, and what is known of the cluster."""
        add, options, store, disk, turn = self._add, self.options, self.store, self._disk, self.turn
        self.topics = add(TopicTable(disk, options, turn, store))
        self.mappings = add(
            (ReplicaMappings if options.is_replica else Mappings)(options, disk, store, self.topics, turn)
        )
        self.view = ClusterView(options, self.topics.deletions.merge)
        self.groups = add(GroupTable(disk, options, turn))
        self.offsets = add(OffsetTable(disk, turn))
        self.segment_queries = SegmentQueries(store, self.mappings, self.view)
        self.queues = Queues(self.topics, self.segment_queries)
        for topic in self.mappings.adopted:
            self.offsets.adopt_physical(self.mappings, topic)
        self.offsets.clamp(self.topics, self.queues)
        self.stats = add(BrokerStats(turn))
        self._remote_members = RemoteMembers()
        self.clients = add(
            ClientTable(options, self.topics, self.groups, self._remote_members, self.offsets.record_consumer, turn)
        )
        self.locks = add(QueueLocks(turn))
        self.dr_switch = add(DrSwitchSync(disk, self.clients.shorten_timeout, turn))

    def _build_access(self) -> None:
        """Build the components that know who sends a request, and whether it is admitted."""
        add, options, turn = self._add, self.options, self.turn
        self.access_store = add(AccessStore(turn, self._disk))
        self.authority = authority = Authority(self.access_store, options.cluster)
        self.sessions = sessions = Sessions(authority)
        self.door = add(
            Door(
                "broker",
                is_enabled=options.auth,
                sessions=sessions,
                authority=authority,
                turn=turn,
                topics=self.topics,
            )
        )
        login_server = add(
            LoginServer(
                "broker",
                options.name,
                is_required=options.auth,
                sessions=sessions,
                authority=authority,
                secrets=self._secrets,
                turn=turn,
                addresses=(options.address, options.ha_address),
            )
        )
        configured = (*options.namesrv, *filter(None, (options.ha_master,)))
        login = self._login = login_settings(options, self._secrets, configured)
        self._stream_gate = StreamGate(
            self.door, login_server, parse_trusted(options.trusted_brokers), turn, is_required=options.auth
        )
        self.rpc = Rpc(turn, login, self.door.trust)
        identify = self.door.identity_of
        add(UserRequests(self.access_store, identify, authority.find_user, self.door.guard_change, turn))
        add(RuleRequests(self.access_store, self.door.guard_change, turn))
        self._access_sync = add(AccessSync(options.namesrv, self.access_store, self.rpc, turn))
        add(SyncRequests(self.access_store, identify, self._access_sync.note_push))
        if self._acl_folder is not None:
            add(AclFollower(self.access_store, *self._acl_folder, turn))

    def _build_replication(self) -> None:
        """Build the components that replicate the log."""
        self.ha_master = self._add(HaMaster(self.options, self.store, self._disk, self.turn, self._stream_gate))
        self.reply_gate = self._add(ReplyGate(self.options, self.store, self.ha_master, self.turn))
        self._known_topics = ReplicaTopics(self.topics, self.store)
        self.ha_replica = self._add(HaReplica(self.options, self.store, self._known_topics, self.turn, self._login))

    def _build_pulls(self) -> None:
        """Build the components that serve consumers."""
        add, options, turn = self._add, self.options, self.turn
        self.pull_handler = add(
            PullHandler(options, self.groups, self.clients, self.offsets, self.stats, self.queues, self.pressure, turn)
        )
        self.refused_pulls = add(RefusedPulls(self.door, turn, options.parked_pulls_max))
        add(ParkedPullCheck(self.pull_handler.parked_pulls, self.refused_pulls, self.door, turn))
        self.batch_cache = self.pull_handler.batch_cache
        self.record_locator = RecordLocator(
            self.view, self.batch_cache, self.pull_handler.delivered_ranges, self.store.find_queue
        )
        self.consumed_topics = add(ConsumedTopics(options, self.topics, self.offsets, self.view, turn))
        self.lag_calculator = LagCalculator(self.topics, self.clients, self.offsets, self.queues, self.consumed_topics)

    def _build_relay(self) -> None:
        """Build the components that pass requests and messages to the brokers that lead their queues."""
        add, options, turn = self._add, self.options, self.turn
        self._leases = HeldLeases(options, self.mappings)
        guests = Guests(turn.now_ms)
        suspects = self._suspects = SuspectTopics(turn)
        self.relay = add(
            Relay(
                options,
                self.queues,
                self.view,
                guests,
                self._leases,
                suspects,
                turn,
                self.pull_handler.delivered_ranges,
                self.door,
            )
        )
        self.relayed_clients = add(RelayedClients(guests, self.relay, self.door, turn))
        add(LockRequests(self.locks, self.relay))
        self.members = add(
            GroupMembers(
                options,
                self.clients,
                self.groups,
                self.mappings,
                self.view,
                self.rpc,
                self._remote_members,
                turn,
            )
        )
        self._levels = DelayLevels(options.delay_levels)
        self.writer = LogWriter(options, self.queues, self._levels, self.relay.is_held, turn)
        self._gate = SendGate(options, self.store, self.pressure)
        self._forwarded_names = ForwardedNames(self.store, self.reply_gate.is_acknowledged, turn)
        self.forwarder = add(MessageForwarder(options.name, self.relay, self.writer, self._forwarded_names, self._gate))

    def _build_deferred(self) -> None:
        """Build the components that deliver messages later: after a delay, or when their transaction is decided."""
        add, options, turn = self._add, self.options, self.turn
        self.delayed_delivery = add(
            DelayedDelivery(self._disk, options, self._levels, self.store, self.writer, self.forwarder, turn)
        )
        remote_transactions = add(
            RemoteTransactions(
                self.clients,
                self.members,
                self.record_locator,
                self.pull_handler.delivered_ranges,
                self.view,
                self.forwarder,
                self.door,
                turn,
            )
        )
        self.transaction_handler = add(
            TransactionHandler(
                options,
                self.topics,
                self.offsets,
                self.writer,
                remote_transactions,
                turn,
                store_host=self._host,
            )
        )

    def _build_replica_tables(self) -> None:
        """Build the components that copy a master's tables, and the registration, which names the master."""
        add, options, disk, turn = self._add, self.options, self._disk, self.turn
        catch_up = CatchUp()
        self.local_reads = LocalReads(options, self.pull_handler, self.dr_switch.is_open_for, catch_up, turn)
        self.table_sync = add(
            TableSync(
                options,
                disk,
                self.store,
                ReplicaTables(
                    self.topics, self.groups, self.offsets, self.delayed_delivery, self.mappings, self._known_topics
                ),
                self.ha_replica,
                catch_up,
                self.local_reads.report,
                turn,
            )
        )
        self.registration = add(
            Registrar(
                options,
                self.topics,
                self.mappings,
                self.rpc,
                turn,
                self.dr_switch,
                self._set_master,
                self._access_sync.note_digest,
            )
        )
        add(MasterReturn(options, self.ha_master, self.topics, self.offsets, self.registration, turn))
        self.replica_report = add(ReplicaReport(options, self.store, self.ha_master, self.reply_gate, self.ha_replica))

    def _build_sends(self) -> None:
        """Build the components that store what clients send."""
        add, options, turn, host = self._add, self.options, self.turn, self._host
        self.auto_create_guard = add(
            AutoCreateGuard(options, self.topics, self.mappings, self.view, self.relay, self.registration, turn)
        )
        self.sink_progress = add(
            SinkProgress(self._disk, self.store, self.mappings, self.reply_gate.is_acknowledged, turn)
        )
        slow_sends = SlowSends(
            options,
            self.groups,
            self.writer,
            self.transaction_handler,
            self.relay,
            self.auto_create_guard,
            turn,
            rng=self._rng,
        )
        batch_sends = BatchSends(options, slow_sends, self.stats, self.sink_progress, turn, store_host=host)
        self.fast_sends = FastSends(
            options, self._gate, slow_sends, batch_sends, self.stats, self.relay, self.auto_create_guard, turn
        )
        add(
            SendBackHandler(
                self.topics,
                self.groups,
                self.clients,
                self.writer,
                self.stats,
                self.record_locator,
                self.door,
                rng=self._rng,
            )
        )
        add(
            ReplyHandler(
                options,
                self.auto_create_guard,
                self.clients,
                self.writer,
                self.stats,
                turn,
                store_host=host,
            )
        )

    def _build_moves(self) -> None:
        """Build the components that move logical queues between brokers, also without the consent of their leader."""
        add, options, turn = self._add, self.options, self.turn
        self._payload = MovePayload(
            self.offsets, self.groups, self.locks, self._forwarded_names, self.sink_progress, self.members, turn
        )
        self.move_source = add(
            MoveSource(
                options, self.mappings, self.view, self.relay, self.topics, self._payload, self.pull_handler, turn
            )
        )
        move_target = add(
            MoveTarget(options, self.mappings, self.view, self.topics, self._payload, self._suspects, turn)
        )
        self.segment_expiry = add(
            SegmentExpiry(self.store, self.mappings, self.segment_queries, self.move_source, turn)
        )
        self.offset_backup = add(OffsetBackup(options, self._disk, self.offsets, self.mappings, self.view, turn))
        self.forced_moves = add(
            ForcedMoves(
                options, self.mappings, self.view, self.relay, self.move_source, move_target, self.offset_backup, turn
            )
        )
        self.lease_renewal = add(
            LeaseRenewal(
                options, self.mappings, self.topics, self.relay, self.forced_moves, self._leases, turn, self._disk
            )
        )

    def _build_topic_admin(self) -> None:
        """Build the components through which tools change topics and their logical queues."""
        add = self._add
        topic_admin = add(
            TopicAdmin(
                self.topics, self.offsets, self.offset_backup, self.queues, self.stats, self.registration, self.view
            )
        )
        floors = add(OffsetFloors(self.mappings, self.view, self.offsets, self.offset_backup))
        add(
            StaticAdmin(
                self.topics,
                self.mappings,
                self.offsets,
                self.registration,
                self.view,
                floors,
                self._payload,
                self.move_source.move_and_wait,
            )
        )
        add(
            MappingAdmin(
                self.store,
                self.mappings,
                self.view,
                self.topics,
                floors,
                self.move_source,
                topic_admin.delete_static,
                self.turn,
            )
        )

    def _build_admin(self) -> None:
        """Build the components that only answer queries and execute administrative commands."""
        add, options, store, turn = self._add, self.options, self.store, self.turn
        add(QueryHandler(store, self.clients, self.queues, self.batch_cache, self.record_locator, self.door))
        add(OffsetRequests(self.offsets, self.topics, self.groups, self.queues))
        add(OffsetResetHandler(self.topics, self.clients, self.offsets, self.queues, turn))
        add(
            GroupAdmin(
                options, self.topics, self.groups, self.clients, self.offsets, self.lag_calculator, self.stats, turn
            )
        )
        add(ClientAdmin(options, self.clients, self.door, store.find_queue))
        add(
            BrokerAdmin(
                options,
                self.topics,
                self.mappings,
                self.stats,
                self.delayed_delivery,
                self.replica_report,
                self.local_reads,
                turn,
            )
        )

    def _set_master(self, ha_address: str, address: str) -> None:
        self.ha_replica.set_master(ha_address)
        self.table_sync.set_master(address)

    # What the core asks of all components.

    def handlers(self) -> Handlers:
        """Return the handler of each request code that is not on the hot path."""
        return collect_handlers(self._built)

    def timers(self) -> dict[str, list[Callable[[], None]]]:
        """Return what each timer runs, by timer name."""
        timers: dict[str, list[Callable[[], None]]] = {}
        for component in self._built:
            for name, run in component.timers().items():
                timers.setdefault(name, []).append(run)
            for file in component.files():
                if file.retry_timer is not None:
                    timers.setdefault(file.retry_timer, []).append(file.save_if_changed)
        timers.setdefault(SAVE_TIMER, []).append(self.kept_files.on_timer)
        return timers

    def listeners(self, method: str) -> list[Callable[[Any], None]]:
        """Return the given method of every component that has one of its own."""
        return [
            getattr(component, method)
            for component in self._built
            if getattr(type(component), method) is not getattr(Component, method)
        ]

    def start(self) -> None:
        """Start the background work of every component that does it in this role."""
        for component in self._built:
            if not (self.options.is_replica and isinstance(component, MasterComponent)):
                component.start()
        self.kept_files.start()

    def stop(self) -> None:
        """Stop every component, the last one first; then persist what is only in memory."""
        for component in reversed(self._built):
            component.stop()
        self.kept_files.stop()

    def metrics(self) -> Iterator[Sample]:
        """Yield the metrics of every component."""
        for component in self._built:
            yield from component.metrics()
        yield from self.kept_files.metrics()
