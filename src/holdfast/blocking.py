"""The client library for programs without asyncio: the same names and arguments, but blocking calls.

    from holdfast import blocking

    with blocking.Producer("127.0.0.1:9876", group="shop") as producer:
        producer.send("orders", b"one book", key="customer-17")

All objects share one event loop in one background thread, which starts with the first object and ends with the process.
Any thread may call. Listeners that are plain functions run in other threads.

A forked child has a separate loop. It cannot use clients that its parent opened (`ForkedClient`): create them after the
fork.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack, overload

from holdfast.client import producer as async_producer
from holdfast.client import pull_consumer as async_pull_consumer
from holdfast.client import push_consumer as async_push_consumer
from holdfast.client.access.credentials_options import CredentialsArguments
from holdfast.client.cluster.queue_rpc import Start
from holdfast.client.consume.listener import Listener
from holdfast.client.consume.pull_plan import Prefetch
from holdfast.client.messages.arguments import check_message, check_queue
from holdfast.client.produce import transaction as async_transaction
from holdfast.client.produce.batch_lines import MESSAGE_OVERHEAD_BYTES, Batching
from holdfast.client.produce.transaction import Checker
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ProducerFull
from holdfast.model.filter import EVERYTHING
from holdfast.model.message import Message, ReceivedMessage, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.runtime.process.background_loop import BackgroundLoop
from holdfast.runtime.process.fork import register_after_fork
from holdfast.wire.records.compression import Codec

_T = TypeVar("_T")


class ProducerOptions(CredentialsArguments, total=False):
    """The options of `holdfast.Producer`."""

    namespace: str | None
    timeout_s: float
    retries: int
    compress_over: int | None
    codec: Codec
    batch_bytes_max: int
    batching: Batching | None
    transaction_checker: Checker | None
    topic_expiry_s: float | None
    name_server_refresh_s: float | None
    unit: str | None
    tls: ClientTls | None


class PushOptions(CredentialsArguments, total=False):
    """The options of `holdfast.PushConsumer`."""

    listener: Listener | None
    ordered: bool
    broadcast: bool
    offset_file: Path | str | None
    namespace: str | None
    start: Start
    concurrency: int
    retries_max: int | None
    pause_s: float
    prefetch: Prefetch | None
    close_timeout_s: float
    name_server_refresh_s: float | None
    unit: str | None
    tls: ClientTls | None


class PullOptions(CredentialsArguments, total=False):
    """The options of `holdfast.PullConsumer`."""

    namespace: str | None
    start: Start
    auto_commit: bool
    prefetch: Prefetch | None
    name_server_refresh_s: float | None
    unit: str | None
    tls: ClientTls | None


_background: Final = BackgroundLoop("holdfast")
_wait: Final = _background.run


async def _call(function: Callable[[], _T]) -> _T:
    """Call a plain function on the loop, where the client's state lives."""
    return function()


