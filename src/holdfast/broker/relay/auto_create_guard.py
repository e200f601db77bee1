"""Checks with name servers before a send creates a topic.

    send to an unknown topic ─> do name servers know a static topic of that name? queried once, sends are held meanwhile
                                ├─ yes ─> relayed to the leader of its queue (`relay.py`)
                                └─ no, or no answer ─> the sends are replayed, and create the topic here
    created here for a send ─ 7022 ─> the other brokers of the cluster that create topics create it, too

A static topic exists on some brokers only, and a client that once found no route to it sends to any broker. A normal
topic of the same name would store messages that no consumer ever sees, and would prevent queues from moving to that
broker. An answer of the name servers is valid for `LOOKUP_VALID_MS` only, as a topic may be created or deleted.

A topic that a send creates has the smaller of the client's and the broker's number of queues, on every broker of the
cluster that creates topics. If only the first broker created it, it would stay on that broker, as clients learn its
route.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import Pause, PeerCall, call_all
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.relay import Relay
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import Identity
from holdfast.model.queue import QueueKey
from holdfast.model.topic import RETRY_PREFIX, TopicConfig
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command, response
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.frames.frame import Frame
from holdfast.wire.requests.admin import CreateTopicFields
from holdfast.wire.requests.relay import copy_frame
from holdfast.wire.requests.send import SendFields
from holdfast.wire.requests.table import Relaying

QUERIED_MAX: Final = 32
HELD_SIZE_MAX: Final = 16 * 1024 * 1024
LOOKUP_VALID_MS: Final = 3_000
_LOOKUPS_MAX: Final = 1_024


class _Lookup(msgspec.Struct, frozen=True):
    """What name servers answered about a topic, and how long that is valid."""

    is_static: bool
    until_ms: int


class AutoCreateGuard(Component):
    """Queries name servers before a send creates a topic, and creates it on the other brokers too."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        mappings: Mappings,
        view: ClusterView,
        relay: Relay,
        registrar: Registrar,
        turn: Turn,
    ) -> None:
        self._cluster = options.cluster
        self._has_name_servers = bool(options.namesrv)
        self._topics = topics
        self._mappings = mappings
        self._registrar = registrar
        self._view = view
        self._relay = relay
        self._turn = turn
        self._lookups: OrderedDict[str, _Lookup] = OrderedDict()
        self._held: dict[str, list[tuple[ChannelId, bytes, Identity]]] = {}
        self._held_size = 0
        self._created: deque[CreateTopicFields] = deque()  # here, but not yet on the other brokers

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.CREATE_FROM_TEMPLATE: self.create}

    def is_create_unsafe(self, fields: SendFields) -> bool:
        """Return whether a send must be diverted, because it would create a topic that may be static elsewhere."""
        if not self._has_name_servers or not self._topics.is_creatable(fields.topic, fields.default_topic):
            return False
        lookup = self._lookups.get(fields.topic)
        return lookup is None or lookup.until_ms <= self._turn.now_ms or lookup.is_static

    def creates(self, fields: SendFields) -> bool:
        """Return whether a send creates its topic here now, without a further query of the name servers."""
        is_creatable = self._topics.is_creatable(fields.topic, fields.default_topic)
        return is_creatable and not self.is_create_unsafe(fields)

    def divert(self, frame: Frame, command: Command, queue_key: QueueKey, channel: ChannelId, sender: Identity) -> None:
        """Hold or relay a send that this broker must not store now; its answer comes later.

        Its queue is away, or the send would create a topic that may be static elsewhere.
        """
        topic, now_ms = queue_key[0], self._turn.now_ms
        lookup = self._lookups.get(topic)
        is_known = lookup is not None and lookup.is_static and lookup.until_ms > now_ms
        if is_known or self._relay.is_away(queue_key, Relaying.SEND):
            self._relay.divert(frame, command, queue_key, channel, sender)
            return
        data = copy_frame(frame)
        if self._held_size + len(data) > HELD_SIZE_MAX or (topic not in self._held and len(self._held) >= QUERIED_MAX):
            if not command.is_one_way:
                remark = "too many topics are created at once; try again in a moment"
                answer = encode_command(response(command, ResponseCode.SYSTEM_BUSY, remark))
                self._turn.send(channel, [answer])
            return
        self._held_size += len(data)
        if topic not in self._held:
            self._turn.spawn(self._query(topic))
        self._held.setdefault(topic, []).append((channel, data, sender))

    async def _query(self, topic: str) -> None:
        """Query the name servers about a topic, then replay the sends held for it, in order."""
        await self._view.refresh(topic)
        await Pause(1)  # Replay in a separate event, so that frames read in this one do not overtake the held sends.
        self._lookups[topic] = _Lookup(self._view.is_static(topic), self._turn.now_ms + LOOKUP_VALID_MS)
        self._lookups.move_to_end(topic)
        if len(self._lookups) > _LOOKUPS_MAX:
            self._lookups.popitem(last=False)
        for channel, data, sender in self._held.pop(topic):
            self._held_size -= len(data)
            self._turn.replay(channel, data, sender)

    # Creation on the other brokers.

    async def create(self, request: Request) -> Answer:
        """Create a topic that a send created at another broker (7022), unless this broker does not create topics."""
        fields = request.header_as(CreateTopicFields)
        if self._mappings.is_draining or not self._topics.is_creatable(fields.topic, fields.default_topic):
            return request.answer()
        await self._view.refresh(fields.topic)
        if self._view.is_static(fields.topic) or self._topics.find(fields.topic) is not None:
            return request.answer()
        created = self._topics.create_from_template(fields.topic, fields.default_topic, fields.write_queue_nums)
        if isinstance(created, Refusal):
            return created
        return self._registrar.answer_registered(request, request.answer())

    def create_for_send(self, name: str, template: str, queues: int) -> TopicConfig | Refusal:
        """Return the topic of a send; create it from the topic *template* if it is missing and that is permitted.

        The other brokers are then asked to create it, too.
        """
        known = self._topics.find(name)
        if known is not None:
            return known
        created = self._topics.create_from_template(name, template, queues)
        if isinstance(created, TopicConfig) and not name.startswith(RETRY_PREFIX):
            self._create_elsewhere(name, template, queues)
        return created

    def _create_elsewhere(self, topic: str, template: str, queues: int) -> None:
        if not self._created:
            self._turn.spawn(self._request_creation())
        self._created.append(CreateTopicFields(topic=topic, default_topic=template, write_queue_nums=queues))

    async def _request_creation(self) -> None:
        """Ask the other brokers of the cluster to create topics that sends created here. Skip brokers that are down."""
        while self._created:
            fields = to_fields(self._created[0])
            peers = [name for name in self._view.brokers() if self._view.cluster_of(name) == self._cluster]
            addresses = [address for name in peers if (address := self._view.address(name)) is not None]
            command = Command(code=RequestCode.CREATE_FROM_TEMPLATE, fields=fields)
            await call_all(PeerCall(address, command) for address in addresses)
            self._created.popleft()
