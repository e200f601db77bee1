"""`PullConsumer`: consumes at the application's own pace, with `poll`, `seek` and `commit`.

    async with PullConsumer("127.0.0.1:9876", "report") as consumer:
        await consumer.assign(await consumer.queues("orders"))
        await consumer.seek_all("earliest")
        while messages := await consumer.poll(timeout_s=5):
            ...

Either `subscribe`, and share the queues with the other members of the group, or `assign`, and read the queues of your
choice. Messages are prefetched, but a queue's position moves only when `poll` returns its messages. Positions survive
lost connections and restarts of brokers. Committed offsets are committed again when a broker is back, because a broker
that crashed loses the commits of its last seconds.

    committed ........ position ........ prefetched ........ end of the queue
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Final, Self, Unpack

from holdfast.client.access.credentials_options import CredentialsArguments, credentials_options
from holdfast.client.cluster.queue_rpc import Start
from holdfast.client.consume.group_member import GroupMember, MemberCallbacks
from holdfast.client.consume.offset_store import OffsetStore
from holdfast.client.consume.pull_plan import Prefetch, PullLimits
from holdfast.client.consume.queue_reader import Delivery, QueueReader, ReaderContext
from holdfast.client.consume.rebalance import AssignmentChange, plan_change
from holdfast.client.messages.arguments import (
    check_count,
    check_kind,
    check_name,
    check_position,
    check_queue,
    check_seconds,
    check_start,
    check_text,
)
from holdfast.client.options import ClientOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import HoldfastError, LocalProtocolError
from holdfast.model.filter import EVERYTHING, parse_tags
from holdfast.model.group import Subscription
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import LogicalOffset, MessageQueue

log = logging.getLogger("holdfast.client")

COMMIT_INTERVAL_S: Final = 5.0
POLL_MAX: Final = 32


class PullConsumer:
    """Reads queues on demand. Use it with `async with`, or `start` and `close` it.

    Args:
        namesrv: Name servers: `host:port;host:port`, or the URL of an address server that returns such a list.
        group: The consumer group for which offsets are committed.
        namespace: The prefix of the names of topics and of the group.
        start: Where to begin with a queue for which the group never committed an offset.
        auto_commit: Commit the messages of earlier polls every few seconds, and when closing.
        prefetch: How much may be pulled ahead.
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
        namespace: str | None = None,
        start: Start = "latest",
        auto_commit: bool = True,
        prefetch: Prefetch | None = None,
        name_server_refresh_s: float | None = None,
        unit: str | None = None,
        tls: ClientTls | None = None,
        **access: Unpack[CredentialsArguments],
    ) -> None:
        check_kind("auto_commit", auto_commit, bool)
        check_kind("prefetch", prefetch, Prefetch, optional=True)
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._buffers: dict[MessageQueue, deque[Delivery]] = {}
        self._poll_order: deque[MessageQueue] = deque()
        self._arrived = asyncio.Event()
        self._auto_commit = auto_commit
        self._prefetch = prefetch or Prefetch(message_count_max=1000)
        self._manual_queues: set[MessageQueue] = set()  # queues from `assign`, as opposed to `subscribe`
        self._assigned_tags: dict[str, Subscription] = {}
        self._committed: dict[MessageQueue, LogicalOffset] = {}  # by `commit`, as opposed to automatically
        options = ClientOptions(
            namesrv,
            namespace=namespace,
            name_server_refresh_s=name_server_refresh_s,
            unit=unit,
            tls=tls,
            credentials=credentials_options(**access),
        )
        callbacks = MemberCallbacks(
            assigned=self._subscribed_queues,
            change=self._change,
            broker_up=self._recover,
            route_changed=self._follow_leaders,
        )
        self._member = GroupMember(options, group, callbacks, is_push=False, start=start)
        self._offset_store = OffsetStore(self._member.rpc, start)
        self._reader_context = ReaderContext(
            rpc=self._member.rpc,
            subscription=self._subscription,
            limits=self._limits,
            deliver=self._deliver,
            offset_moved=self._offset_moved,
            namespace=namespace,
            with_subscription=True,
        )
        self._is_closed = False

    # Opening and closing.

    async def start(self) -> None:
        """Join the group and start prefetching.

        Raises:
            HoldfastError: no name server answers, or the consumer was closed.
        """
        self._check_open()
        try:
            await self._member.start()
            self._check_open()  # Another task may have closed it meanwhile.
        except BaseException:
            await self.close()
            await self._member.close()  # including work that was started after another task had closed it
            raise
        if self._auto_commit:
            self._member.client.spawn(self._commit_forever())

    async def close(self, *, last_poll_done: bool = True) -> None:
        """Commit, if `auto_commit` is set, and leave the group.

        Args:
            last_poll_done: Whether the messages of the last poll count as consumed.

        In a forked child this does nothing: the consumer belongs to the parent.
        """
        if self._is_closed or self._member.client.is_inherited:
            return
        self._is_closed = True
        self._arrived.set()
        await self._member.stop()
        if self._auto_commit:
            if last_poll_done:
                self._record_offsets()
            await self._offset_store.save()
        await self._member.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. After an exception, the messages of the last poll are not committed."""
        await self.close(last_poll_done=error is None)

    # Subscriptions and assignment.

    def subscribe(self, topic: str, tags: str = EVERYTHING) -> None:
        """Read *topic* together with the other members of the group.

        Raises:
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
            LocalProtocolError: the topic name is not valid.
        """
        self._member.subscribe(topic, tags)

    def unsubscribe(self, topic: str) -> None:
        """Stop reading *topic*."""
        self._member.unsubscribe(topic)

    async def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers from now on; *namesrv* is as in the constructor.

        Raises:
            ConfigError: *namesrv* is not valid.
            ConnectionLost: the address server returned no list. Then nothing changes.
        """
        await self._member.client.set_name_servers(namesrv)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of *topic*.

        Raises:
            RouteNotFound: no broker serves the topic.
        """
        check_name("topic", topic)
        return list((await self._member.client.route(self._member.options.wire_name(topic))).readable)

    async def assign(self, queues: Iterable[MessageQueue], tags: str = EVERYTHING) -> None:
        """Read exactly *queues*, even if others read them, too. Begin at the committed offset of each, else at `start`.

        Queues from `subscribe` are not affected; do not assign queues of a subscribed topic.

        Raises:
            HoldfastError: the offset to begin at could not be determined.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
        """
        assigned = list(queues)
        for queue in assigned:
            check_queue("every one of queues", queue)
        check_text("tags", tags)
        self._member.client.check_process()
        self._assigned_tags = {queue.topic: parse_tags(queue.topic, tags) for queue in assigned}
        change = plan_change(self._manual_queues & set(self._readers), assigned)
        self._manual_queues = set(assigned)
        await self._drop(change.lost)
        for queue in change.gained:
            await self._member.client.route(queue.topic)
            self._add(queue, await self._offset_store.load(queue))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return sorted(self._readers)

    def pause(self, *queues: MessageQueue) -> None:
        """Return no messages of *queues* until `resume`."""
        for queue in queues:
            self._reader(queue).is_paused = True

    def resume(self, *queues: MessageQueue) -> None:
        """Read *queues* again."""
        for queue in queues:
            reader = self._reader(queue)
            reader.is_paused = False
            reader.wake()
        self._arrived.set()

    # Reading.

    async def poll(self, timeout_s: float = 1.0, *, messages_max: int = POLL_MAX) -> list[ReceivedMessage]:
        """Return the next messages; an empty list if none arrived in time, or if the consumer is closed meanwhile.

        The messages of the previous poll are now done.

        Raises:
            LocalProtocolError: the consumer was closed before.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
        """
        check_seconds("timeout_s", timeout_s)
        check_count("messages_max", messages_max)
        self._check_open()
        self._record_offsets()
        messages = self._pop_prefetched(messages_max)
        if messages or timeout_s <= 0:
            return messages
        try:
            async with asyncio.timeout(timeout_s):
                while not messages and not self._is_closed:
                    self._arrived.clear()
                    await self._arrived.wait()
                    messages = self._pop_prefetched(messages_max)
        except TimeoutError:
            return []
        return messages

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages as they arrive, until the consumer is closed.

        Each is done when the loop asks for the next one. The last message of a loop that ended counts as done when the
        consumer is closed normally.
        """
        self._member.client.check_process()
        while not self._is_closed:
            for message in await self.poll(timeout_s=60, messages_max=1):
                yield message

    # Offsets.

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that `poll` will return from *queue*."""
        return self._reader(queue).window.commit_offset

    async def seek(self, queue: MessageQueue, to: int | Start) -> None:
        """Continue *queue* at an offset, at either end, or at a time.

        Raises:
            HoldfastError: the broker did not answer or refused.
            LocalProtocolError: this consumer does not read *queue*, or no longer does.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
        """
        check_position("to", to)
        self._reader(queue)
        offset = LogicalOffset(to) if isinstance(to, int) else await self._member.rpc.offset_of(queue, to)
        self._reader(queue)  # It may have been dropped meanwhile.
        self._seek(queue, offset)

    async def seek_all(self, to: Start) -> None:
        """Continue every queue at either end, or at a time.

        Raises:
            HoldfastError: a broker did not answer or refused.
            TypeError, ValueError: *to* has a wrong type, or a value that cannot work.
        """
        check_start("to", to)
        self._member.client.check_process()
        for queue in list(self._readers):
            offset = await self._member.rpc.offset_of(queue, to)
            if queue in self._readers:  # else it was dropped meanwhile
                self._seek(queue, offset)

    async def offset_of(self, queue: MessageQueue, at: Start) -> int:
        """Return the offset that *at* stands for in *queue* now.

        Raises:
            HoldfastError: the broker did not answer or refused.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
        """
        check_queue("queue", queue)
        check_start("at", at)
        await self._ensure_route(queue)
        return await self._member.rpc.offset_of(queue, at)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the group committed for *queue*, or None if it never did.

        Raises:
            HoldfastError: the broker did not answer or refused.
            TypeError: *queue* is not a queue.
        """
        check_queue("queue", queue)
        await self._ensure_route(queue)
        return await self._member.rpc.committed(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit *offsets*, or the positions of all queues, and return when the brokers have confirmed.

        Raises:
            HoldfastError: a broker did not confirm.
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work. Nothing was committed.
        """
        self._member.client.check_process()
        if offsets is not None:
            check_kind("offsets", offsets, Mapping)
            for queue, offset in offsets.items():
                check_queue("every queue of offsets", queue)
                check_count(f"the offset of {queue}", offset)
            committed = {queue: LogicalOffset(offset) for queue, offset in offsets.items()}
        else:
            committed = {queue: reader.window.commit_offset for queue, reader in self._readers.items()}
        for queue, offset in committed.items():
            await self._ensure_route(queue)
            await self._member.rpc.commit(queue, offset)
            self._offset_store.offsets.record(queue, offset)
            self._offset_store.offsets.mark_committed(queue, offset)
            self._committed[queue] = offset

    # Internals.

    def _check_open(self) -> None:
        self._member.client.check_process()
        if self._is_closed:
            raise LocalProtocolError("this consumer is closed: create a new one")

    async def _ensure_route(self, queue: MessageQueue) -> None:
        """Look up the route of *queue* if it is unknown: the caller may know the queue from another client.

        Raises:
            HoldfastError: no name server answers or knows the topic, or the parent process opened this consumer.
        """
        self._member.client.check_process()
        if self._member.rpc.find_address(queue) is None:
            await self._member.client.route(queue.topic)

    def _reader(self, queue: MessageQueue) -> QueueReader:
        check_queue("queue", queue)
        self._member.client.check_process()
        reader = self._readers.get(queue)
        if reader is None:
            raise LocalProtocolError(
                f"queue {queue} is not read by this consumer: assign it, or subscribe to its topic"
            )
        return reader

    def _seek(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        self._buffers[queue].clear()
        self._readers[queue].reset(offset)

    def _pop_prefetched(self, messages_max: int) -> list[ReceivedMessage]:
        """Return prefetched messages, from the queues in turn."""
        messages: list[ReceivedMessage] = []
        for _ in range(len(self._poll_order)):
            if len(messages) >= messages_max:
                break  # The next poll begins with the queue that would have been next.
            queue = self._poll_order[0]
            self._poll_order.rotate(-1)
            buffer = self._buffers[queue]
            while buffer and len(messages) < messages_max and not self._readers[queue].is_paused:
                delivery = buffer.popleft()
                if delivery.is_current:
                    delivery.finish()
                    messages.append(delivery.message)
        return messages

    def _deliver(self, deliveries: list[Delivery]) -> None:
        buffer = self._buffers.get(deliveries[0].reader.queue)
        if buffer is not None:
            buffer.extend(deliveries)
            self._arrived.set()

    def _record_offsets(self) -> None:
        for queue, reader in self._readers.items():
            self._offset_store.offsets.record(queue, reader.window.commit_offset)

    def _offset_moved(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        self._offset_store.offsets.record(queue, offset)

    def _subscription(self, topic: str) -> Subscription:
        return self._assigned_tags.get(topic) or self._member.subscription(topic)

    def _subscribed_queues(self) -> list[MessageQueue]:
        return [queue for queue in self._readers if queue not in self._manual_queues]

    def _limits(self) -> PullLimits:
        return self._prefetch.share(len(self._readers))

    def _add(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        reader = QueueReader(self._reader_context, queue, offset)
        self._readers[queue] = reader
        self._buffers[queue] = deque()
        self._poll_order.append(queue)
        reader.start()

    async def _drop(self, queues: Iterable[MessageQueue]) -> None:
        dropped = list(queues)
        for queue in dropped:
            self._readers.pop(queue).retire()
            del self._buffers[queue]
            self._poll_order.remove(queue)
        if dropped and self._auto_commit:
            await self._offset_store.save()
        for queue in dropped:
            self._committed.pop(queue, None)
            if self._auto_commit:
                self._offset_store.release(queue)
            else:
                self._offset_store.offsets.forget(queue)

    async def _change(self, change: AssignmentChange) -> bool:
        await self._drop(change.lost)
        is_complete = True
        for queue in change.gained:
            try:
                self._add(queue, await self._offset_store.load(queue))
            except HoldfastError as error:
                log.warning("queue %s cannot be taken over yet: %s", queue, error)
                is_complete = False
        return is_complete

    async def _recover(self, address: str) -> None:
        """Continue our queues at a broker that is back."""
        await self._resume([queue for queue in self._readers if self._member.rpc.find_address(queue) == address])

    def _follow_leaders(self, topic: str) -> None:
        """Continue our logical queues of *topic* at their new leaders."""
        moved = [queue for queue, reader in self._readers.items() if queue.topic == topic and reader.follow_leader()]
        if moved:
            self._member.client.spawn(self._resume(moved))

    async def _resume(self, queues: list[MessageQueue]) -> None:
        """Resume pulling *queues*, and commit again at the brokers that serve them now."""
        queues = [queue for queue in queues if queue in self._readers]  # Some may have been dropped meanwhile.
        for queue in queues:
            self._readers[queue].resume()
        consumed = self._offset_store.offsets
        offsets = {queue: consumed.find(queue) if self._auto_commit else self._committed.get(queue) for queue in queues}
        # Ignore a broker that is ahead of us: the application sets the positions.
        await self._offset_store.recommit({queue: offset for queue, offset in offsets.items() if offset is not None})

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self._offset_store.save()