class Producer:
    """Sends messages. Accepts the arguments of `holdfast.Producer`; use `with`, or call `start` and `close`."""

    def __init__(
        self, namesrv: str, group: str = async_producer.DEFAULT_GROUP, **options: Unpack[ProducerOptions]
    ) -> None:
        self._producer = _wait(_call(lambda: async_producer.Producer(namesrv, group, **options)))
        self._pending_lock = threading.Lock()
        # Messages from threads that the loop has not accepted yet: message, queue, future.
        self._pending: list[tuple[Message, MessageQueue | None, Future[SendResult]]] = []
        self._pending_bytes = 0
        register_after_fork(self._reset_after_fork)

    def _reset_after_fork(self) -> None:
        """Replace the lock in a forked child, so that calls can fail cleanly: a thread of the parent may hold it."""
        self._pending_lock = threading.Lock()
        self._pending, self._pending_bytes = [], 0

    def start(self) -> None:
        """Start the producer."""
        _wait(self._producer.start())

    def close(self) -> None:
        """Wait for every send in flight, and close."""
        _wait(self._producer.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """The id of this producer at brokers."""
        return self._producer.client_id

    @overload
    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult: ...
    @overload
    def send(
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
    def send(  # noqa: PLR0913 - one name for each part of a message
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
        """Send one message, given as a `Message` or as topic and body. See `holdfast.Producer.send`."""
        full_message = async_producer.as_message(message, body, key, tags, keys, delay_level, properties)
        return _wait(self._producer.send(full_message, queue=queue, timeout_s=timeout_s))

    def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers from now on. See `holdfast.Producer.set_name_servers`."""
        _wait(self._producer.set_name_servers(namesrv))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of *topic* that accept messages. See `holdfast.Producer.queues`."""
        return _wait(self._producer.queues(topic))

    def send_many(self, messages: Iterable[Message], *, timeout_s: float | None = None) -> list[SendResult]:
        """Send many messages in few requests. See `holdfast.Producer.send_many`."""
        return _wait(self._producer.send_many(list(messages), timeout_s=timeout_s))

    def send_nowait(self, message: Message, *, queue: MessageQueue | None = None) -> Future[SendResult]:
        """Accept *message*, to be sent a moment later together with others. See `holdfast.Producer.send_nowait`.

        A message that cannot be sent unchanged ends its future with `LocalProtocolError`.

        Raises:
            ProducerFull: more sends are unacknowledged than `batching` allows. The message was not accepted.
            TypeError: an argument has a wrong type.
        """
        check_message(message)
        if queue is not None:
            check_queue("queue", queue)
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()  # A message cannot be recalled, so its future cannot be cancelled.
        with self._pending_lock:
            if not self._producer.has_room(len(message.body), ahead=self._pending_bytes):
                raise ProducerFull("too many sends are unacknowledged: wait for a future")
            is_first = not self._pending
            self._pending.append((message, queue, future))
            self._pending_bytes += len(message.body) + MESSAGE_OVERHEAD_BYTES
        if is_first:
            # The loop accepts this message together with those that other threads add before it wakes up.
            _background.call_soon(self._accept_pending)
        return future

    def _accept_pending(self) -> None:
        with self._pending_lock:
            pending, self._pending, self._pending_bytes = self._pending, [], 0
        for message, queue, future in pending:
            try:
                self._producer.hand_over(message, future, queue)
            except Exception as error:  # noqa: BLE001 - an error of one message must not affect the others
                future.set_exception(error)

    def send_soon(self, message: Message, *, queue: MessageQueue | None = None) -> Future[SendResult]:
        """Accept *message* as `send_nowait` does, but wait instead of raising. See `holdfast.Producer.send_soon`."""
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()
        _wait(self._producer.hand_over_soon(message, future, queue))
        return future

    def has_room(self, byte_count: int, *, ahead: int = 0) -> bool:
        """Return whether `send_nowait` would accept *byte_count* bytes now. See `holdfast.Producer.has_room`."""
        return self._producer.has_room(byte_count, ahead=ahead + self._pending_bytes)

    def flush(self) -> None:
        """Return when every returned future is done. See `holdfast.Producer.flush`."""
        _wait(self._producer.flush())

    def send_oneway(self, message: Message) -> None:
        """Send one message without waiting for an answer. See `holdfast.Producer.send_oneway`."""
        _wait(self._producer.send_oneway(message))

    def transaction(self, message: Message, *, timeout_s: float | None = None) -> Transaction:
        """Return a transaction: `with producer.transaction(message) as transaction: ...`.

        The message is delivered if the block ends normally, and never if it raises.
        See `holdfast.Producer.transaction`.
        """
        return Transaction(self._producer.transaction(message, timeout_s=timeout_s))

    def request(self, message: Message, *, timeout_s: float = 10.0) -> ReceivedMessage:
        """Send *message* and return the reply of its consumer. See `holdfast.Producer.request`."""
        return _wait(self._producer.request(message, timeout_s=timeout_s))

    def reply(self, request: ReceivedMessage, body: bytes, *, timeout_s: float | None = None) -> SendResult:
        """Reply to a message that was sent with `request`. See `holdfast.Producer.reply`."""
        return _wait(self._producer.reply(request, body, timeout_s=timeout_s))


class Transaction:
    """One transactional message: `with producer.transaction(message) as transaction: ...`.

    Entering stores the half message, which no consumer sees. Leaving normally commits it; leaving with an exception
    rolls it back and lets the exception through. `commit` and `roll_back` decide earlier.
    """

    def __init__(self, transaction: async_transaction.Transaction) -> None:
        self._transaction = transaction

    @property
    def message_id(self) -> str:
        """The id of the message; consumers see the same id."""
        return self._transaction.message_id

    @property
    def queue(self) -> MessageQueue:
        """The queue that will hold the message."""
        return self._transaction.queue

    def __enter__(self) -> Self:
        """Store the half message."""
        _wait(self._transaction.__aenter__())
        return self

    def commit(self) -> SendResult:
        """Commit: let the message be delivered. See `holdfast.Transaction.commit`."""
        return _wait(self._transaction.commit())

    def roll_back(self) -> None:
        """Roll back: the message is never delivered. See `holdfast.Transaction.roll_back`."""
        _wait(self._transaction.roll_back())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit, or roll back if the block raised, unless the transaction was completed before."""
        _wait(self._transaction.__aexit__(kind, error, traceback))


class PushConsumer:
    """Consumes topics as a member of a group. Accepts the arguments of `holdfast.PushConsumer`."""

    def __init__(self, namesrv: str, group: str, **options: Unpack[PushOptions]) -> None:
        self._consumer = _wait(_call(lambda: async_push_consumer.PushConsumer(namesrv, group, **options)))

    def subscribe(self, topic: str, tags: str = EVERYTHING) -> None:
        """Consume *topic*. See `holdfast.PushConsumer.subscribe`."""
        _wait(_call(lambda: self._consumer.subscribe(topic, tags)))

    def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers from now on. See `holdfast.PushConsumer.set_name_servers`."""
        _wait(self._consumer.set_name_servers(namesrv))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of *topic*, including those that other members consume."""
        return _wait(self._consumer.queues(topic))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming *topic*."""
        _wait(_call(lambda: self._consumer.unsubscribe(topic)))

    def start(self) -> None:
        """Join the group and start consuming."""
        _wait(self._consumer.start())

    def close(self) -> None:
        """Leave the group; consumed messages are neither lost nor consumed again."""
        _wait(self._consumer.close())

    def run(self) -> None:
        """Block until another thread closes the consumer; an interrupt closes it, too."""
        _wait(self._consumer.run())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Iterate over messages; requesting the next one completes the previous one. See `holdfast.PushConsumer`."""
        return _iterate(aiter(self._consumer))

    def ack(self, message: ReceivedMessage) -> None:
        """Complete a message of the loop before the loop requests the next one."""
        _wait(_call(lambda: self._consumer.ack(message)))

    def retry(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Let a message of the loop be redelivered later."""
        _wait(self._consumer.retry(message, delay_level))

    @property
    def client_id(self) -> str:
        """The id of this member at brokers."""
        return self._consumer.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this member consumes now."""
        return self._consumer.assignment


class PullConsumer:
    """Reads queues on demand. Accepts the arguments of `holdfast.PullConsumer`."""

    def __init__(self, namesrv: str, group: str, **options: Unpack[PullOptions]) -> None:
        self._consumer = _wait(_call(lambda: async_pull_consumer.PullConsumer(namesrv, group, **options)))

    def start(self) -> None:
        """Start the consumer."""
        _wait(self._consumer.start())

    def close(self, *, last_poll_done: bool = True) -> None:
        """Commit if `auto_commit` is on, then close."""
        _wait(self._consumer.close(last_poll_done=last_poll_done))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(last_poll_done=error is None)

    def subscribe(self, topic: str, tags: str = EVERYTHING) -> None:
        """Read *topic* together with the other members of the group. See `holdfast.PullConsumer.subscribe`."""
        _wait(_call(lambda: self._consumer.subscribe(topic, tags)))

    def unsubscribe(self, topic: str) -> None:
        """Stop reading *topic*."""
        _wait(_call(lambda: self._consumer.unsubscribe(topic)))

    def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers from now on. See `holdfast.PullConsumer.set_name_servers`."""
        _wait(self._consumer.set_name_servers(namesrv))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of *topic*."""
        return _wait(self._consumer.queues(topic))

    def assign(self, queues: Iterable[MessageQueue], tags: str = EVERYTHING) -> None:
        """Read exactly *queues*, even if other members read them. See `holdfast.PullConsumer.assign`."""
        _wait(self._consumer.assign(list(queues), tags))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return self._consumer.assignment

    def poll(
        self, timeout_s: float = 1.0, *, messages_max: int = async_pull_consumer.POLL_MAX
    ) -> list[ReceivedMessage]:
        """Return the next messages; an empty list if none arrived in time, or if another thread closes the consumer.

        The messages that the previous poll returned are now completed. See `holdfast.PullConsumer.poll`.
        """
        return _wait(self._consumer.poll(timeout_s, messages_max=messages_max))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed; requesting the next one completes the previous one."""
        return _iterate(aiter(self._consumer))

    def seek(self, queue: MessageQueue, to: int | Start) -> None:
        """Continue at an offset, at either end, or at a time."""
        _wait(self._consumer.seek(queue, to))

    def seek_all(self, to: Start) -> None:
        """Continue at either end, or at a time, in every queue."""
        _wait(self._consumer.seek_all(to))

    def pause(self, *queues: MessageQueue) -> None:
        """Stop returning messages of *queues* until `resume`."""
        _wait(_call(lambda: self._consumer.pause(*queues)))

    def resume(self, *queues: MessageQueue) -> None:
        """Read *queues* again."""
        _wait(_call(lambda: self._consumer.resume(*queues)))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of *queue* that `poll` returns."""
        return self._consumer.position(queue)

    def offset_of(self, queue: MessageQueue, at: Start) -> int:
        """Return the offset that *at* means in *queue* now."""
        return _wait(self._consumer.offset_of(queue, at))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of *queue*, or None if there is none."""
        return _wait(self._consumer.committed(queue))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit *offsets*, or everything that `poll` has returned."""
        _wait(self._consumer.commit(offsets))


def _iterate(messages: AsyncIterator[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    """Yield *messages*, blocking for each. Ends when the consumer is closed, by any thread."""
    while True:
        try:
            message = _wait(_next(messages))
        except StopAsyncIteration:
            return
        yield message


async def _next(iterator: AsyncIterator[ReceivedMessage]) -> ReceivedMessage:
    return await anext(iterator)
