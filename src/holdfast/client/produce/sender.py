"""Sends parcels to brokers: chooses the queue, writes the frame, waits for the answer, retries.

    pick queue ─> write ─> answer 0, 10, 11, 12 ─> SendResult
        ^            └───> refused, lost, timed out ──> retryable? ── no ──> SendFailed
        └────────────────── yes: another broker; the same queue if the message has a key

Sends to a logical queue go to its leader. While the leader is unclear, a send only loses time: a broker that no longer
leads it (501), one that is restarting, a queue without a leader. The caller gets none of these errors before the
deadline.
A former leader relays sends. The id in the answer then names the broker that stored the message, and the sender looks
up who leads the queue.

The shell around `send_plan`. Many sends are in flight at once. A send waits for another only if its connection is
full, or if sends to the former leader of its logical queue are still in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

import msgspec

from holdfast.client.access.refusal import refusal
from holdfast.client.cluster.cluster_client import ClusterClient, now_ms
from holdfast.client.cluster.send_plan import (
    RETRIES_DEFAULT,
    RETRYABLE_CODES,
    RoundRobin,
    backoff_ms,
    is_not_leader,
    is_retryable,
    is_route_stale,
    is_topic_unknown,
    only_time_helps,
    queue_for_key,
    require_publishable,
)
from holdfast.client.messages.packing import Outgoing
from holdfast.client.produce.inner_batch_support import InnerBatchSupport
from holdfast.client.produce.leader_lanes import LeaderLanes
from holdfast.client.routes.route_table import TopicRoute
from holdfast.model.errors import (
    BrokerRefused,
    ConnectionLost,
    HoldfastError,
    LocalProtocolError,
    NoLeader,
    RemoteProtocolError,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
)
from holdfast.model.leadership import Leader
from holdfast.model.message import SendResult, SendStatus
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.model.scope import NO_BROKER, is_mock_broker, to_shown_broker, to_wire_broker
from holdfast.runtime.pool import Connection
from holdfast.wire.frames.codes import VERSION_5_0, RequestCode, ResponseCode
from holdfast.wire.frames.host import pack_host
from holdfast.wire.requests.send_request import OutgoingFields, SendReply, SendTemplate

SEND_TIMEOUT_S: Final = 10.0
ATTEMPT_TIMEOUT_S: Final = 3.0
# While there are other brokers, retry them without a pause, but only for so many rounds.
_ROUNDS_AT_ONCE: Final = 3

# The minimum interval between lookups of a topic's leaders while the ids in answers name another broker than the one
# that answered: that may be just another address of the same broker.
_REFRESH_INTERVAL_S: Final = 1.0

# How long to avoid a queue without a leader, if there are others.
_LEADERLESS_AVOID_S: Final = 30.0

# The expected errors of an attempt; any other is a bug.
_Failure = BrokerRefused | ConnectionLost | RequestTimeout | RouteNotFound
_FAILURES: Final = (BrokerRefused, ConnectionLost, RequestTimeout, RouteNotFound)
_STORED: Final = {int(status): status for status in SendStatus}


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """A packed message or batch, and the options for sending it.

    Attributes:
        queue: The only queue it may go to; None to choose.
        key: Chooses the queue, if there is no *queue*.
        code: The request code of the send.
        encode_inner: Encodes the batch for brokers that store batches whole; may return None if it cannot be encoded
            so.
        is_inner_batch: *outgoing* is such a batch: it is sent only to a broker that stores it whole.
    """

    topic: str
    outgoing: Outgoing
    key: str | None = None
    queue: MessageQueue | None = None
    code: int = RequestCode.SEND_MESSAGE_V2
    encode_inner: Callable[[], Outgoing | None] | None = None
    is_inner_batch: bool = False


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The successful answer of a broker.

    Attributes:
        address: The broker that answered.
        transaction_id: The broker's name for the transaction, if it gave one.
        leader: The leader of the queue, if it is not the broker that answered.
    """

    result: SendResult
    address: str
    transaction_id: str
    leader: Leader | None = None


