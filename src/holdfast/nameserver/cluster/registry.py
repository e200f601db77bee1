"""Registers brokers, keeps them alive, and removes them: 103, 104, 322, 904, 901, silence, and closed channels.

The master of a broker name decides about its topics. A slave decides only while there is no master and it has the
lowest id (5.x slaves only). A registration is added to the known topics: a 103 may carry all topics of a broker or only
the changed one. A registration equal to the broker's last only keeps the broker alive and is not even decoded.

Upstream refuses a broker whose first registration has a single topic: it may be only a changed topic, while the others
were registered with a predecessor of this process. We accept it, and answer 322 with "changed" until the broker has
registered once more. A broker that took over the address of another replaces it, and a refused broker is notified.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.request import Answer, Handlers, Refusal, Request
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.route import MASTER_ID
from holdfast.model.topic import SELF_TEST_TOPIC
from holdfast.nameserver.cluster.broker_liveness import BrokerLiveness, LiveBroker
from holdfast.nameserver.cluster.queue_leases import QueueLeases
from holdfast.nameserver.config.kv_config import ORDER_TOPICS, KvStore
from holdfast.nameserver.config.settings import Settings
from holdfast.nameserver.notices import ChangeCause, classify_registration
from holdfast.nameserver.routes.deletion_markers import DeletionMarkers
from holdfast.nameserver.routes.open_units import OpenUnits
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.nameserver.routes.static_topics import join_reasons
from holdfast.wire.cluster.registration import (
    BrokerFields,
    DataVersion,
    MemberGroupFields,
    RegisterAnswer,
    RegisterFields,
    Registration,
    Topics,
    VersionAnswer,
    decode_registration,
    registration_digest,
)
from holdfast.wire.cluster.route import MemberGroup, MemberGroupAnswer, Table, bare_keys
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields

QUEUES_MAX: Final = 65_536  # Every client that receives the route makes an object for each queue.
_REMOVED_MAX: Final = 256
_CRC_MASK: Final = 0x7FFFFFFF  # 31 bits, as upstream masks every CRC


class _PendingUpdates(msgspec.Struct, frozen=True):
    """Changes that a registering broker has to learn; None where it is up to date."""

    units: str | None
    deletions: str | None


class Registry(Component):
    """Keeps the routes and the live brokers consistent."""

    def __init__(  # noqa: PLR0913, PLR0917 - a registration concerns nearly everything
        self,
        turn: Turn,
        routes: RouteTable,
        liveness: BrokerLiveness,
        kv: KvStore,
        settings: Settings,
        open_units: OpenUnits,
        deletions: DeletionMarkers,
        leases: QueueLeases,
        access_digest: Callable[[ChannelId], str | None],
    ) -> None:
        self._turn = turn
        self._routes = routes
        self._liveness = liveness
        self._kv = kv
        self._settings = settings
        self._open_units = open_units
        self._deletions = deletions
        self._leases = leases
        self._access_digest = access_digest
        # Removed by an operator: name -> the connection of its process, which may register again until it stops.
        self._removed: dict[str, ChannelId] = {}

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
        }

    def metrics(self) -> Iterator[Sample]:
        """Yield the number of live brokers."""
        yield Sample("namesrv_brokers", "gauge", "Broker addresses that are alive.", len(self._liveness))

    # Requests.

    def _register(self, request: Request) -> Answer:
        fields = request.header_as(RegisterFields)
        body = request.command.body
        if fields.body_crc32 and zlib.crc32(body) & _CRC_MASK != fields.body_crc32:
            self._turn.log("warning", "registration damaged", broker=fields.broker_name, peer=request.peer)
            return Refusal(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        self._leases.mark_alive(fields.broker_name)
        # Before its routes are accepted.
        updates = _PendingUpdates(
            self._open_units.merge_from_broker(fields.units, request.peer),
            self._deletions.merge_from_broker(fields.deletions, request.peer),
        )
        digest = hash((msgspec.structs.replace(fields, body_crc32=0), registration_digest(body)))
        live = self._liveness.find(fields.broker_addr)
        if live is not None and live.digest == digest:
            live.renewed_ms = self._turn.now_ms
            live.is_partial = False
            self._liveness.bind(live, request.channel)
        else:
            registration = decode_registration(body, version=request.command.version)
            refusal = _find_excess(registration) or self._find_conflict(fields, registration)
            if refusal is not None:
                self._turn.log(
                    "warning",
                    "registration refused",
                    broker=fields.broker_name,
                    reason=refusal.remark,
                    peer=request.peer,
                )
                return refusal
            refused = self._apply(request, fields, registration, digest)
            if refused:
                # Accepted except for some topics. Upstream's brokers ignore the remark; ours log it.
                answer = self._registration_answer(request, fields, updates)
                answer.remark = join_reasons(refused)
                return answer
        return self._registration_answer(request, fields, updates)

    def _find_conflict(self, fields: RegisterFields, registration: Registration) -> Refusal | None:
        """Return a refusal if another broker with a newer state holds the id, as after a switch of masters."""
        broker = self._routes.brokers.get(fields.broker_name)
        holder_address = broker.addresses.get(fields.broker_id) if broker is not None else None
        holder = (
            self._liveness.find(holder_address)
            if holder_address is not None and holder_address != fields.broker_addr
            else None
        )
        state_version = registration.topic_config_serialize_wrapper.data_version.state_version
        if holder is None or holder.data_version.state_version <= state_version:
            return None
        return Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"id {fields.broker_id} of broker {fields.broker_name} is held by {holder_address} with state version"
            f" {holder.data_version.state_version}; {fields.broker_addr} has {state_version}",
        )

    def _apply(self, request: Request, fields: RegisterFields, registration: Registration, digest: int) -> list[str]:
        """Apply a registration; return why parts of it cannot be served."""
        name, address = fields.broker_name, fields.broker_addr
        self._end_replaced(request, fields)
        topics = registration.topic_config_serialize_wrapper
        if fields.broker_id == MASTER_ID and self._removed.get(name) != request.channel:
            self._removed.pop(name, None)  # A new process of it: the broker was added again.
        previous = self._liveness.find(address)
        self._routes.changes.cause = cause = classify_registration(
            self._settings.broker_events, is_first=previous is None, topic_count=len(topics.topic_config_table)
        )
        if previous is None or previous.data_version != topics.data_version:
            self._turn.log(
                "info",
                "broker registered" if previous is None else "broker changed",
                broker=name,
                id=fields.broker_id,
                cluster=fields.cluster_name,
                address=address,
                topics=len(topics.topic_config_table),
                peer=request.peer,
            )
        self._routes.add_address(
            name,
            fields.broker_id,
            address,
            cluster=fields.cluster_name,
            zone=fields.zone_name,
            is_acting_master_allowed=bool(fields.enable_acting_master),
        )
        refused = self._apply_topics(fields, topics) if self._decides_topics(fields) else []
        if self._settings.broker_events == "off" and cause is ChangeCause.TOPIC:
            # A Java broker registers all topics every 30 s: this change may have come with them, without a notice.
            self._routes.changes.add(topics.topic_config_table)
        self._routes.set_filter_servers(name, address, registration.filter_server_list)
        self._liveness.add(
            LiveBroker(
                broker_name=name,
                broker_id=fields.broker_id,
                cluster=fields.cluster_name,
                address=address,
                ha_address=fields.ha_server_addr,
                channel=request.channel,
                data_version=topics.data_version,
                timeout_ms=fields.heartbeat_timeout_millis or self._settings.broker_timeout_ms,
                renewed_ms=self._turn.now_ms,
                digest=None if refused else digest,  # A broker learns of refused topics each time.
                is_partial=previous is None and SELF_TEST_TOPIC not in topics.topic_config_table,
            )
        )
        return refused

    def _apply_topics(self, fields: RegisterFields, topics: Topics) -> list[str]:
        """Apply a broker's topics; return why some of them cannot be served."""
        name = fields.broker_name
        configs = topics.topic_config_table
        refused = self._apply_mappings(fields, topics)
        if SELF_TEST_TOPIC in configs:  # Every broker has it, and sends it only with the full list.
            self._routes.static.drop_unconfirmed(name)
        # Without its mapping a static topic would look like a normal one.
        unknown = {topic for topic in refused if self._routes.static.find_reported(name, topic) is None}
        hosted = configs.values()
        self._routes.update_topics(
            name, [config for config in hosted if config.name not in unknown] if unknown else hosted
        )
        return [*refused.values(), *self._routes.find_conflicts(name, configs)]

    def _apply_mappings(self, fields: RegisterFields, topics: Topics) -> dict[str, str]:
        """Apply a broker's static topics; return the refused ones with the reason."""
        name, cluster, infos = fields.broker_name, fields.cluster_name, topics.topic_queue_mapping_info_map
        deleted = {topic for topic in infos if self._deletions.is_deleted(topic, cluster)}
        if fields.deletions is None:
            # A Java broker cannot report an explicit create. But only an explicit create maps queues.
            refused = self._routes.update_mappings(name, infos)
            for topic in deleted - refused.keys():
                self._deletions.lift(topic, cluster)
            return refused
        deleted_reasons = {
            topic: f"{topic} was deleted, but {name} still has it: delete it there too" for topic in deleted
        }
        return deleted_reasons | self._routes.update_mappings(
            name, {topic: info for topic, info in infos.items() if topic not in deleted} if deleted else infos
        )

    def _end_replaced(self, request: Request, fields: RegisterFields) -> None:
        """Remove the brokers that a registration replaces: another one at its address, or its id at another address."""
        live = self._liveness.find(fields.broker_addr)
        if live is not None and live.broker_name != fields.broker_name:
            self._end(live, "another broker registered at its address")
        broker = self._routes.brokers.get(fields.broker_name)
        holder_address = broker.addresses.get(fields.broker_id) if broker is not None else None
        if holder_address is not None and holder_address != fields.broker_addr:
            holder = self._liveness.remove(holder_address)
            if holder is not None:
                self._turn.log(
                    "warning",
                    "broker replaced",
                    broker=fields.broker_name,
                    old=holder_address,
                    new=fields.broker_addr,
                    peer=request.peer,
                )

    def _decides_topics(self, fields: RegisterFields) -> bool:
        """Return whether this broker decides for its name: the master, or a 5.x slave without a lower id."""
        if fields.broker_id == MASTER_ID:
            return True
        lowest = min(self._routes.brokers[fields.broker_name].addresses)
        return fields.enable_acting_master is not None and fields.broker_id == lowest

    def _registration_answer(self, request: Request, fields: RegisterFields, updates: _PendingUpdates) -> Command:
        wants_single = True if self._settings.broker_events == "off" else None
        answer = RegisterAnswer(
            wants_single=wants_single,
            units=updates.units,
            deletions=updates.deletions,
            access=self._access_digest(request.channel),
        )
        broker = self._routes.brokers[fields.broker_name]
        master = broker.addresses.get(MASTER_ID)
        live = self._liveness.find(master) if master is not None else None
        if fields.broker_id != MASTER_ID and live is not None:
            answer = msgspec.structs.replace(answer, ha_server_addr=live.ha_address, master_addr=live.address)
        order_topics = self._kv.find_namespace(ORDER_TOPICS) if self._settings.return_order_topic_config else None
        body = java_json.encode(Table(order_topics)) if order_topics is not None else b""
        return request.answer(fields=to_fields(answer), body=body)

    def _unregister(self, request: Request) -> Answer:
        fields = request.header_as(BrokerFields)
        live = self._liveness.find(fields.broker_addr)
        if live is not None and live.broker_name != fields.broker_name:
            live = None
        if fields.is_removed:
            self._remove(fields.broker_name, request.channel if live is None else live.channel)
        if live is not None:
            self._routes.changes.cause = ChangeCause.BROKER
            self._end(live, "it unregistered")
        return request.answer()

    def _remove(self, name: str, channel: ChannelId) -> None:
        """Do not count a broker as down, now or when its process on *channel* or its replicas stop."""
        self._routes.forget_departed(name)
        self._removed.pop(name, None)
        self._removed[name] = channel
        if len(self._removed) > _REMOVED_MAX:
            del self._removed[next(iter(self._removed))]

    def _query_version(self, request: Request) -> Answer:
        fields = request.header_as(BrokerFields)
        broker_version = java_json.decode(request.command.body or b"{}", DataVersion)
        live = self._liveness.find(fields.broker_addr)
        if live is None:
            return request.answer(fields=to_fields(VersionAnswer(changed=True)))
        live.renewed_ms = self._turn.now_ms
        changed = VersionAnswer(changed=live.is_partial or live.data_version != broker_version)
        return request.answer(fields=to_fields(changed), body=java_json.encode(live.data_version))

    def _heartbeat(self, request: Request) -> Answer:
        fields = request.header_as(BrokerFields)
        live = self._liveness.find(fields.broker_addr)
        if live is not None:
            live.renewed_ms = self._turn.now_ms
        return request.answer()

    def _member_group(self, request: Request) -> Answer:
        fields = request.header_as(MemberGroupFields)
        broker = self._routes.brokers.get(fields.broker_name)
        group = MemberGroup(
            broker_addrs=broker.addresses if broker is not None else {},
            broker_name=fields.broker_name,
            cluster=fields.cluster_name,
        )
        # Bare keys: upstream sends these, and its brokers of all versions can read them.
        return request.answer(body=bare_keys(java_json.encode(MemberGroupAnswer(group))))

    # Silence and closed channels.

    def channel_closed(self, channel: ChannelId) -> None:
        """Remove all brokers that registered on *channel*."""
        self._routes.changes.cause = ChangeCause.BROKER
        for live in self._liveness.on_channel(channel):
            self._end(live, "its channel closed")

    def expire(self) -> None:
        """Remove all brokers that were silent for too long."""
        self._routes.changes.cause = ChangeCause.BROKER
        now_ms = self._turn.now_ms
        for live in self._liveness.expired(now_ms):
            self._end(live, f"it was silent for {now_ms - live.renewed_ms} ms")
            self._turn.close(live.channel)

    def _end(self, live: LiveBroker, reason: str) -> None:
        self._turn.log("info", "broker left", broker=live.broker_name, address=live.address, reason=reason)
        self._liveness.remove(live.address)
        self._routes.remove_address(live.broker_name, live.address, is_down=live.broker_name not in self._removed)
        broker = self._routes.brokers.get(live.broker_name)
        for address in broker.addresses.values() if broker is not None else ():
            survivor = self._liveness.find(address)
            if survivor is not None:
                survivor.digest = None  # It may now decide for the broker name: decode it in full.


def _find_excess(registration: Registration) -> Refusal | None:
    """Return a refusal if a topic has so many queues that its clients would run out of memory."""
    for topic in registration.topic_config_serialize_wrapper.topic_config_table.values():
        if not (0 <= topic.read_queues <= QUEUES_MAX and 0 <= topic.write_queues <= QUEUES_MAX):
            counts = f"{topic.read_queues} read and {topic.write_queues} write queues"
            return Refusal(ResponseCode.SYSTEM_ERROR, f"topic {topic.name} has {counts}, outside 0..{QUEUES_MAX}")
    return None
