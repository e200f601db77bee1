"""Builds the components of a broker and lists their handlers and timers.

Each component gets only the collaborators that it needs. A component offers handlers by request code. A component with
background work is started, woken by its own timer, and stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from holdfast.broker.admin.broker_admin import BrokerAdmin
from holdfast.broker.admin.client_admin import ClientAdmin
from holdfast.broker.admin.group_admin import GroupAdmin
from holdfast.broker.admin.mapping_admin import MappingAdmin
from holdfast.broker.admin.offset_reset import OffsetResetHandler
from holdfast.broker.admin.queries import QueryHandler
from holdfast.broker.admin.static_admin import StaticAdmin
from holdfast.broker.admin.topic_admin import TopicAdmin
from holdfast.broker.consume.consumed_topics import TIMER as CONSUMED_TIMER
from holdfast.broker.consume.consumed_topics import ConsumedTopics
from holdfast.broker.consume.consumer_offsets import NAME as OFFSETS_FILE
from holdfast.broker.consume.consumer_offsets import TIMER as OFFSETS_TIMER
from holdfast.broker.consume.consumer_offsets import OffsetRequests, OffsetTable
from holdfast.broker.consume.lag import LagCalculator
from holdfast.broker.consume.pull import PullHandler
from holdfast.broker.deferred.remote_transactions import RemoteTransactions
from holdfast.broker.deferred.scheduled_messages import NAME as DELAYS_FILE
from holdfast.broker.deferred.scheduled_messages import TIMER as DELAYS_TIMER
from holdfast.broker.deferred.scheduled_messages import DelayedDelivery
from holdfast.broker.deferred.transactions import TIMER as TRANSACTIONS_TIMER
from holdfast.broker.deferred.transactions import TransactionHandler
from holdfast.broker.failover.forced_open import TIMER as FENCES_TIMER
from holdfast.broker.failover.forced_open import ForcedMoves
from holdfast.broker.failover.offset_backup import NAME as COPIES_FILE
from holdfast.broker.failover.offset_backup import TIMER as COPIES_TIMER
from holdfast.broker.failover.offset_backup import OffsetBackup
from holdfast.broker.failover.offset_floors import OffsetFloors
from holdfast.broker.failover.queue_leases import TIMER as LEASES_TIMER
from holdfast.broker.failover.queue_leases import LeaseRenewal
from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.peer_calls import PeerCalls
from holdfast.broker.flow.request import Handlers
from holdfast.broker.flow.turn import Turn
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import NAME as MAPPINGS_FILE
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.messages.writer import LogWriter
from holdfast.broker.move.move_payload import MovePayload
from holdfast.broker.move.move_source import MoveSource
from holdfast.broker.move.move_target import MoveTarget
from holdfast.broker.move.segment_expiry import TIMER as EXPIRY_TIMER
from holdfast.broker.move.segment_expiry import SegmentExpiry
from holdfast.broker.naming.dr_switch_sync import NAME as UNITS_FILE
from holdfast.broker.naming.dr_switch_sync import DrSwitchSync
from holdfast.broker.naming.registration import HELD_TIMER as REGISTRATION_HELD_TIMER
from holdfast.broker.naming.registration import OVERDUE_TIMER as REGISTRATION_OVERDUE_TIMER
from holdfast.broker.naming.registration import REDIAL_TIMER as REGISTRATION_REDIAL_TIMER
from holdfast.broker.naming.registration import TIMER as REGISTRATION_TIMER
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.options import BrokerOptions
from holdfast.broker.produce.exactly_once import SinkProgress
from holdfast.broker.produce.fast_send import FastSends
from holdfast.broker.produce.request_reply import ReplyHandler
from holdfast.broker.produce.send_back import SendBackHandler
from holdfast.broker.produce.slow_send import SlowSends
from holdfast.broker.relay.auto_create_guard import AutoCreateGuard
from holdfast.broker.relay.forward_dedup import ForwardedNames
from holdfast.broker.relay.group_gossip import TIMER as MEMBERS_TIMER
from holdfast.broker.relay.group_gossip import GroupMembers
from holdfast.broker.relay.lock_requests import LockRequests
from holdfast.broker.relay.message_forwarder import MessageForwarder
from holdfast.broker.relay.record_locator import RecordLocator
from holdfast.broker.relay.relay import TIMER as RELAYING_TIMER
from holdfast.broker.relay.relay import Relay
from holdfast.broker.relay.relay_server import RelayedClients
from holdfast.broker.replication.ack_gate import TIMER as GATE_TIMER
from holdfast.broker.replication.ack_gate import AckGate
from holdfast.broker.replication.ha_master import TIMER as SHIPPING_TIMER
from holdfast.broker.replication.ha_master import HaMaster
from holdfast.broker.replication.ha_replica import TIMER as FOLLOWING_TIMER
from holdfast.broker.replication.ha_replica import HaReplica
from holdfast.broker.replication.local_reads import LocalReads
from holdfast.broker.replication.master_return import MasterReturn
from holdfast.broker.replication.replica_mappings import ReplicaMappings
from holdfast.broker.replication.replica_report import ReplicaReport
from holdfast.broker.replication.table_sync import NAME as COMMITS_FILE
from holdfast.broker.replication.table_sync import TIMER as REPLICA_TIMER
from holdfast.broker.replication.table_sync import ReplicaTables, TableSync
from holdfast.broker.tables.client_calls import TIMER as RELAYS_TIMER
from holdfast.broker.tables.client_calls import ClientCalls
from holdfast.broker.tables.clients import TIMER as CLIENTS_TIMER
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.config_store import report_fallbacks
from holdfast.broker.tables.deletion_markers import NAME as DELETIONS_FILE
from holdfast.broker.tables.groups import NAME as GROUPS_FILE
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.locks import QueueLocks
from holdfast.broker.tables.stats import TIMER as STATS_TIMER
from holdfast.broker.tables.stats import BrokerStats
from holdfast.broker.tables.topics import NAME as TOPICS_FILE
from holdfast.broker.tables.topics import TopicTable
from holdfast.broker.tables.unwritten_files import UnwrittenFiles
from holdfast.machine.effects import Effect, Log
from holdfast.machine.events import ChannelId
from holdfast.machine.pressure import MemoryPressure
from holdfast.model.delay import DelayLevels
from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.store.base.config_files import config_path
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.host import pack_host

TimerHandler = Callable[[str, int, list[Effect]], Procedure[list[Effect]] | None]

_CONFIG_FILES: Final = (
    TOPICS_FILE,
    GROUPS_FILE,
    OFFSETS_FILE,
    DELAYS_FILE,
    MAPPINGS_FILE,
    COPIES_FILE,
    UNITS_FILE,
    COMMITS_FILE,
    DELETIONS_FILE,
)


class Components:
    """The components of one broker."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        disk: Disk,
        rng: random.Random,
        now_ms: int,
        pressure: MemoryPressure | None = None,
    ) -> None:
        host = pack_host(options.address)
        levels = DelayLevels(options.delay_levels)
        self.options = options
        self.store = store
        self.unwritten_files = UnwrittenFiles()
        self._repair_logs = report_fallbacks(disk, _CONFIG_FILES)
        self.topics = TopicTable(disk, options, now_ms, store)
        self.mappings = (ReplicaMappings if options.is_replica else Mappings)(options, disk, store, self.topics)
        self._repair_logs += self.mappings.repairs
        self.view = ClusterView(options)
        self.groups = GroupTable(disk, options, now_ms)
        self.offsets = OffsetTable(disk, options, now_ms)
        self.segment_queries = SegmentQueries(store, self.mappings, self.view)
        for topic in self.mappings.adopted:
            self.offsets.adopt_physical(self.mappings, topic)
        self._repair_logs += self.offsets.clamp(self.topics, store, self.segment_queries)
        self.pressure = pressure or MemoryPressure()
        self.stats = BrokerStats(now_ms)
        self.clients = ClientTable(options, self.topics, self.groups)
        self.clients.record_consumer = self.offsets.record_consumer
        self.lag_calculator = LagCalculator(self.topics, self.clients, self.offsets, self.segment_queries, store)
        self.locks = QueueLocks()
        self.client_calls = ClientCalls()
        self.peer_calls = PeerCalls()
        self.dr_switch = DrSwitchSync(disk)
        self.dr_switch.on_close = self.clients.shorten_timeout
        self.registration = Registrar(options, self.topics, self.mappings, self.unwritten_files, self.dr_switch)
        self.writer = LogWriter(store, levels, self.mappings, message_size_max=options.message_size_max)
        self.delayed_delivery = DelayedDelivery(disk, options, levels, store, self.writer, self.unwritten_files)
        self.transaction_handler = TransactionHandler(
            options, store, self.topics, self.clients, self.offsets, self.writer, store_host=host
        )
        self._build_sends(options, disk, rng, host)
        self.pull_handler = PullHandler(
            options, store, self.topics, self.groups, self.clients, self.offsets, self.stats, self.segment_queries
        )
        self.pull_handler.watch_pressure(self.pressure)
        self.batch_cache = self.pull_handler.batch_cache
        self.record_locator = RecordLocator(self.view, self.batch_cache, self.pull_handler.delivered_ranges)
        self.send_back_handler = SendBackHandler(
            self.topics, self.groups, self.clients, self.writer, self.stats, self.record_locator, chance=rng
        )
        self.reply_handler = ReplyHandler(
            options, self.topics, self.clients, self.client_calls, self.writer, self.stats, store_host=host
        )
        self._build_admin(options, store)
        self.turn = Turn(now_ms)
        self._build_replication(options, disk)
        self._build_moving(options, disk, now_ms)
        self._timers = self._timer_handlers()

    def _build_sends(self, options: BrokerOptions, disk: Disk, rng: random.Random, host: bytes) -> None:
        """Build the components that store what producers send."""
        self.slow_sends = SlowSends(
            options,
            self.store,
            self.topics,
            self.groups,
            self.writer,
            self.transaction_handler,
            chance=rng,
            pressure=self.pressure,
        )
        self.fast_sends = FastSends(
            options, self.store, self.topics, self.mappings, self.slow_sends, self.stats, store_host=host
        )
        self.sink_progress = self.fast_sends.batches.sinks = SinkProgress(disk, self.store, self.mappings)

    def _build_admin(self, options: BrokerOptions, store: MessageStore) -> None:
        """Build the components that only answer queries and execute administrative commands."""
        self.query_handler = QueryHandler(
            store, self.clients, self.segment_queries, self.batch_cache, self.record_locator
        )
        self.offset_requests = OffsetRequests(self.offsets, self.topics, self.groups, store, self.segment_queries)
        self.offset_reset_handler = OffsetResetHandler(
            options, self.topics, self.clients, self.offsets, store, self.segment_queries
        )
        self.group_admin = GroupAdmin(
            options, self.topics, self.groups, self.clients, self.offsets, self.lag_calculator, store, self.stats
        )
        self.client_admin = ClientAdmin(options, self.clients, self.client_calls)
        self.broker_admin = BrokerAdmin(options, self.topics, self.mappings, store, self.stats, self.delayed_delivery)

    def _build_replication(self, options: BrokerOptions, disk: Disk) -> None:
        """Build the components that replicate the log."""
        self.view.on_markers = lambda text: self.topics.deletions.merge(text, self.turn.effects)
        self.ha_master = HaMaster(options, self.store, self.turn)
        self.ack_gate = AckGate(options, self.store, self.ha_master)
        self.sink_progress.is_acknowledged = self.ack_gate.is_acknowledged
        self.ha_replica = HaReplica(options, self.store, self.turn)
        self.table_sync = TableSync(
            options,
            disk,
            self.store,
            ReplicaTables(self.topics, self.groups, self.offsets, self.delayed_delivery, self.mappings),
            self.ha_replica,
            self.turn,
        )
        self.local_reads = LocalReads(
            options, self.pull_handler, self.dr_switch.is_open_for, self.table_sync.catch_up, self.turn
        )
        self.table_sync.report = self.local_reads.report
        self.broker_admin.note_report = self.local_reads.note_report
        self.master_return = MasterReturn(options, disk, self.topics, self.offsets, self.registration, self.turn)
        self.registration.on_master = self._set_master
        self.replica_report = self.broker_admin.replication = ReplicaReport(
            options, self.store, self.ha_master, self.ack_gate, self.ha_replica
        )

    def _build_moving(self, options: BrokerOptions, disk: Disk, now_ms: int) -> None:
        """Build the components that move logical queues between brokers."""
        self.relayed_clients = RelayedClients(now_ms, self.turn)
        self.relay = Relay(
            options, self.mappings, self.view, self.relayed_clients, self.turn, self.pull_handler.delivered_ranges
        )
        self.auto_create_guard = AutoCreateGuard(
            options, self.topics, self.mappings, self.view, self.relay, self.registration, self.turn
        )
        self.fast_sends.is_away, self.fast_sends.away_indexes = self.relay.is_away, []
        self.fast_sends.is_create_unsafe = self.auto_create_guard.is_create_unsafe
        self.writer.is_held = self.relay.is_held
        forwarded_names = ForwardedNames(self.store)
        forwarded_names.is_acknowledged = self.ack_gate.is_acknowledged
        move_payload = MovePayload(self.offsets, self.groups, self.locks, forwarded_names, self.sink_progress)
        self.lock_requests = LockRequests(self.locks, self.mappings, self.relay)
        self.move_source = MoveSource(
            options,
            self.mappings,
            self.view,
            self.relay,
            self.topics,
            move_payload,
            self.pull_handler,
            self.turn,
        )
        self.move_target = MoveTarget(options, self.mappings, self.view, self.topics, move_payload, self.turn)
        self.offset_backup = OffsetBackup(options, disk, self.offsets, self.mappings, self.view, self.turn)
        self.forced_moves = ForcedMoves(
            options,
            self.mappings,
            self.view,
            self.relay,
            self.move_source,
            self.move_target,
            self.offset_backup,
            self.turn,
        )
        self.lease_renewal = LeaseRenewal(
            options, self.mappings, self.topics, self.relay, self.forced_moves, self.turn, disk
        )
        self.forwarder = MessageForwarder(
            options.name, self.relay, self.writer, forwarded_names, self.slow_sends.find_refusal
        )
        self.delayed_delivery.forwarder = self.forwarder
        self.members = GroupMembers(
            options, self.clients, self.groups, self.mappings, self.view, self.peer_calls, self.turn
        )
        self.consumed_topics = ConsumedTopics(options, self.topics, self.offsets, self.view, self.turn)
        self.lag_calculator.remote_pairs = self.consumed_topics.pairs
        self.remote_transactions = RemoteTransactions(
            self.clients,
            self.members,
            self.record_locator,
            self.pull_handler.delivered_ranges,
            self.view,
            self.forwarder,
            self.turn,
        )
        self.transaction_handler.remote = self.remote_transactions
        self.move_source.announce_members = self.members.report_to
        self.segment_expiry = SegmentExpiry(
            self.store, self.mappings, self.segment_queries, self.move_source, self.turn
        )
        self._build_mapping_admin(move_payload)

    def _build_mapping_admin(self, move_payload: MovePayload) -> None:
        """Build the components through which tools change topics and their logical queues."""
        self.topic_admin = TopicAdmin(
            self.topics,
            self.offsets,
            self.offset_backup,
            self.segment_queries,
            self.store,
            self.stats,
            self.registration,
            self.view,
        )
        self.offset_floors = OffsetFloors(self.mappings, self.view, self.offsets, self.offset_backup)
        self.static_admin = StaticAdmin(
            self.topics, self.mappings, self.offsets, self.registration, self.view, self.offset_floors, move_payload
        )
        self.static_admin.move_queues = self.move_source.move_and_wait
        self.mapping_admin = MappingAdmin(
            self.store,
            self.mappings,
            self.view,
            self.topics,
            self.offset_floors,
            self.move_source,
            self.topic_admin.delete_static,
            self.turn,
        )

    def _timer_handlers(self) -> dict[str, TimerHandler]:
        """Return the handler of each timer, by timer name."""
        return {
            CLIENTS_TIMER: self._clients_timer,
            OFFSETS_TIMER: self._offsets_timer,
            STATS_TIMER: self.stats.on_timer,
            RELAYS_TIMER: self.client_calls.on_timer,
            RELAYING_TIMER: self.relay.on_timer,
            FENCES_TIMER: self.forced_moves.on_timer,
            LEASES_TIMER: self.lease_renewal.on_timer,
            EXPIRY_TIMER: self.segment_expiry.on_timer,
            MEMBERS_TIMER: self.members.on_timer,
            CONSUMED_TIMER: self.consumed_topics.on_timer,
            COPIES_TIMER: self.offset_backup.on_timer,
            REGISTRATION_TIMER: self.registration.on_timer,
            REGISTRATION_HELD_TIMER: self.registration.on_timer,
            REGISTRATION_REDIAL_TIMER: self.registration.on_timer,
            REGISTRATION_OVERDUE_TIMER: self.registration.on_timer,
            DELAYS_TIMER: self.delayed_delivery.on_timer,
            SHIPPING_TIMER: self.ha_master.on_timer,
            GATE_TIMER: self.ack_gate.on_timer,
            FOLLOWING_TIMER: self.ha_replica.on_timer,
            REPLICA_TIMER: self.table_sync.on_timer,
            TRANSACTIONS_TIMER: self.transaction_handler.on_timer,
        }

    def handlers(self) -> Handlers:
        """Return the handler of each request code that is not on the hot path."""
        handlers: Handlers = {}
        for component in (
            self.clients,
            self.members,
            self.consumed_topics,
            self.dr_switch,
            self.lock_requests,
            self.auto_create_guard,
            self.relayed_clients,
            self.move_source,
            self.move_target,
            self.forced_moves,
            self.offset_backup,
            self.offset_floors,
            self.table_sync,
            self.mapping_admin,
            self.transaction_handler,
            self.remote_transactions,
            self.forwarder,
            self.send_back_handler,
            self.reply_handler,
            self.query_handler,
            self.offset_requests,
            self.offset_reset_handler,
            self.topic_admin,
            self.static_admin,
            self.group_admin,
            self.client_admin,
            self.broker_admin,
        ):
            handlers |= component.handlers()
        return handlers

    def started(self, now_ms: int) -> list[Effect]:
        """Start every component that has background work."""
        effects: list[Effect] = [*self._repair_logs]
        for component in (self.master_return, self.clients, self.offsets, self.stats):
            component.start(now_ms, effects)
        if self.options.is_replica:
            # The other background work writes to the log, which a replica must not do.
            self.ha_replica.start(now_ms, effects)
            self.table_sync.start(now_ms, effects)
            return effects
        for worker in (
            self.delayed_delivery,
            self.transaction_handler,
            self.move_source,
            self.move_target,
            self.forced_moves,
            self.lease_renewal,
            self.segment_expiry,
            self.members,
            self.consumed_topics,
            self.offset_backup,
        ):
            worker.start(now_ms, effects)
        return effects

    def timer_fired(self, name: str, now_ms: int, effects: list[Effect]) -> Procedure[list[Effect]] | None:
        """Run the component that owns timer *name*; return a procedure if it needs log bytes."""
        return self._timers[name](name, now_ms, effects)

    def handle_response(self, channel: ChannelId, command: Command) -> list[Effect]:
        """Pass a response to its requester: the registration, or a call to a client."""
        effects = self.registration.answered(channel, command)
        return self.client_calls.handle_response(channel, command) if effects is None else effects

    def channel_closed(self, channel: ChannelId, now_ms: int) -> list[Effect]:
        """Drop a closed connection from every component."""
        self.pull_handler.parked_pulls.drop_channel(channel)
        self.pull_handler.delivered_ranges.forget(channel)
        self.relay.forget_channel(channel)
        return [
            *self.ha_master.closed(channel),
            *self.ha_replica.closed(channel, now_ms),
            *self.registration.channel_closed(channel, now_ms),
            *self.client_calls.channel_closed(channel),
            *self.clients.remove_channel(channel, now_ms),
        ]

    def leaving(self) -> list[Effect]:
        """Unregister from the name servers. Continue to serve clients that have not learned of it yet."""
        effects: list[Effect] = []
        self.registration.stop(effects)
        return effects

    def stopping(self, now_ms: int) -> list[Effect]:
        """Persist the state that is only in memory; unregister first if that has not been done."""
        effects = [] if self.registration.is_leaving else self.leaving()
        self.members.stop(effects)
        self.relay.stop()
        self.topics.save()
        self.groups.save()
        self.offsets.stop(now_ms, effects)
        self.mappings.offer_save(now_ms, effects)
        self.sink_progress.offer_save(effects)
        self.offset_backup.offer_save(effects)
        if self.options.is_replica:
            self.table_sync.offer_save(effects)
        else:
            self.delayed_delivery.stop(now_ms, effects)
        return effects

    def _set_master(self, ha_address: str, address: str) -> None:
        self.ha_replica.set_master(ha_address)
        self.table_sync.set_master(address)

    def _offsets_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        self.offsets.on_timer(name, now_ms, effects)
        self.mappings.offer_save(now_ms, effects)
        self.sink_progress.offer_save(effects)
        self.offset_backup.offer_save(effects)
        for path, table in ((config_path(TOPICS_FILE), self.topics), (config_path(GROUPS_FILE), self.groups)):
            try:
                table.save()
                effects += self.unwritten_files.write_succeeded(path)
            except DiskFull as error:
                effects += self.unwritten_files.write_failed(path, str(error))
            except DiskFailed as error:
                effects.append(Log("error", "disk failed", {"reason": str(error)}))

    def _clients_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        self.clients.on_timer(name, now_ms, effects)
        self.locks.expire(now_ms)
