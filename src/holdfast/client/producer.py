"""`Producer`: sends messages.

    async with Producer("127.0.0.1:9876", group="shop") as producer:
        result = await producer.send("orders", b"...", key="customer-17", tags="paid")

Thousands of sends may be in flight at once. Messages of one key are stored in the order in which they were sent, even
when a send is retried; messages without a key go to any queue.

Keys are spread over the queues of a topic. If order matters, create the topic first: an automatically created topic
gets its queues only with the first send. Adding queues moves keys to other queues. The queues of a static topic stay
while brokers come and go: a key keeps its queue, and its order, when the queue's leader changes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Final, Self, Unpack, overload

import msgspec

from holdfast.client.access.credentials_options import CredentialsArguments, credentials_options
from holdfast.client.cluster.cluster_client import ClientCallbacks, ClusterClient, now_ms
from holdfast.client.cluster.heartbeat import heartbeat_command, unregister_command
from holdfast.client.cluster.send_plan import RETRIES_DEFAULT
from holdfast.client.cluster.server_request import ServerRequest
from holdfast.client.messages.arguments import (
    check_callable,
    check_count,
    check_keys,
    check_kind,
    check_message,
    check_name,
    check_queue,
    check_seconds,
)
from holdfast.client.messages.in_flight import InFlight
from holdfast.client.messages.namespace import with_namespace
from holdfast.client.messages.packing import COMPRESS_OVER, Outgoing, Packing, pack
from holdfast.client.options import ClientOptions
from holdfast.client.produce.accumulator import Accumulator
from holdfast.client.produce.batch_lines import Batching, SendFuture, check_batch_size
from holdfast.client.produce.batch_plan import BATCH_BYTES_MAX
from holdfast.client.produce.batch_sender import BatchSender
from holdfast.client.produce.inner_batch_support import InnerBatchSupport
from holdfast.client.produce.key_sequencer import KeySequencer
from holdfast.client.produce.request_reply import PendingRequests, reply_to, request_properties
from holdfast.client.produce.send_many import SendMany
from holdfast.client.produce.sender import SEND_TIMEOUT_S, Parcel, Receipt, Sender
from holdfast.client.produce.transaction import Checker, ProducerTransactions, Transaction
from holdfast.model import property_names as names
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import HoldfastError, LocalProtocolError, RequestTimeout, RouteNotFound, SendFailed
from holdfast.model.message import Message, ReceivedMessage, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.model.unique_id import UniqueIds
from holdfast.runtime.process.fork import register_after_fork
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.host import format_host
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.record import TRANSACTION_PREPARED

DEFAULT_GROUP: Final = "holdfast"
TOPIC_EXPIRY_S: Final = 300.0


class Producer:
    """Sends messages. Use it with `async with`, or `start` and `close` it.

    Args:
        namesrv: Name servers: `host:port;host:port`, or the URL of an address server that returns such a list.
        group: The producer group. Brokers ask a producer of the group about unfinished transactions.
        namespace: The prefix of the names of topics and of the group.
        timeout_s: How long a send may take, all attempts together.
        retries: The number of retries of a send when a broker is busy, gone or silent.
        compress_over: Bodies of at least this many bytes are compressed; None for never.
        codec: The compression codec. Every client reads ZLIB; clients older than 4.9.4 read nothing else.
        batch_bytes_max: The maximum size of a request of `send_many`.
        batching: How `send_nowait` and `send_soon` collect messages into batches; `send_many` uses its codec, too.
        transaction_checker: Decides transactions whose outcome no producer remembers, see `transaction`.
        topic_expiry_s: After how long without a send the route of a topic is forgotten; None for never. Topics of
            transactions are kept: brokers may ask about them at any time.
        name_server_refresh_s: How often to re-resolve the name server list; None for every 30 s if it has host names,
            and every 120 s with an address server.
        unit: The unit, a cluster, whose queues are visible; None for all.
        tls: Use TLS on every connection; None for plain connections.
        **access: Who the client is, see `CredentialsArguments`. Without it, the client works only where there is no
            access control.
    """

    def __init__(  # noqa: PLR0913 - one name for each option
        self,
        namesrv: str,
        group: str = DEFAULT_GROUP,
        *,
        namespace: str | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES_DEFAULT,
        compress_over: int | None = COMPRESS_OVER,
        codec: Codec = Codec.ZLIB,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        batching: Batching | None = None,
        transaction_checker: Checker | None = None,
        topic_expiry_s: float | None = TOPIC_EXPIRY_S,
        name_server_refresh_s: float | None = None,
        unit: str | None = None,
        tls: ClientTls | None = None,
        **access: Unpack[CredentialsArguments],
    ) -> None:
        check_name("group", group)
        check_seconds("timeout_s", timeout_s, least=0)
        check_count("retries", retries)
        check_count("compress_over", compress_over, optional=True)
        check_kind("codec", codec, Codec)
        check_kind("batching", batching, Batching, optional=True)
        check_callable("transaction_checker", transaction_checker)
        options = ClientOptions(
            namesrv,
            namespace=namespace,
            name_server_refresh_s=name_server_refresh_s,
            topic_expiry_s=topic_expiry_s,
            remembers_missing=True,
            unit=unit,
            tls=tls,
            credentials=credentials_options(**access),
        )
        self._namespace = namespace
        self._group = options.wire_name(group)
        self._timeout_s = timeout_s
        self._packing = Packing(compress_over=compress_over, codec=codec)
        check_batch_size(batch_bytes_max)
        self._batch_bytes_max = batch_bytes_max
        self._batching = batching or Batching()
        self._pending_requests = PendingRequests()
        callbacks = ClientCallbacks(
            handlers={
                RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._pending_requests.handle_reply,
            },
            heartbeat=lambda: heartbeat_command(self._client.client_id, producer=self._group),
            goodbyes=lambda: [unregister_command(self._client.client_id, producer=self._group)],
            broker_down=self._forget_broker,
            topics_forgotten=self._forget,
        )
        self._client = ClusterClient(options, callbacks)
        self._transactions = ProducerTransactions(
            self._client, self._group, checker=transaction_checker, namespace=namespace
        )
        self._inner_batch_support = InnerBatchSupport(self._client)
        self._sender = Sender(self._client, self._group, retries=retries, inner_batch_support=self._inner_batch_support)
        self._sequencer = KeySequencer()
        self._ids: UniqueIds | None = None
        self._accumulator: Accumulator | None = None
        self._in_flight = InFlight()

    # Opening and closing.

    async def start(self) -> None:
        """Start the producer. Connects only to an address server, if there is one.

        Raises:
            ConnectionLost: the address server returned no name servers.
            ForkedClient: this process is a fork of the one that opened the producer.
        """
        await self._client.start()
        register_after_fork(self._reset_after_fork)
        self._ids = UniqueIds(
            host=ipaddress.ip_address(self._client.local_address).packed,
            process=os.getpid(),
            salt=self._client.random.getrandbits(32),
            utc_offset_ms=time.localtime().tm_gmtoff * 1000,
        )
        sender = self._batch_sender(self._packing)
        self._accumulator = Accumulator(self._client, sender, self._sequencer, self._batching)

    async def close(self) -> None:
        """Let every send in flight end, unregister at the brokers and close. Later sends fail.

        In a forked child this does nothing: the producer belongs to the parent.
        """
        if self._client.is_inherited:
            return
        self._ids = None
        accumulator, self._accumulator = self._accumulator, None
        if accumulator is not None:
            with self._in_flight:  # A concurrent call must not close the connections meanwhile.
                await accumulator.drain()
        await self._in_flight.wait_until_idle()
        await self._client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The name under which brokers know this producer."""
        return self._client.client_id

    async def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers from now on; *namesrv* is as in the constructor.

        Raises:
            ConfigError: *namesrv* is not valid.
            ConnectionLost: the address server returned no list. Then nothing changes.
        """
        await self._client.set_name_servers(namesrv)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that accept messages for *topic*, in the order by which keys are spread over them.

        Queues of a static topic carry the name of a broker that does not exist: no broker owns them permanently.

        Raises:
            RouteNotFound: no broker serves the topic.
        """
        check_name("topic", topic)
        return list((await self._client.publish_route(with_namespace(self._namespace, topic))).publishable)

    # Sending.

    @overload
    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult: ...
    @overload
    async def send(
        self,
        message: str,
        body: bytes,
        *,
        key: str | None = None,
        tags: str | None = None,
        keys: Sequence[str] = (),
        delay_level: int = 0,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult: ...
    async def send(  # noqa: PLR0913 - one name for each part of a message
        self,
        message: Message | str,
        body: bytes = b"",
        *,
        key: str | None = None,
        tags: str | None = None,
        keys: Sequence[str] = (),
        delay_level: int = 0,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message, given as a `Message` or as topic and body, and return its position.

        Args:
            message: The message, or the topic.
            body: The payload.
            key: See `Message`.
            tags: See `Message`.
            keys: See `Message`.
            delay_level: See `Message`.
            properties: See `Message`.
            queue: The only queue it may go to. Overrides the key's.
            timeout_s: How long all attempts together may take.

        Raises:
            SendFailed: the message was not acknowledged. `maybe_stored` says whether it may be stored nevertheless.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        message = as_message(message, body, key, tags, keys, delay_level, properties)
        if queue is not None or self._namespace:
            message = self._on_wire(message, queue)
        outgoing = self._pack(message)
        if timeout_s is None:
            timeout_s = self._timeout_s
        else:
            check_seconds("timeout_s", timeout_s)
        parcel = Parcel(message.topic, outgoing, message.key, queue)
        with self._in_flight:
            if message.key is None:
                return (await self._sender.send(parcel, timeout_s)).result
            if self._accumulator:
                await self._accumulator.close_batches(((message.topic, message.key),))
            with self._sequencer.turn(((message.topic, message.key),)) as turn:
                if not turn.is_ready:
                    await turn.wait_until_ready()
                return (await self._sender.send(parcel, timeout_s)).result

    async def send_many(self, messages: Iterable[Message], *, timeout_s: float | None = None) -> list[SendResult]:
        """Send many messages in few requests and return the position of each, in the given order.

        Messages with keys go to the queues of their keys and keep their order there. Messages without keys are sent in
        as few requests as possible, each to any queue. Delayed messages are sent alone.

        Raises:
            SendManyFailed: some messages were not acknowledged; `results` has the result of each.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
            LocalProtocolError: a message cannot be sent unchanged; then none was sent.
        """
        check_seconds("timeout_s", timeout_s, optional=True)
        wire_messages = [self._on_wire(message) for message in messages] if self._namespace else [*messages]
        batch = SendMany(
            self._client,
            self._batch_sender(_UNCOMPRESSED, timeout_s),
            wire_messages,
            bytes_max=self._batch_bytes_max,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
        )
        keys = {(message.topic, message.key) for message in wire_messages if message.key is not None}
        with self._in_flight:
            if self._accumulator:
                await self._accumulator.close_batches(keys)
            with self._sequencer.turn(keys) as turn:
                await turn.wait_until_ready()
                return await batch.send()

    def send_nowait(self, message: Message, *, queue: MessageQueue | None = None) -> asyncio.Future[SendResult]:
        """Accept *message*, to be sent a moment later together with others, and return a future of its position.

        The future ends with `SendFailed` if the message was not acknowledged. Cancelling it does not withdraw the
        message. Messages of one key are stored in the order of the calls, whichever way they are sent.

        Args:
            message: The message.
            queue: The only queue it may go to. Overrides the key's.

        Raises:
            ProducerFull: `batching` allows no more unacknowledged bytes. The message was not accepted.
            TypeError: an argument has a wrong type.
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        accumulator = self._accumulator
        if accumulator is None:
            accumulator = self._require_accumulator()
        if queue is not None or self._namespace or message.__class__ is not Message:
            message = self._on_wire(message, queue)
        future: asyncio.Future[SendResult] = accumulator.loop.create_future()
        accumulator.put(message, future, queue)
        return future

    async def send_soon(self, message: Message, *, queue: MessageQueue | None = None) -> asyncio.Future[SendResult]:
        """Accept *message* as `send_nowait` does, but wait while the limit of unacknowledged bytes is reached.

        Raises:
            TypeError: an argument has a wrong type.
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        await self.hand_over_soon(message, future, queue)
        return future

    async def flush(self) -> None:
        """Send all messages given to `send_nowait` and `send_soon` without lingering, and wait for the answers.

        Afterwards every future is done. Only the futures report failures.
        """
        self._client.check_process()
        if self._accumulator is not None:
            await self._accumulator.flush()

    def has_room(self, byte_count: int, *, ahead: int = 0) -> bool:
        """Return whether `send_nowait` would accept a message of *byte_count* bytes now. Any thread may call it.

        Args:
            byte_count: The size of the body.
            ahead: The bytes that will be accepted before it.

        Raises:
            LocalProtocolError: the producer is not open.
        """
        check_count("byte_count", byte_count)
        check_count("ahead", ahead)
        return self._require_accumulator().has_room(byte_count, ahead)

    def hand_over(self, message: Message, future: SendFuture, queue: MessageQueue | None = None) -> None:
        """Accept *message* as `send_nowait` does, for a caller with its own future that has called `has_room`.

        Raises:
            TypeError: an argument has a wrong type.
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        self._require_accumulator().put_admitted(self._on_wire(message, queue), future, queue)

    async def hand_over_soon(self, message: Message, future: SendFuture, queue: MessageQueue | None = None) -> None:
        """Accept *message* as `send_soon` does, for a caller with its own future."""
        await self._require_accumulator().put_soon(self._on_wire(message, queue), future, queue)

    async def send_oneway(self, message: Message) -> None:
        """Send one message without waiting for an answer: fast, but whether it arrived remains unknown.

        Raises:
            SendFailed: no broker is reachable; the message was certainly not stored.
            TypeError: an argument has a wrong type.
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        message = self._on_wire(message)
        with self._in_flight:
            await self._sender.send_one_way(Parcel(message.topic, self._pack(message), message.key), self._timeout_s)

    def transaction(self, message: Message, *, timeout_s: float | None = None) -> Transaction:
        """Return a transaction: `async with producer.transaction(message) as transaction: ...`.

        The message is delivered if the block ends normally, and never if it raises. If this process dies in between,
        the broker asks a producer of the same group, whose `transaction_checker` decides.

        Raises:
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
        """
        check_seconds("timeout_s", timeout_s, optional=True)
        message = self._on_wire(message)

        async def send() -> Receipt:
            if message.delay_level:
                raise LocalProtocolError("a message of a transaction cannot be delayed")
            extra = {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: self._group}
            half = self._pack(message, extra)
            half = msgspec.structs.replace(half, sys_flag=half.sys_flag | TRANSACTION_PREPARED)
            self._transactions.begin(half.message_id)
            with self._in_flight:
                receipt = await self._send_parcel(Parcel(message.topic, half, message.key), timeout_s)
            self._client.routes.keep(message.topic)
            return receipt

        return Transaction(self._transactions, send, message.topic)

    async def request(self, message: Message, *, timeout_s: float = 10.0) -> ReceivedMessage:
        """Send *message* and return the reply of its consumer, see `reply`.

        Raises:
            RequestTimeout: no consumer replied in time.
            SendFailed: the request could not be sent.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
        """
        check_seconds("timeout_s", timeout_s, least=0)
        if math.isinf(timeout_s):
            raise ValueError(
                "timeout_s must be finite: the request carries it, so that a consumer knows how long a reply is of use"
            )
        message = self._on_wire(message)
        correlation_id, reply = self._pending_requests.begin()
        extra = request_properties(correlation_id, self._client.client_id, timeout_s)
        try:
            parcel = Parcel(message.topic, self._pack(message, extra), message.key)
            async with asyncio.timeout(timeout_s):
                await self._announce(message.topic)
                with self._in_flight:
                    await self._send_parcel(parcel, timeout_s)
                return await reply
        except TimeoutError:
            raise RequestTimeout(
                f"no client replied to a request in {message.topic!r} within {timeout_s:g} s"
            ) from None
        finally:
            reply.cancel()

    async def reply(self, request: ReceivedMessage, body: bytes, *, timeout_s: float | None = None) -> SendResult:
        """Reply to a received message that was sent with `request`.

        Args:
            request: The received message.
            body: The payload of the reply.
            timeout_s: How long all attempts together may take.

        Raises:
            SendFailed: no broker could deliver the reply; the requester may be gone.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
            LocalProtocolError: *request* does not ask for a reply.
        """
        check_kind("request", request, ReceivedMessage)
        check_seconds("timeout_s", timeout_s, optional=True)
        message, extra = reply_to(request, body)
        outgoing = self._pack(message, extra)
        deadline_s = monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        try:
            route = await self._client.publish_route(message.topic, timeout_s=deadline_s - monotonic())
        except HoldfastError as error:
            raise SendFailed(error, attempts=1, maybe_stored=False) from error
        # Try the broker that stored the request first: the requester is connected to it.
        holder = request.queue.broker_name
        if is_mock_broker(holder):
            holder = self._client.routes.find_broker(format_host(request.store_host)) or holder
        queues = sorted(route.publishable, key=lambda queue: queue.broker_name != holder)
        failure = SendFailed(RouteNotFound(f"no broker serves {message.topic!r}"), attempts=1, maybe_stored=False)
        for queue in queues:
            parcel = Parcel(message.topic, outgoing, queue=queue, code=RequestCode.SEND_REPLY_MESSAGE_V2)
            try:
                return (await self._sender.send(parcel, max(0.0, deadline_s - monotonic()), retries=0)).result
            except SendFailed as error:
                failure = error  # Another broker may be connected to the requester.
            if monotonic() >= deadline_s:
                break
        raise failure

    # Internals.

    async def _send_parcel(self, parcel: Parcel, timeout_s: float | None) -> Receipt:
        return await self._sender.send(parcel, self._timeout_s if timeout_s is None else timeout_s)

    def _batch_sender(self, packing: Packing, timeout_s: float | None = None) -> BatchSender:
        """Return a sender that makes ids even when the producer is closed while a batch is in flight."""
        ids = self._require_ids()
        return BatchSender(
            lambda parcel: self._send_parcel(parcel, timeout_s),
            lambda count: ids.next_many(now_ms(), count),
            codec=self._batching.codec,
            packing=packing,
        )

    def _pack(self, message: Message, extra: Mapping[str, str] | None = None) -> Outgoing:
        return pack(message, self._require_ids().next(now_ms()), self._packing, extra)

    def _require_ids(self) -> UniqueIds:
        if self._ids is None:
            self._client.check_process()
            raise LocalProtocolError(_NOT_OPEN)
        return self._ids

    def _require_accumulator(self) -> Accumulator:
        if self._accumulator is None:
            self._client.check_process()
            raise LocalProtocolError(_NOT_OPEN)
        return self._accumulator

    def _reset_after_fork(self) -> None:
        """Close in a forked child without unregistering: the producer belongs to the parent."""
        self._ids = self._accumulator = None

    def _forget(self, topics: list[str]) -> None:
        self._sender.forget(topics)
        self._inner_batch_support.forget(topics)
        if self._accumulator is not None:
            self._accumulator.forget(topics)

    def _forget_broker(self, address: str) -> None:
        self._inner_batch_support.forget_broker(address)

    def _on_wire(self, message: Message, queue: MessageQueue | None = None) -> Message:
        """Return *message* with its topic as the wire knows it, after checking both arguments.

        Raises:
            TypeError: an argument has a wrong type.
            LocalProtocolError: *queue* belongs to another topic.
        """
        check_message(message)
        if self._namespace:
            message = msgspec.structs.replace(message, topic=with_namespace(self._namespace, message.topic))
        if queue is not None:
            check_queue("queue", queue)
            if with_namespace(self._namespace, queue.topic) != message.topic:
                raise LocalProtocolError(f"{queue} is no queue of the topic {message.topic!r}")
        return message

    async def _announce(self, topic: str) -> None:
        """Announce this producer to every broker of *topic*: any of them may have to push the reply."""
        route = await self._client.publish_route(topic)
        if not set(route.masters.values()) <= set(self._client.connected_brokers()):
            await self._client.beat()

    async def _check_transaction(self, request: ServerRequest) -> None:
        await self._transactions.check(request)


def as_message(
    message: Message | str,
    body: bytes,
    key: str | None,
    tags: str | None,
    keys: Sequence[str],
    delay_level: int,
    properties: Mapping[str, str] | None,
) -> Message:
    """Return the message that was given to `send`, whole or in parts.

    Raises:
        TypeError: both a whole message and parts were given.
    """
    if isinstance(message, str):
        if keys.__class__ is not tuple:
            check_keys(keys)
            keys = tuple(keys)
        return Message(message, body, tags, key, keys, delay_level, 0, properties or {})
    if body or key or tags or keys or delay_level or properties:
        raise TypeError("a whole message was given: its parts belong in Message(...), not in send(...)")
    return message


# `send_many` compresses nothing: the flag of a batch is that of all its messages.
_UNCOMPRESSED: Final = Packing(compress_over=None)
_NOT_OPEN: Final = "the producer is not open: use `async with Producer(...) as producer`"