class Sender:
    """Sends for one producer group.

    Args:
        client: The connection to the cluster.
        group: The producer group, as the wire knows it.
        retries: The default number of retries of a send.
        inner_batch_support: Knows which brokers store batches whole; None to send no whole batches.
    """

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        *,
        retries: int = RETRIES_DEFAULT,
        inner_batch_support: InnerBatchSupport | None = None,
    ) -> None:
        self._client = client
        self._group = group
        self._retries = retries
        self._inner_batch_support = inner_batch_support
        self._round_robin = RoundRobin(client.random)
        self._lanes = LeaderLanes()
        self._templates: dict[tuple[str, str], SendTemplate] = {}
        self._hosts: dict[str, str] = {}  # address to the prefix of the ids of messages stored there
        self._refreshed_s: dict[str, float] = {}
        self._leaderless_s: dict[MessageQueue, float] = {}  # when a broker reported that the queue has no leader

    async def send(self, parcel: Parcel, timeout_s: float, retries: int | None = None) -> Receipt:
        """Send *parcel* and return its receipt. *retries* overrides the default number of retries.

        Raises:
            SendFailed: the parcel could not be sent.
        """
        queue: MessageQueue | None = None
        begun_s = monotonic()
        try:
            route = await self._find_route(parcel, begun_s, timeout_s)
            queue = self.choose(parcel, route, None)
            attempt = self._attempt_in_lane if route.leaders else self._attempt
            return await attempt(parcel, route, queue, min(ATTEMPT_TIMEOUT_S, timeout_s))
        except _FAILURES as error:
            tries = _Tries(1 + (self._retries if retries is None else retries), begun_s, begun_s + timeout_s)
            return await self._retry(parcel, tries, queue, error)

    async def _find_route(self, parcel: Parcel, now_s: float, timeout_s: float) -> TopicRoute:
        route = self._client.routes.use(parcel.topic, now_s)
        route = route or await self._client.publish_route(parcel.topic, timeout_s=timeout_s)
        if parcel.queue is not None and _lacks(route, parcel.queue, parcel.topic):  # Perhaps the topic has grown.
            route = await self._client.publish_route(parcel.topic, refresh=True, timeout_s=timeout_s)
        return route

    async def _retry(self, parcel: Parcel, tries: _Tries, queue: MessageQueue | None, error: _Failure) -> Receipt:
        """Retry after an attempt that ended with *error*, until a send succeeds or no retry is left."""
        is_queue_fixed = parcel.key is not None or parcel.queue is not None
        elapsed_s = monotonic() - tries.begun_s
        while True:
            known = self._client.routes.find(parcel.topic)
            is_static = known is not None and bool(known.leaders)
            tries.record(error, queue, is_queue_fixed=is_queue_fixed, is_static=is_static)
            if tries.is_over or monotonic() >= tries.deadline_s:
                raise tries.to_failure(error)
            if isinstance(error, NoLeader) and queue is not None:
                self._leaderless_s[queue] = monotonic()
            if is_queue_fixed and is_not_leader(error) and queue is not None:
                is_late = isinstance(error, NoLeader) or elapsed_s > tries.remaining_s
                if is_late and not await self._has_new_leader(queue):
                    raise tries.to_failure(error)
            avoid_broker = await self._prepare_retry(parcel, queue, error, tries)
            if parcel.key is None:
                queue = None
            begun_s = monotonic()
            try:
                route = self._client.routes.find(parcel.topic)
                route = route or await self._client.publish_route(parcel.topic, timeout_s=tries.remaining_s)
                queue = queue or self.choose(parcel, route, avoid_broker)
                attempt = self._attempt_in_lane if route.leaders else self._attempt
                return await attempt(parcel, route, queue, min(ATTEMPT_TIMEOUT_S, tries.remaining_s))
            except _FAILURES as failure:
                error, elapsed_s = failure, monotonic() - begun_s

    async def _has_new_leader(self, queue: MessageQueue) -> bool:
        """Return whether a name server knows another leader of *queue* than the broker that refused a send.

        The broker had waited for a leader before it refused. If it knows that there is none, waiting does not help. If
        less time is left than the broker waited, the next attempt would end without an answer, and it would be unknown
        whether the message was stored. The refusal says more.
        """
        known = self._client.routes.find(queue.topic)
        old_leader = NO_BROKER if known is None else known.broker_of(queue)
        with contextlib.suppress(*_FAILURES):
            await self._client.refresh_leaders(queue.topic)
        route = self._client.routes.find(queue.topic)
        return route is not None and route.broker_of(queue) not in {old_leader, NO_BROKER}

    async def send_one_way(self, parcel: Parcel, timeout_s: float = SEND_TIMEOUT_S) -> None:
        """Write *parcel* to a connection. Whether it arrives is unknown.

        Raises:
            SendFailed: no broker is reachable.
        """
        try:
            route = await self._find_route(parcel, monotonic(), timeout_s)
            queue = self.choose(parcel, route, None)
            connection = await self._connect(route, queue)
            if connection.is_full:
                await connection.wait_until_writable()
        except _FAILURES as error:
            raise SendFailed(error, attempts=1, maybe_stored=False) from error
        header = self._encode_header(
            connection, parcel, parcel.outgoing, queue, route.broker_of(queue), 0, one_way=True
        )
        connection.write(header, parcel.outgoing.body)

    def forget(self, topics: Iterable[str]) -> None:
        """Discard the state of *topics*, to which no caller sends any more."""
        gone = {*topics}
        self._round_robin.forget(gone)
        self._templates = {key: template for key, template in self._templates.items() if key[0] not in gone}
        self._leaderless_s = {
            queue: reported_s for queue, reported_s in self._leaderless_s.items() if queue.topic not in gone
        }
        for topic in gone:
            self._refreshed_s.pop(topic, None)

    def choose(self, parcel: Parcel, route: TopicRoute, avoid_broker: str | None) -> MessageQueue:
        """Return the queue for *parcel*.

        Raises:
            RouteNotFound: no broker accepts messages for its topic, or the topic has no such queue.
        """
        if parcel.queue is not None:
            return _find_named(route, parcel.queue, parcel.topic)
        publishable = require_publishable(route, parcel.topic)
        if parcel.key is not None:
            return queue_for_key(parcel.key, publishable)
        # If no leader is up, try any queue: one of the leaders will be back first.
        queues = route.sendable or publishable
        if self._leaderless_s:
            queues = self._without_leaderless(queues)
        if route.leaders and avoid_broker is not None:
            queues = tuple(queue for queue in queues if route.broker_of(queue) != avoid_broker) or queues
        return self._round_robin.choose(parcel.topic, queues, avoid_broker)

    def _without_leaderless(self, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        """Return *queues* without those that a broker recently reported to have no leader, or all if none is left."""
        now_s = monotonic()
        self._leaderless_s = {
            queue: reported_s
            for queue, reported_s in self._leaderless_s.items()
            if now_s - reported_s < _LEADERLESS_AVOID_S
        }
        return tuple(queue for queue in queues if queue not in self._leaderless_s) or queues

    async def _attempt_in_lane(
        self, parcel: Parcel, route: TopicRoute, queue: MessageQueue, timeout_s: float
    ) -> Receipt:
        """Attempt to send to a logical queue, once no send to another leader of the queue is in flight."""
        deadline_s = monotonic() + timeout_s
        while not self._lanes.enter(queue, route.broker_of(queue)):
            try:
                async with asyncio.timeout(deadline_s - monotonic()):
                    await self._lanes.wait_until_drained(queue)
            except TimeoutError:
                text = f"earlier sends to the old leader of {queue} are not answered yet; the message was not sent"
                raise ConnectionLost(text) from None
            route = self._client.routes.find(parcel.topic) or route
        try:
            receipt = await self._attempt(parcel, route, queue, deadline_s - monotonic())
        finally:
            self._lanes.leave(queue)
        if receipt.leader is not None:
            self._client.learn_leader(queue, receipt.leader)
            route = self._client.routes.find(parcel.topic) or route
            if route.broker_of(queue) == receipt.leader.broker:
                return receipt
        host = self._hosts.get(receipt.address)
        if host is None:
            host = self._hosts[receipt.address] = _host_text(receipt.address)
        if not receipt.result.offset_id.startswith(host):
            self._refresh_route(parcel.topic)
        return receipt

    def _refresh_route(self, topic: str) -> None:
        now_s = monotonic()
        if now_s - self._refreshed_s.get(topic, -_REFRESH_INTERVAL_S) >= _REFRESH_INTERVAL_S:
            self._refreshed_s[topic] = now_s
            self._client.mark_stale(topic)

    async def _attempt(self, parcel: Parcel, route: TopicRoute, queue: MessageQueue, timeout_s: float) -> Receipt:
        broker = route.broker_of(queue) if route.leaders else queue.broker_name
        address = route.masters.get(broker)
        connection = None if address is None else self._client.find_connection(address)
        if connection is None:
            connection = await self._connect(route, queue)
        inner_batch = None
        if parcel.is_inner_batch or parcel.encode_inner is not None:
            inner_batch = await self._encode_inner_batch(parcel, connection.address)
        if connection.is_full:
            await connection.wait_until_writable()
        if not connection.is_open:
            raise ConnectionLost(f"the connection to {connection.address} is closed; the message was not sent")
        outgoing = inner_batch or parcel.outgoing
        if (
            parcel.encode_inner is not None
            and inner_batch is None
            and self._client.version_of(connection.address) < VERSION_5_0
        ):
            # Brokers of 4.x append the properties of the batch to those of its messages: all would get its id.
            outgoing = msgspec.structs.replace(outgoing, properties="")
        begun_s = monotonic()
        opaque, waiting = connection.begin_send(max(0.001, timeout_s))
        try:
            connection.write(self._encode_header(connection, parcel, outgoing, queue, broker, opaque), outgoing.body)
        except BaseException:
            connection.forget(opaque)
            raise
        reply = await waiting
        if inner_batch is not None and not (reply.code in _STORED or reply.code in RETRYABLE_CODES):
            # It was not stored. Whatever the reason, the broker accepts a batch in the normal form.
            assert self._inner_batch_support is not None
            self._inner_batch_support.mark_unsupported(parcel.topic, connection.address)
            return await self._attempt(parcel, route, queue, timeout_s - (monotonic() - begun_s))
        return _read_receipt(reply, parcel, queue, connection.address)

    async def _encode_inner_batch(self, parcel: Parcel, address: str) -> Outgoing | None:
        """Return the batch in the form for brokers that store it whole, or None if the one at *address* does not.

        Raises:
            BrokerRefused: the broker does not store it whole, and there is no other form.
        """
        if self._inner_batch_support is None or not await self._inner_batch_support.is_supported(parcel.topic, address):
            if parcel.is_inner_batch:
                text = "the broker does not keep batches of this topic whole, or has not reported yet that it does"
                raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, text, address=address)
            return None
        return None if parcel.encode_inner is None else parcel.encode_inner()

    async def _connect(self, route: TopicRoute, queue: MessageQueue) -> Connection:
        broker = route.broker_of(queue)
        if broker == NO_BROKER:
            raise RouteNotFound(
                f"logical queue {queue.queue_id} of {queue.topic!r} has no leader now: it is moving, or its mapping was"
                f" deleted; `holdfast queue list {queue.topic}` shows who leads what"
            )
        address = route.masters.get(broker) or self._client.routes.find_address(broker)
        if address is None:
            raise RouteNotFound(f"no route has an address of the master of broker {broker!r}, so it cannot be reached")
        return self._client.find_connection(address) or await self._client.connection(address)

    def _encode_header(
        self,
        connection: Connection,
        parcel: Parcel,
        outgoing: Outgoing,
        queue: MessageQueue,
        broker: str,
        opaque: int,
        *,
        one_way: bool = False,
    ) -> bytes:
        template = self._templates.get((parcel.topic, broker))
        if template is None:
            template = SendTemplate(self._group, parcel.topic, broker, reads_mappings=is_mock_broker(queue.broker_name))
            self._templates[parcel.topic, broker] = template
        fields = OutgoingFields(queue.queue_id, outgoing.sys_flag, now_ms(), outgoing.flag, outgoing.properties)
        if connection.signer is not None:
            body = outgoing.body
            return template.signed_head(opaque, fields, body, connection.signer, code=parcel.code, one_way=one_way)
        return template.head(opaque, fields, len(outgoing.body), code=parcel.code, one_way=one_way)

    async def _prepare_retry(
        self, parcel: Parcel, queue: MessageQueue | None, error: HoldfastError, tries: _Tries
    ) -> str | None:
        """Refresh the route if it may be out of date, and return the broker to avoid."""
        # Spend at most half of the time left on the lookup: the next attempt then uses the known route and its error.
        before = self._client.routes.find(parcel.topic)
        with contextlib.suppress(*_FAILURES):
            if is_topic_unknown(error):
                await self._client.recheck_route(parcel.topic, tries.remaining_s / 2)
            known = self._client.routes.find(parcel.topic)
            if is_not_leader(error) or (is_route_stale(error) and known is not None and known.leaders):
                await self._client.refresh_leaders(parcel.topic)
            elif is_route_stale(error) and not is_topic_unknown(error):
                await self._client.publish_route(parcel.topic, refresh=True, timeout_s=tries.remaining_s / 2)
        route = self._client.routes.find(parcel.topic)
        if route is None and is_topic_unknown(error):
            return None  # The topic is missing: the next attempt reports that without a pause.
        avoid = None
        if queue is not None and before is not None and route is not None:
            if is_not_leader(error) and route.broker_of(queue) != before.broker_of(queue):
                return None  # Another broker leads it now: there is nothing to wait for.
            stays = parcel.key is not None or parcel.queue is not None
            if not (stays or is_not_leader(error)) and len(route.masters) > 1:
                avoid = route.broker_of(queue)
        if avoid is None or tries.rounds > _ROUNDS_AT_ONCE:
            await asyncio.sleep(min(backoff_ms(tries.rounds) / 1000, tries.remaining_s))
        return avoid


