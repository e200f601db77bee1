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
from holdfast.broker.admin.offset_reset import OffsetResets
from holdfast.broker.admin.queries import Queries
from holdfast.broker.admin.static_admin import StaticAdmin
from holdfast.broker.admin.topic_admin import TopicAdmin
from holdfast.broker.consume.consumed_topics import TIMER as CONSUMED_TIMER
from holdfast.broker.consume.consumed_topics import ConsumedTopics
from holdfast.broker.consume.consumer_offsets import NAME as OFFSETS_FILE
from holdfast.broker.consume.consumer_offsets import TIMER as OFFSETS_TIMER
from holdfast.broker.consume.consumer_offsets import OffsetRequests, OffsetTable
from holdfast.broker.consume.lag import Lags
from holdfast.broker.consume.pull import Pulls
from holdfast.broker.deferred.remote_transactions import FarTransactions
from holdfast.broker.deferred.scheduled_messages import NAME as DELAYS_FILE
from holdfast.broker.deferred.scheduled_messages import TIMER as DELAYS_TIMER
from holdfast.broker.deferred.scheduled_messages import Delays
from holdfast.broker.deferred.transactions import TIMER as TRANSACTIONS_TIMER
from holdfast.broker.deferred.transactions import Transactions
from holdfast.broker.failover.forced_open import TIMER as FENCES_TIMER
from holdfast.broker.failover.forced_open import Forcing
from holdfast.broker.failover.offset_backup import NAME as COPIES_FILE
from holdfast.broker.failover.offset_backup import TIMER as COPIES_TIMER
from holdfast.broker.failover.offset_backup import OffsetCopies
from holdfast.broker.failover.offset_floors import Floors
from holdfast.broker.failover.queue_leases import TIMER as LEASES_TIMER
from holdfast.broker.failover.queue_leases import Leases
from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.peer_calls import Calls
from holdfast.broker.flow.request import Handlers
from holdfast.broker.flow.turn import Errands
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import NAME as MAPPINGS_FILE
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.mapping.segment_queries import StaticReads
from holdfast.broker.messages.writer import LogWriter
from holdfast.broker.move.move_payload import Luggage
from holdfast.broker.move.move_source import Handover
from holdfast.broker.move.move_target import Takeover
from holdfast.broker.move.segment_expiry import TIMER as EXPIRY_TIMER
from holdfast.broker.move.segment_expiry import Expiry
from holdfast.broker.naming.dr_switch_sync import NAME as UNITS_FILE
from holdfast.broker.naming.dr_switch_sync import UnitSwitch
from holdfast.broker.naming.registration import HELD_TIMER as REGISTRATION_HELD_TIMER
from holdfast.broker.naming.registration import OVERDUE_TIMER as REGISTRATION_OVERDUE_TIMER
from holdfast.broker.naming.registration import REDIAL_TIMER as REGISTRATION_REDIAL_TIMER
from holdfast.broker.naming.registration import TIMER as REGISTRATION_TIMER
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.options import BrokerOptions
from holdfast.broker.produce.exactly_once import SinkBook
from holdfast.broker.produce.fast_send import Sends
from holdfast.broker.produce.request_reply import Replies
from holdfast.broker.produce.send_back import SendBacks
from holdfast.broker.produce.slow_send import CarefulSends
from holdfast.broker.relay.auto_create_guard import NewTopics
from holdfast.broker.relay.forward_dedup import Forwarded
from holdfast.broker.relay.group_gossip import TIMER as MEMBERS_TIMER
from holdfast.broker.relay.group_gossip import GroupMembers
from holdfast.broker.relay.lock_requests import LockRequests
from holdfast.broker.relay.message_forwarder import Forwards
from holdfast.broker.relay.record_locator import Whereabouts
from holdfast.broker.relay.relay import TIMER as RELAYING_TIMER
from holdfast.broker.relay.relay import Relaying
from holdfast.broker.relay.relay_server import Guests
from holdfast.broker.replication.ack_gate import TIMER as GATE_TIMER
from holdfast.broker.replication.ack_gate import ReplicaGate
from holdfast.broker.replication.ha_master import TIMER as SHIPPING_TIMER
from holdfast.broker.replication.ha_master import Shipping
from holdfast.broker.replication.ha_replica import TIMER as FOLLOWING_TIMER
from holdfast.broker.replication.ha_replica import Following
from holdfast.broker.replication.local_reads import LocalReads
from holdfast.broker.replication.master_return import Homecoming
from holdfast.broker.replication.replica_mappings import CopiedMappings
from holdfast.broker.replication.replica_report import ReplicaReport
from holdfast.broker.replication.table_sync import NAME as COMMITS_FILE
from holdfast.broker.replication.table_sync import TIMER as REPLICA_TIMER
from holdfast.broker.replication.table_sync import ReplicaSync, Tables
from holdfast.broker.tables.client_calls import TIMER as RELAYS_TIMER
from holdfast.broker.tables.client_calls import Relays
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

