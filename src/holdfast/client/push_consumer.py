"""`PushConsumer`: consumes as a member of a group and delivers to a listener or to an `async for` loop.

    async with PushConsumer("127.0.0.1:9876", "billing", listener=book) as consumer:
        consumer.subscribe("orders", "paid || shipped")
        await consumer.run()

The brokers store the offsets of the group. Every message is delivered at least once: again after a crash, after a
failure, and occasionally when members join or leave. The restart of a broker causes no redelivery: the consumer keeps
its queues and positions, continues as soon as the broker is back, and commits its offsets there again.

Ordered consumption guarantees for each queue:

- The listener is called with message n + 1 only after n is done. A message is done when the listener returned, or when
  it went to the dead-letter topic. After a crash or a change of owner, all messages from some offset on are redelivered
  in order: messages seen for the first time are always seen in the order of the queue.
- Only the member that holds the queue's lock at its broker begins a message. It stops beginning messages when it loses
  the connection to the broker, until the broker grants the lock again; and 30 s after the lock was last granted, if the
  broker is silent. A broker gives the lock to another member when it was released, or 60 s after it was last renewed.
  A member that gives a queue up waits for the running call, but at most 30 s, before it releases the lock.
- So two members never process one queue at a time, with one exception: a call that is running while its broker is
  restarted, or that outlasts those 30 s, cannot be interrupted; another member may begin the same message meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final, Self, Unpack

from holdfast.client.access.credentials_options import CredentialsArguments, credentials_options
from holdfast.client.cluster.queue_rpc import Start
from holdfast.client.cluster.server_request import ServerRequest
from holdfast.client.consume.concurrent_delivery import ConcurrentDelivery
from holdfast.client.consume.consumer_requests import ConsumerRequests
from holdfast.client.consume.group_member import GroupMember, MemberCallbacks
from holdfast.client.consume.iterator_delivery import IteratorDelivery
from holdfast.client.consume.listener import Listener, ListenerCall, delay_level_of, log_failure
from holdfast.client.consume.lock_renewal import LockRenewal, NoLocks
from holdfast.client.consume.offset_store import OffsetStore
from holdfast.client.consume.ordered_delivery import OrderedDelivery
from holdfast.client.consume.pull_plan import Prefetch, PullLimits
from holdfast.client.consume.queue_reader import Delivery, QueueReader, ReaderContext
from holdfast.client.consume.rebalance import AssignmentChange
from holdfast.client.consume.send_back import TO_DEAD_LETTER, send_back
from holdfast.client.messages.arguments import (
    check_callable,
    check_count,
    check_delay_level,
    check_kind,
    check_name,
    check_seconds,
)
from holdfast.client.options import ClientOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import HoldfastError, LocalProtocolError
from holdfast.model.filter import EVERYTHING
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.command import Command

log = logging.getLogger("holdfast.client")

COMMIT_INTERVAL_S: Final = 5.0


class PushConsumer:
    """Consumes topics as a member of a group. Use it with `async with`, or `start` and `close` it.

    Args:
        namesrv: Name servers: `host:port;host:port`, or the URL of an address server that returns such a list.
        group: The consumer group. Its members share the messages; all of them must have the same subscriptions.
        listener: Called with every message; an async function, or a plain one that may block. Returning means done;
            raising means that the message is redelivered later, see `RetryLater`. Without a listener, iterate.
        ordered: Deliver the messages of each queue one by one, in order; the module docstring has the guarantees. A
            message that fails blocks its queue.
        broadcast: Every member gets every message; failed messages are not redelivered. Offsets are kept in
            *offset_file*.
        offset_file: Where a broadcasting consumer keeps its offsets.
        namespace: The prefix of the names of topics and of the group.
        start: Where to begin with a queue for which the group never committed an offset.
        concurrency: The maximum number of concurrent listener calls; with *ordered*, of queues processed at a time.
        retries_max: How often a failed message is redelivered before it goes to the dead-letter topic; None lets the
            broker decide (16), and with *ordered* means no limit.
        pause_s: How long a queue pauses after a failure, with *ordered*.
        prefetch: How much may be pulled and not done.
        close_timeout_s: How long closing waits for running listeners.
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
        group: str,
        *,
        listener: Listener | None = None,
        ordered: bool = False,
        broadcast: bool = False,
        offset_file: Path | str | None = None,
        namespace: str | None = None,
        start: Start = "latest",
        concurrency: int = 20,
        retries_max: int | None = None,
        pause_s: float = 1.0,
        prefetch: Prefetch | None = None,
        close_timeout_s: float = 30.0,
        name_server_refresh_s: float | None = None,
        unit: str | None = None,
        tls: ClientTls | None = None,
        **access: Unpack[CredentialsArguments],
    ) -> None:
        check_kind("ordered", ordered, bool)
        check_kind("broadcast", broadcast, bool)
        _check_offset_file(offset_file, broadcast=broadcast)
        check_callable("listener", listener)
        check_count("concurrency", concurrency, least=1)
        check_count("retries_max", retries_max, least=-1, optional=True)
        check_seconds("pause_s", pause_s, least=0)
        check_kind("prefetch", prefetch, Prefetch, optional=True)
        check_seconds("close_timeout_s", close_timeout_s, least=0)
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._prefetch = prefetch or Prefetch()
        self._retries_max = retries_max
        self._close_timeout_s = close_timeout_s
        options = ClientOptions(
            namesrv,
            namespace=namespace,
            name_server_refresh_s=name_server_refresh_s,
            unit=unit,
            tls=tls,
            credentials=credentials_options(**access),
        )
        callbacks = MemberCallbacks(
            assigned=lambda: list(self._readers),
            change=self._change,
            handlers=dict.fromkeys(ConsumerRequests.CODES, self._answer),
            broker_up=self._recover,
            broker_down=self._suspend,
            route_changed=self._follow_leaders,
        )
        self._member = GroupMember(options, group, callbacks, is_push=True, start=start, is_broadcast=broadcast)
        self._locks: LockRenewal | None = None
        if ordered and not broadcast:
            self._locks = LockRenewal(self._member.rpc, self._readers, self._evict)
        self._offset_store = OffsetStore(self._member.rpc, start, Path(offset_file) if offset_file else None)
        call = None if listener is None else ListenerCall(listener, concurrency)
        self._delivery = self._make_delivery(call, ordered=ordered, concurrency=concurrency, pause_s=pause_s)
        self._reader_context = ReaderContext(
            rpc=self._member.rpc,
            subscription=self._member.subscription,
            limits=self._limits,
            deliver=self._delivery.deliver,
            offset_moved=self._offset_store.offsets.record,
            namespace=namespace,
        )
        offsets, locks = self._offset_store, self._locks
        self._requests = ConsumerRequests(self._member, self._readers, offsets, call, locks, is_ordered=ordered)
        self._closed = asyncio.Event()

    def _make_delivery(
        self, call: ListenerCall | None, *, ordered: bool, concurrency: int, pause_s: float
    ) -> ConcurrentDelivery | OrderedDelivery | IteratorDelivery:
        locks = self._locks or NoLocks()
        if call is None:
            return IteratorDelivery(locks if ordered else None, self._member.client.check_process)
        if not ordered:
            return ConcurrentDelivery(call, self._handle_failure, concurrency)
        return OrderedDelivery(
            call,
            locks,
            self._to_dead_letter,
            concurrency=concurrency,
            retries_max=self._retries_max,
            pause_s=pause_s,
        )

    # Opening and closing.

    def subscribe(self, topic: str, tags: str = EVERYTHING) -> None:
        """Consume *topic*: all messages, or those with one of the tags `tag || tag || ...`. Possible at any time.

        Raises:
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
            LocalProtocolError: the topic name is not valid.
        """
        self._member.subscribe(topic, tags)

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming *topic*."""
        self._member.unsubscribe(topic)

    async def start(self) -> None:
        """Join the group and begin to consume.

        Raises:
            HoldfastError: no name server answers, or the consumer was closed.
        """
        self._check_open()
        self._delivery.start()
        try:
            await self._member.start()
            self._check_open()  # Another task may have closed it meanwhile.
        except BaseException:
            await self.close()
            await self._member.close()  # including work that was started after another task had closed it
            raise
        self._member.client.spawn(self._commit_forever())
        if self._locks is not None:
            self._member.client.spawn(self._locks.renew_forever())

    async def close(self) -> None:
        """Leave the group; no consumed message is lost or consumed again.

        Stops pulling, waits for running listeners, sends back messages that do not end in time, commits, and
        unregisters, so that the other members take over at once. A listener must not call it: it would wait for itself.
        In a forked child this does nothing: the consumer belongs to the parent.
        """
        if self._closed.is_set() or self._member.client.is_inherited:
            return
        self._closed.set()
        await self._member.stop()
        unfinished = await self._delivery.stop(self._close_timeout_s)
        for delivery in unfinished:
            await self._send_back(delivery)
        self._record_offsets()
        await self._offset_store.save()
        if self._locks is not None:
            await self._locks.unlock(list(self._readers))
        await self._member.close()

    async def run(self) -> None:
        """Return when another task closes the consumer. Consumption runs in the background meanwhile."""
        self._member.client.check_process()
        await self._closed.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The name under which brokers know this member."""
        return self._member.client.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this member consumes now."""
        return sorted(self._readers)

    async def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers from now on; *namesrv* is as in the constructor.

        Raises:
            ConfigError: *namesrv* is not valid.
            ConnectionLost: the address server returned no list. Then nothing changes.
        """
        await self._member.client.set_name_servers(namesrv)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of *topic*, including those that other members consume.

        Raises:
            RouteNotFound: no broker serves the topic.
        """
        check_name("topic", topic)
        return list((await self._member.client.route(self._member.options.wire_name(topic))).readable)

    # Without a listener.

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages. Each is done when the loop asks for the next one.

        If a loop ends with `break` or an exception, its last message is not done and is redelivered, unless `ack` was
        called for it. The loop ends when the consumer is closed.

        Raises:
            LocalProtocolError: the consumer has a listener, which gets the messages.
        """
        self._member.client.check_process()
        return self._iterator_delivery().iterate()

    def ack(self, message: ReceivedMessage) -> None:
        """Record that a message of the loop is done, before the loop asks for the next one."""
        check_kind("message", message, ReceivedMessage)
        self._member.client.check_process()
        self._iterator_delivery().ack(message)

    async def retry(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have a message of the loop redelivered later, see `RetryLater`; for the loop it is done.

        Raises:
            HoldfastError: the broker did not accept it; it is not done.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
        """
        check_kind("message", message, ReceivedMessage)
        check_delay_level(delay_level, least=TO_DEAD_LETTER)
        self._member.client.check_process()
        await send_back(self._member.rpc, message, delay_level, self._retries_max)
        self._iterator_delivery().ack(message)

    def _check_open(self) -> None:
        self._member.client.check_process()
        if self._closed.is_set():
            raise LocalProtocolError("this consumer is closed: create a new one")

    def _iterator_delivery(self) -> IteratorDelivery:
        if not isinstance(self._delivery, IteratorDelivery):
            raise LocalProtocolError("this consumer has a listener, which gets the messages: it cannot be iterated")
        return self._delivery

    async def _answer(self, request: ServerRequest) -> Command:
        return await self._requests.answer(request)

    # Changes of the assignment.

    async def _change(self, change: AssignmentChange) -> bool:
        await self._release_queues(change.lost)
        gained = list(change.gained)
        if self._locks is not None and gained:
            granted = await self._locks.lock(gained)
            gained = [queue for queue in gained if queue in granted]
        started = await asyncio.gather(*(self._start_reader(queue) for queue in gained))
        self._wake_readers()
        return all(started) and len(gained) == len(change.gained)

    async def _release_queues(self, queues: tuple[MessageQueue, ...]) -> None:
        for queue in queues:
            reader = self._readers.get(queue)
            if reader is not None:  # else it was evicted meanwhile
                reader.stop()
                await self._delivery.release(reader)
                self._retire(reader)
        if queues:
            await self._offset_store.save()
        for queue in queues:
            self._offset_store.release(queue)
        if self._locks is not None and queues:
            await self._locks.unlock(queues)

    def _evict(self, queues: Iterable[MessageQueue]) -> None:
        """Give up at once those of *queues* that another member has locked; they may be assigned to us again later."""
        for queue in queues:
            reader = self._readers.get(queue)
            if reader is not None:
                log.warning("queue %s is locked by another member: it is given up", queue)
                self._retire(reader)
                self._offset_store.release(queue)
                self._member.client.spawn(self._delivery.release(reader))
                self._member.wake()

    def _retire(self, reader: QueueReader) -> None:
        """Discard the reader's deliveries and record its offset."""
        if self._readers.get(reader.queue) is reader:
            del self._readers[reader.queue]
            self._offset_store.offsets.record(reader.queue, reader.window.commit_offset)
            reader.retire()

    async def _start_reader(self, queue: MessageQueue) -> bool:
        try:
            offset = await self._offset_store.load(queue)
        except HoldfastError as error:
            log.warning("queue %s cannot be taken over yet: %s", queue, error)
            return False
        reader = QueueReader(self._reader_context, queue, offset)
        self._readers[queue] = reader
        reader.start()
        return True

    def _limits(self) -> PullLimits:
        return self._prefetch.share(len(self._readers))

    def _wake_readers(self) -> None:
        for reader in self._readers.values():
            reader.wake()

    # Changes of brokers.

    def _suspend(self, address: str) -> None:
        """Begin no more messages that are locked at a broker whose connection is lost: it may forget the locks."""
        if self._locks is not None:
            self._locks.suspend(self._queues_at(address))

    async def _recover(self, address: str) -> None:
        """Continue our queues at a broker that is back."""
        await self._resume(self._queues_at(address))

    def _follow_leaders(self, topic: str) -> None:
        """Continue our logical queues of *topic* at their new leaders."""
        moved = [queue for queue, reader in self._readers.items() if queue.topic == topic and reader.follow_leader()]
        if moved:
            self._member.client.spawn(self._resume(moved))

    async def _resume(self, queues: list[MessageQueue]) -> None:
        """Lock *queues* again, pull, and repair their offsets: the broker that serves them now may have lost both."""
        if self._locks is not None:
            await self._locks.regain(queues)
        readers = {queue: self._readers[queue] for queue in queues if queue in self._readers}
        for reader in readers.values():
            reader.resume()
        offsets = {queue: reader.window.commit_offset for queue, reader in readers.items()}
        for queue, offset in (await self._offset_store.recommit(offsets)).items():
            if self._readers.get(queue) is readers[queue] and offset > readers[queue].window.commit_offset:
                log.info("queue %s was consumed up to %d by another member meanwhile", queue, offset)
                readers[queue].reset(offset)
                self._offset_store.offsets.record(queue, offset)

    def _queues_at(self, address: str) -> list[MessageQueue]:
        return [queue for queue in self._readers if self._member.rpc.find_address(queue) == address]

    # Offsets.

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            self._record_offsets()
            await self._offset_store.save()

    def _record_offsets(self) -> None:
        for queue, reader in self._readers.items():
            self._offset_store.offsets.record(queue, reader.window.commit_offset)

    # Failures.

    async def _handle_failure(self, delivery: Delivery, error: Exception) -> bool:
        log_failure(delivery.message, error)
        if self._member.is_broadcast or not delivery.is_current:
            return True  # Broadcast messages are not redelivered; a message that left our window is not ours to return.
        return await self._send_back(delivery, delay_level_of(error))

    async def _to_dead_letter(self, delivery: Delivery) -> bool:
        return self._member.is_broadcast or await self._send_back(delivery, TO_DEAD_LETTER)

    async def _send_back(self, delivery: Delivery, delay_level: int = 0) -> bool:
        """Let the broker redeliver a message; then it is done here. Return False if the broker did not accept it."""
        if self._member.is_broadcast:
            return False
        try:
            await send_back(self._member.rpc, delivery.message, delay_level, self._retries_max)
        except HoldfastError as error:
            log.warning("message %s could not be sent back to its broker: %s", delivery.message.message_id, error)
            return False
        delivery.finish()
        return True


def _check_offset_file(offset_file: Path | str | None, *, broadcast: bool) -> None:
    check_kind("offset_file", offset_file, str | os.PathLike, optional=True)
    if broadcast != (offset_file is not None):
        raise LocalProtocolError(
            "offset_file is where a broadcasting consumer keeps its offsets: give it with broadcast, and only then"
        )