class _Tries:
    """The attempts of one send so far.

    Attributes:
        begun_s: When the first attempt began.
        deadline_s: When the time of the send is over.
        count: The number of attempts, except those that a broker redirected to another leader.
        rounds: The number of all attempts.
        maybe_stored: Whether an attempt got no answer.
        is_over: Whether another attempt is useless or not allowed.
    """

    def __init__(self, allowed: int, begun_s: float, deadline_s: float) -> None:
        self.begun_s = begun_s
        self.deadline_s = deadline_s
        self.count = 0
        self.rounds = 0
        self.maybe_stored = False
        self.is_over = False
        self._remaining = allowed

    @property
    def remaining_s(self) -> float:
        """The time left, in seconds."""
        return max(0.0, self.deadline_s - monotonic())

    def to_failure(self, error: HoldfastError) -> SendFailed:
        """Return the failure of the send, whose last attempt ended with *error*."""
        failure = SendFailed(error, attempts=max(1, self.count), maybe_stored=self.maybe_stored)
        failure.__cause__ = error
        return failure

    def record(
        self, error: HoldfastError, queue: MessageQueue | None, *, is_queue_fixed: bool, is_static: bool
    ) -> None:
        """Record an attempt that ended with *error*."""
        self.rounds += 1
        if is_not_leader(error):
            return
        self.count += 1
        # Without a queue, the attempt asked only a name server.
        has_queue = queue is not None
        maybe_sent = has_queue and _maybe_sent(error)
        self.maybe_stored = self.maybe_stored or maybe_sent
        waits = only_time_helps(
            error, has_queue=has_queue, maybe_sent=maybe_sent, is_queue_fixed=is_queue_fixed, is_static=is_static
        )
        if waits and self._remaining > 1:
            return
        self._remaining -= 1
        self.is_over = self._remaining <= 0 or not is_retryable(error)