OnTimer = Callable[[str, int, list[Effect]], Procedure[list[Effect]] | None]

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


class Rooms:
    """The components of one broker."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        disk: Disk,
        chance: random.Random,
        now_ms: int,
        pressure: MemoryPressure | None = None,
    ) -> None:
        host = pack_host(options.address)
        levels = DelayLevels(options.delay_levels)
        self.options = options
        self.store = store
        self.unwritten = UnwrittenFiles()
        self._repairs = report_fallbacks(disk, _CONFIG_FILES)
        self.topics = TopicTable(disk, options, now_ms, store)
        self.mappings = (CopiedMappings if options.is_replica else Mappings)(options, disk, store, self.topics)
        self._repairs += self.mappings.repairs
        self.view = ClusterView(options)
        self.groups = GroupTable(disk, options, now_ms)
        self.offsets = OffsetTable(disk, options, now_ms)
        self.static_reads = StaticReads(store, self.mappings, self.view)
        for topic in self.mappings.adopted:
            self.offsets.adopt_physical(self.mappings, topic)
        self._repairs += self.offsets.clamp(self.topics, store, self.static_reads)
        self.pressure = pressure or MemoryPressure()
        self.stats = BrokerStats(now_ms)
        self.clients = ClientTable(options, self.topics, self.groups)
        self.clients.note_consumer = self.offsets.note_consumer
        self.lags = Lags(self.topics, self.clients, self.offsets, self.static_reads, store)
        self.locks = QueueLocks()
        self.relays = Relays()
        self.calls = Calls()
        self.units = UnitSwitch(disk)
        self.units.on_close = self.clients.doubt
        self.registration = Registrar(options, self.topics, self.mappings, self.unwritten, self.units)
        self.writer = LogWriter(store, levels, self.mappings, message_size_max=options.message_size_max)
        self.delays = Delays(disk, options, levels, store, self.writer, self.unwritten)
        self.transactions = Transactions(
            options, store, self.topics, self.clients, self.offsets, self.writer, store_host=host
        )
        self.careful = CarefulSends(
            options,
            store,
            self.topics,
            self.groups,
            self.writer,
            self.transactions,
            chance=chance,
            pressure=self.pressure,
        )
        self.sends = Sends(options, store, self.topics, self.mappings, self.careful, self.stats, store_host=host)
        self.sinks = self.sends.batches.sinks = SinkBook(disk, store, self.mappings)
        self.pulls = Pulls(
            options, store, self.topics, self.groups, self.clients, self.offsets, self.stats, self.static_reads
        )
        self.pulls.watch(self.pressure)
        self.opened = self.pulls.opened
        self.whereabouts = Whereabouts(self.view, self.opened, self.pulls.handed)
        self.send_backs = SendBacks(
            self.topics, self.groups, self.clients, self.writer, self.stats, self.whereabouts, chance=chance
        )
        self.replies = Replies(
            options, self.topics, self.clients, self.relays, self.writer, self.stats, store_host=host
        )
        self._build_admin(options, store)
        self.errands = Errands(now_ms)
        self._build_replication(options, disk)
        self._build_moving(options, disk, now_ms)
        self._timers = self._name_timers()

    def _build_admin(self, options: BrokerOptions, store: MessageStore) -> None:
        """Build the components that only answer queries and execute administrative commands."""
        self.queries = Queries(store, self.clients, self.static_reads, self.opened, self.whereabouts)
        self.offset_requests = OffsetRequests(self.offsets, self.topics, self.groups, store, self.static_reads)
        self.offset_resets = OffsetResets(options, self.topics, self.clients, self.offsets, store, self.static_reads)
        self.group_admin = GroupAdmin(
            options, self.topics, self.groups, self.clients, self.offsets, self.lags, store, self.stats
        )
        self.client_admin = ClientAdmin(options, self.clients, self.relays)
        self.broker_admin = BrokerAdmin(options, self.topics, self.mappings, store, self.stats, self.delays)

    def _build_replication(self, options: BrokerOptions, disk: Disk) -> None:
        """Build the components that replicate the log."""
        self.view.on_markers = lambda text: self.topics.deletions.hear(text, self.errands.effects)
        self.shipping = Shipping(options, self.store, self.errands)
        self.replica_gate = ReplicaGate(options, self.store, self.shipping)
        self.sinks.is_settled = self.replica_gate.is_settled
        self.following = Following(options, self.store, self.errands)
        self.replica_sync = ReplicaSync(
            options,
            disk,
            self.store,
            Tables(self.topics, self.groups, self.offsets, self.delays, self.mappings),
            self.following,
            self.errands,
        )
        self.local_reads = LocalReads(options, self.pulls, self.units.opens, self.replica_sync.catch_up, self.errands)
        self.replica_sync.report = self.local_reads.report
        self.broker_admin.note_report = self.local_reads.note_report
        self.homecoming = Homecoming(options, disk, self.topics, self.offsets, self.registration, self.errands)
        self.registration.on_master = self._learn_master
        self.replication = self.broker_admin.replication = ReplicaReport(
            options, self.store, self.shipping, self.replica_gate, self.following
        )

    def _build_moving(self, options: BrokerOptions, disk: Disk, now_ms: int) -> None:
        """Build the components that move logical queues between brokers."""
        self.guests = Guests(now_ms, self.errands)
        self.relaying = Relaying(options, self.mappings, self.view, self.guests, self.errands, self.pulls.handed)
        self.new_topics = NewTopics(
            options, self.topics, self.mappings, self.view, self.relaying, self.registration, self.errands
        )
        self.sends.is_away, self.sends.away = self.relaying.is_away, []
        self.sends.is_doubtful = self.new_topics.is_doubtful
        self.writer.is_held = self.relaying.is_held
        forwarded = Forwarded(self.store)
        forwarded.is_settled = self.replica_gate.is_settled
        luggage = Luggage(self.offsets, self.groups, self.locks, forwarded, self.sinks)
        self.lock_requests = LockRequests(self.locks, self.mappings, self.relaying)
        self.handover = Handover(
            options,
            self.mappings,
            self.view,
            self.relaying,
            self.topics,
            luggage,
            self.pulls,
            self.errands,
        )
        self.takeover = Takeover(options, self.mappings, self.view, self.topics, luggage, self.errands)
        self.offset_copies = OffsetCopies(options, disk, self.offsets, self.mappings, self.view, self.errands)
        self.forcing = Forcing(
            options,
            self.mappings,
            self.view,
            self.relaying,
            self.handover,
            self.takeover,
            self.offset_copies,
            self.errands,
        )
        self.leases = Leases(options, self.mappings, self.topics, self.relaying, self.forcing, self.errands, disk)
        self.forwards = Forwards(options.name, self.relaying, self.writer, forwarded, self.careful.find_refusal)
        self.delays.forwards = self.forwards
        self.members = GroupMembers(
            options, self.clients, self.groups, self.mappings, self.view, self.calls, self.errands
        )
        self.consumed = ConsumedTopics(options, self.topics, self.offsets, self.view, self.errands)
        self.lags.far_pairs = self.consumed.pairs
        self.far_transactions = FarTransactions(
            self.clients,
            self.members,
            self.whereabouts,
            self.pulls.handed,
            self.view,
            self.forwards,
            self.errands,
        )
        self.transactions.far = self.far_transactions
        self.handover.introduce = self.members.tell
        self.expiry = Expiry(self.store, self.mappings, self.static_reads, self.handover, self.errands)
        self._build_mapping_admin(luggage)

    def _build_mapping_admin(self, luggage: Luggage) -> None:
        """Build the components through which tools change topics and their logical queues."""
        self.topic_admin = TopicAdmin(
            self.topics,
            self.offsets,
            self.offset_copies,
            self.static_reads,
            self.store,
            self.stats,
            self.registration,
            self.view,
        )
        self.floors = Floors(self.mappings, self.view, self.offsets, self.offset_copies)
        self.static_admin = StaticAdmin(
            self.topics, self.mappings, self.offsets, self.registration, self.view, self.floors, luggage
        )
        self.static_admin.hand_over = self.handover.carry_out
        self.mapping_admin = MappingAdmin(
            self.store,
            self.mappings,
            self.view,
            self.topics,
            self.floors,
            self.handover,
            self.topic_admin.delete_static,
            self.errands,
        )

    def _name_timers(self) -> dict[str, OnTimer]:
        """Return the handler of each timer, by timer name."""
        return {
            CLIENTS_TIMER: self._clients_timer,
            OFFSETS_TIMER: self._offsets_timer,
            STATS_TIMER: self.stats.on_timer,
            RELAYS_TIMER: self.relays.on_timer,
            RELAYING_TIMER: self.relaying.on_timer,
            FENCES_TIMER: self.forcing.on_timer,
            LEASES_TIMER: self.leases.on_timer,
            EXPIRY_TIMER: self.expiry.on_timer,
            MEMBERS_TIMER: self.members.on_timer,
            CONSUMED_TIMER: self.consumed.on_timer,
            COPIES_TIMER: self.offset_copies.on_timer,
            REGISTRATION_TIMER: self.registration.on_timer,
            REGISTRATION_HELD_TIMER: self.registration.on_timer,
            REGISTRATION_REDIAL_TIMER: self.registration.on_timer,
            REGISTRATION_OVERDUE_TIMER: self.registration.on_timer,
            DELAYS_TIMER: self.delays.on_timer,
            SHIPPING_TIMER: self.shipping.on_timer,
            GATE_TIMER: self.replica_gate.on_timer,
            FOLLOWING_TIMER: self.following.on_timer,
            REPLICA_TIMER: self.replica_sync.on_timer,
            TRANSACTIONS_TIMER: self.transactions.on_timer,
        }

    def handlers(self) -> Handlers:
        """Return the handler of each request code that is not on the hot path."""
        handlers: Handlers = {}
        for component in (
            self.clients,
            self.members,
            self.consumed,
            self.units,
            self.lock_requests,
            self.new_topics,
            self.guests,
            self.handover,
            self.takeover,
            self.forcing,
            self.offset_copies,
            self.floors,
            self.replica_sync,
            self.mapping_admin,
            self.transactions,
            self.far_transactions,
            self.forwards,
            self.send_backs,
            self.replies,
            self.queries,
            self.offset_requests,
            self.offset_resets,
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
        effects: list[Effect] = [*self._repairs]
        for component in (self.homecoming, self.clients, self.offsets, self.stats):
            component.start(now_ms, effects)
        if self.options.is_replica:
            # The other background work writes to the log, which a replica must not do.
            self.following.start(now_ms, effects)
            self.replica_sync.start(now_ms, effects)
            return effects
        for worker in (
            self.delays,
            self.transactions,
            self.handover,
            self.takeover,
            self.forcing,
            self.leases,
            self.expiry,
            self.members,
            self.consumed,
            self.offset_copies,
        ):
            worker.start(now_ms, effects)
        return effects

    def timer_fired(self, name: str, now_ms: int, effects: list[Effect]) -> Procedure[list[Effect]] | None:
        """Run the component that owns timer *name*; return a procedure if it needs log bytes."""
        return self._timers[name](name, now_ms, effects)

    def responded(self, channel: ChannelId, command: Command) -> list[Effect]:
        """Pass a response to its requester: the registration, or a call to a client."""
        effects = self.registration.answered(channel, command)
        return self.relays.answered(channel, command) if effects is None else effects

    def channel_closed(self, channel: ChannelId, now_ms: int) -> list[Effect]:
        """Drop a closed connection from every component."""
        self.pulls.holds.drop_channel(channel)
        self.pulls.handed.forget(channel)
        self.relaying.forget_channel(channel)
        return [
            *self.shipping.closed(channel),
            *self.following.closed(channel, now_ms),
            *self.registration.channel_closed(channel, now_ms),
            *self.relays.closed(channel),
            *self.clients.close(channel, now_ms),
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
        self.relaying.stop()
        self.topics.keep()
        self.groups.keep()
        self.offsets.stop(now_ms, effects)
        self.mappings.offer_save(now_ms, effects)
        self.sinks.offer_save(effects)
        self.offset_copies.offer_save(effects)
        if self.options.is_replica:
            self.replica_sync.offer_save(effects)
        else:
            self.delays.stop(now_ms, effects)
        return effects

    def _learn_master(self, ha_address: str, address: str) -> None:
        self.following.learn(ha_address)
        self.replica_sync.learn(address)

    def _offsets_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        self.offsets.on_timer(name, now_ms, effects)
        self.mappings.offer_save(now_ms, effects)
        self.sinks.offer_save(effects)
        self.offset_copies.offer_save(effects)
        for path, table in ((config_path(TOPICS_FILE), self.topics), (config_path(GROUPS_FILE), self.groups)):
            try:
                table.keep()
                effects += self.unwritten.written(path)
            except DiskFull as error:
                effects += self.unwritten.failed(path, str(error))
            except DiskFailed as error:
                effects.append(Log("error", "disk failed", {"reason": str(error)}))

    def _clients_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        self.clients.on_timer(name, now_ms, effects)
        self.locks.expire(now_ms)
