"""Connected producers and consumers, and the subscriptions of each group (codes 34, 35, 38 and 46).

A client is registered by its heartbeats on a channel. It is removed when it unregisters, when the channel closes, or
when its heartbeats stop for too long. When the members or the topics of a group change, the broker notifies every
member (40), which then rebalances. Subscriptions belong to the group: the newest heartbeat wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import CLIENT_TIMEOUT_MS, ClientCall
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request, Timers
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.remote_members import RemoteMembers
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import ANONYMOUS, Identity
from holdfast.model.filter import is_tag_type
from holdfast.model.group import Subscription
from holdfast.model.topic import retry_topic
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.heartbeat import (
    CAPABILITIES_FIELD,
    INNER_BATCH_CAPABILITY,
    ClientConfigCheck,
    ConsumerData,
    ConsumerGroupFields,
    Heartbeat,
    MessageModel,
    UnregisterFields,
    decode_heartbeat,
)

TIMER: Final = "clients"
GROUPS_TIMER: Final = "changed groups"
"""Fires when members or topics of groups have changed."""
SCAN_INTERVAL_MS: Final = 10_000
SHORT_TIMEOUT_MS: Final = 40_000
"""Heartbeat timeout after a unit was closed. Clients of every kind send a heartbeat every 30 s."""
SHORT_TIMEOUT_PERIOD_MS: Final = 90_000
"""How long the short timeout applies. A client may learn only after 30 s that it must use another broker."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client on one of its channels.

    Attributes:
        peer: `host:port` of its end of the channel.
        serializer: The header encoding that it uses; the broker uses the same one for it.
        sender: Who sent its last heartbeat.
    """

    client_id: str
    channel: ChannelId
    peer: str
    language: str
    version: int
    serializer: int
    seen_ms: int
    sender: Identity = ANONYMOUS

    def call(self, command: Command, timeout_ms: int = CLIENT_TIMEOUT_MS) -> ClientCall:
        """Return a call of *command* to this client, in the header encoding that the client uses."""
        command.serializer = self.serializer
        return ClientCall(self.channel, command, timeout_ms)

    def notify(self, turn: Turn, command: Command) -> None:
        """Send *command* to this client in the header encoding that it uses, and expect no answer."""
        command.flag |= ONE_WAY
        command.serializer = self.serializer
        turn.send(self.channel, [encode_command(command)])


class Membership(msgspec.Struct, kw_only=True):
    """The connected members of a consumer group and their subscriptions."""

    members: dict[ChannelId, Client] = {}
    subscriptions: dict[str, Subscription] = {}
    consume_type: str
    message_model: str
    consume_from_where: str

    @property
    def is_broadcast(self) -> bool:
        """Whether every member gets every message, so that members need not rebalance."""
        return self.message_model == MessageModel.BROADCASTING.name

    def client_ids(self) -> list[str]:
        """Return the ids of the members, each once, in the order in which they joined."""
        return list(dict.fromkeys(client.client_id for client in self.members.values()))

    def find_client(self, client_id: str) -> Client | None:
        """Return the member *client_id* on its newest channel, or None."""
        found = None
        for client in self.members.values():
            if client.client_id == client_id:
                found = client
        return found

    def subscribe(self, consumer: ConsumerData) -> bool:
        """Replace the subscriptions by those of the newest heartbeat; return whether the set of topics changed."""
        self.consume_type = consumer.consume_type
        self.message_model = consumer.message_model
        self.consume_from_where = consumer.consume_from_where
        received = {subscription.topic: subscription for subscription in consumer.subscription_data_set}
        changed = received.keys() != self.subscriptions.keys()
        for topic, subscription in received.items():
            known = self.subscriptions.get(topic)
            if known is not None and known.sub_version > subscription.sub_version:
                received[topic] = known  # This member still reports an older subscription.
        self.subscriptions = received
        return changed


class ClientTable(Component):
    """Producers and consumers by group and by channel.

    Attributes:
        record_consumer: Receives each group and hosted topic that a heartbeat subscribes to, unless it is broadcast.
    """

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        groups: GroupTable,
        remote: RemoteMembers,
        record_consumer: Callable[[str, str], None],
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._timeout_ms = options.client_timeout_ms
        self._is_short_timeout_due = False
        self._short_timeout_end_ms = 0
        self._topics = topics
        self._groups = groups
        self._record_consumer = record_consumer
        self._remote = remote
        self._changed_groups: list[str] = []
        self._producers: dict[str, dict[ChannelId, Client]] = {}
        self._consumers: dict[str, Membership] = {}
        # By client id: request-reply addresses the requester by it.
        self._producers_by_id: dict[str, Client] = {}
        # (producer groups, consumer groups) of each channel, so that closing it needs no search.
        self._groups_by_channel: dict[ChannelId, tuple[set[str], set[str]]] = {}

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    # Queries.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the subscription of *group* to *topic*, or None."""
        membership = self._consumers.get(group)
        found = None if membership is None else membership.subscriptions.get(topic)
        return self._remote.subscription(group, topic) if found is None else found

    def has_group(self, group: str) -> bool:
        """Return whether a consumer of *group* is connected."""
        return group in self._consumers

    def members(self, group: str) -> list[str]:
        """Return the client ids of a consumer group."""
        membership = self._consumers.get(group)
        return [] if membership is None else membership.client_ids()

    def find_membership(self, group: str) -> Membership | None:
        """Return the members and subscriptions of a consumer group, or None if no consumer of it is connected."""
        return self._consumers.get(group)

    def consumer_groups(self) -> dict[str, Membership]:
        """Return every consumer group that has a member; not to be changed by the caller."""
        return self._consumers

    def producers(self, group: str) -> list[Client]:
        """Return the connected producers of *group*, the longest connected first."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, dict[ChannelId, Client]]:
        """Return every producer group that has a member; not to be changed by the caller."""
        return self._producers

    def find_producer(self, client_id: str) -> Client | None:
        """Return the producer *client_id* on its newest channel, or None."""
        return self._producers_by_id.get(client_id)

    def count_channels(self) -> tuple[int, int]:
        """Return (number of producing channels, number of consuming channels)."""
        produce = sum(1 for producing, _ in self._groups_by_channel.values() if producing)
        consume = sum(1 for _, consuming in self._groups_by_channel.values() if consuming)
        return produce, consume

    # Handlers.

    def heartbeat(self, request: Request) -> Answer:
        """Answer 34: register the client and its groups and subscriptions."""
        beat = decode_heartbeat(request.command.body)
        client = Client(
            client_id=beat.client_id,
            channel=request.channel,
            peer=request.peer,
            language=request.command.language,
            version=request.command.version,
            serializer=request.command.serializer,
            seen_ms=self._turn.now_ms,
            sender=request.identity,
        )
        producing, consuming = self._groups_by_channel.setdefault(request.channel, (set(), set()))
        for producer in beat.producer_data_set:
            self._producers.setdefault(producer.group_name, {})[request.channel] = client
            producing.add(producer.group_name)
        if beat.producer_data_set:
            self._claim_id(client)
        configs = [self._groups.ensure(consumer.group_name) for consumer in beat.consumer_data_set]
        self._topics.ensure_all(
            {
                retry_topic(config.group_name): config.retry_queue_nums
                for config in configs
                if not isinstance(config, Refusal) and config.retry_queue_nums > 0
            },
        )
        for consumer in beat.consumer_data_set:
            if self._join(consumer, client, beat):
                consuming.add(consumer.group_name)
        refusals = [config for config in configs if isinstance(config, Refusal)]
        # SYSTEM_BUSY: the next heartbeat creates the remaining groups. Other refusals do not fail the heartbeat.
        busy = next((refusal for refusal in refusals if refusal.code == ResponseCode.SYSTEM_BUSY), None)
        return busy or request.answer(fields={CAPABILITIES_FIELD: INNER_BATCH_CAPABILITY})

    def unregister(self, request: Request) -> Answer:
        """Answer 35: the client leaves a group but may stay connected."""
        fields = request.header_as(UnregisterFields)
        if fields.producer_group:
            self._leave_producers(fields.producer_group, request.channel)
        if fields.consumer_group:
            self._leave_consumers(fields.consumer_group, request.channel)
        return request.answer()

    def check_config(self, request: Request) -> Answer:
        """Answer 46: check whether the broker supports a subscription's filter type."""
        check = java_json.decode(request.command.body, ClientConfigCheck)
        kind = check.subscription_data.expression_type
        if not is_tag_type(kind):
            return Refusal(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        return request.answer()

    # Time.

    def start(self) -> None:
        """Start the periodic scan for silent clients."""
        self._turn.set_timer(TIMER, self._turn.now_ms + SCAN_INTERVAL_MS)

    def on_timer(self) -> None:
        """Expire silent clients, and set the timer for the next scan."""
        now_ms = self._turn.now_ms
        if self._is_short_timeout_due:
            self._is_short_timeout_due, self._short_timeout_end_ms = False, now_ms + SHORT_TIMEOUT_PERIOD_MS
        self.expire()
        self._turn.set_timer(TIMER, now_ms + SCAN_INTERVAL_MS)

    def channel_closed(self, channel: ChannelId) -> None:
        """Remove a closed channel, and notify the members that shared groups with it."""
        producing, consuming = self._groups_by_channel.get(channel, (set(), set()))
        for group in sorted(producing):
            self._leave_producers(group, channel)
        for group in sorted(consuming):
            self._leave_consumers(group, channel)
        self._groups_by_channel.pop(channel, None)

    def shorten_timeout(self) -> None:
        """Use the short heartbeat timeout for a while: clients may move to another broker and keep the connection."""
        self._is_short_timeout_due = True

    def expire(self) -> None:
        """Remove and disconnect every client without a recent heartbeat."""
        now_ms = self._turn.now_ms
        timeout_ms = (
            min(SHORT_TIMEOUT_MS, self._timeout_ms) if now_ms < self._short_timeout_end_ms else self._timeout_ms
        )
        for channel in self._silent_channels(now_ms - timeout_ms):
            self.channel_closed(channel)
            self._turn.close(channel)

    # Joining and leaving.

    def _claim_id(self, client: Client) -> None:
        """Let *client* get the replies for its id, unless a connected client of another user has that id."""
        known = self._producers_by_id.get(client.client_id)
        if known is None or known.sender.proven_user == client.sender.proven_user:
            self._producers_by_id[client.client_id] = client

    def _join(self, consumer: ConsumerData, client: Client, beat: Heartbeat) -> bool:
        """Make *client* a member of one group; return False if the group does not exist and is not created."""
        name = consumer.group_name
        config = self._groups.find(name)
        if config is None:
            return False
        membership = self._consumers.get(name)
        if membership is None:
            membership = self._consumers[name] = Membership(
                consume_type=consumer.consume_type,
                message_model=consumer.message_model,
                consume_from_where=consumer.consume_from_where,
            )
        known = membership.members.get(client.channel)
        changed = known is None or known.client_id != client.client_id
        membership.members[client.channel] = client
        if not beat.without_sub:
            changed = membership.subscribe(consumer) or changed
        if not membership.is_broadcast:
            for topic in membership.subscriptions:
                if self._topics.find(topic) is not None:
                    self._record_consumer(name, topic)
        if changed and config.notify_consumer_ids_changed_enable:
            self._notify_members(name, membership)
        if changed:
            self._note_change(name)
        return True

    def _leave_producers(self, group: str, channel: ChannelId) -> None:
        clients = self._producers.get(group, {})
        client = clients.pop(channel, None)
        if not clients:
            self._producers.pop(group, None)
        remaining_groups = self._groups_by_channel.get(channel, (set(), set()))[0]
        remaining_groups.discard(group)
        newest = self._producers_by_id.get(client.client_id) if client is not None else None
        if newest is not None and newest.channel == channel and not remaining_groups:
            del self._producers_by_id[newest.client_id]

    def _leave_consumers(self, group: str, channel: ChannelId) -> None:
        self._groups_by_channel.get(channel, (set(), set()))[1].discard(group)
        membership = self._consumers.get(group)
        if membership is None or membership.members.pop(channel, None) is None:
            return
        if membership.members:
            self.notify(group)
        else:
            del self._consumers[group]
        self._note_change(group)

    def _note_change(self, group: str) -> None:
        self._changed_groups.append(group)
        self._turn.fire(GROUPS_TIMER)

    def metrics(self) -> Iterator[Sample]:
        """Yield the numbers of connected producers and consumers."""
        producing, consuming = self.count_channels()
        yield Sample("broker_producers", "gauge", "Producer connections.", producing)
        yield Sample("broker_consumers", "gauge", "Consumer connections.", consuming)

    def drain_changed_groups(self) -> list[str]:
        """Return the consumer groups whose members or topics changed, and clear the list."""
        drained, self._changed_groups = self._changed_groups, []
        return drained

    def notify(self, group: str) -> None:
        """Notify the members of *group* on this broker to rebalance."""
        membership, config = self._consumers.get(group), self._groups.find(group)
        if membership is not None and (config is None or config.notify_consumer_ids_changed_enable):
            self._notify_members(group, membership)

    def _silent_channels(self, seen_before_ms: int) -> list[ChannelId]:
        last_seen_ms: dict[ChannelId, int] = {}
        of_groups = [*self._producers.values(), *(membership.members for membership in self._consumers.values())]
        for clients in of_groups:
            for channel, client in clients.items():
                last_seen_ms[channel] = max(client.seen_ms, last_seen_ms.get(channel, 0))
        return [channel for channel, seen_ms in last_seen_ms.items() if seen_ms < seen_before_ms]

    def _notify_members(self, group: str, membership: Membership) -> None:
        if membership.is_broadcast:
            return
        fields = to_fields(ConsumerGroupFields(consumer_group=group))
        for client in membership.members.values():
            client.notify(self._turn, Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields=fields))