async def find_queues(client: ClusterClient, topic: str, timeout_s: float) -> tuple[MessageQueue, ...]:
    """Return the queues over which keys of *topic* are spread.

    Raises:
        SendFailed: they are unknown, so that nothing can be sent.
    """
    try:
        return require_publishable(await client.publish_route(topic, timeout_s=timeout_s), topic)
    except HoldfastError as error:
        raise SendFailed(error, attempts=1, maybe_stored=False) from error


def _wire_queue(queue: MessageQueue, topic: str) -> MessageQueue:
    """Return a queue as routes name it: the broker of a logical queue has two names."""
    return MessageQueue(topic, to_wire_broker(queue.broker_name), queue.queue_id)


def _lacks(route: TopicRoute, queue: MessageQueue, topic: str) -> bool:
    """Return whether *queue* is a logical queue that the static topic of *route* does not have."""
    if not route.leaders or queue in route.leaders or not is_mock_broker(queue.broker_name):
        return False
    return _wire_queue(queue, topic) not in route.leaders


def _find_named(route: TopicRoute, queue: MessageQueue, topic: str) -> MessageQueue:
    """Return the queue that a caller named.

    Raises:
        RouteNotFound: the static topic does not have it.
    """
    if not route.leaders or queue in route.leaders or not is_mock_broker(queue.broker_name):
        return queue
    named = _wire_queue(queue, topic)
    if named in route.leaders:
        return named
    broker_names = sorted({known.broker_name for known in route.leaders})
    if named.broker_name in broker_names:
        count = sum(known.broker_name == named.broker_name for known in route.leaders)
        raise RouteNotFound(
            f"static topic {topic!r} has no queue {queue.queue_id}: it has {count}, numbered from 0 to {count - 1}"
        )
    shown = ", ".join(map(to_shown_broker, broker_names))
    raise RouteNotFound(f"static topic {topic!r} has no queues of {queue.broker_name!r}; it has those of {shown}")


def _host_text(address: str) -> str:
    """Return the prefix of the ids of messages stored at *address*, or nothing if it is not an IP address."""
    try:
        return pack_host(address).hex().upper()
    except LocalProtocolError:
        return ""


def _maybe_sent(error: HoldfastError) -> bool:
    """Return whether the broker may have executed a request that ended with *error*."""
    return isinstance(error, RequestTimeout) or (isinstance(error, ConnectionLost) and error.was_sent)


def _read_receipt(reply: SendReply, parcel: Parcel, queue: MessageQueue, address: str) -> Receipt:
    """Return the receipt in *reply*.

    Raises:
        BrokerRefused: it is a refusal.
        RemoteProtocolError: a success without the position of the message.
    """
    status = _STORED.get(reply.code)
    if status is None:
        if reply.code == ResponseCode.NOT_LEADER_FOR_QUEUE and reply.fields.leader == NO_BROKER:
            raise NoLeader(reply.code, reply.remark or "", address=address)
        raise refusal(reply.code, reply.remark, address=address)
    fields = reply.fields
    queue_id, offset = fields.queue_id, fields.queue_offset
    if queue_id is None or offset is None:
        raise RemoteProtocolError(f"{address} stored a message but did not return its queue and offset")
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    message_id = parcel.outgoing.message_id
    result = SendResult(message_id, queue, LogicalOffset(offset), fields.msg_id, status)
    leader = None if fields.leader is None else Leader(fields.leader, fields.generation)
    return Receipt(result, address, fields.transaction_id or message_id, leader)
