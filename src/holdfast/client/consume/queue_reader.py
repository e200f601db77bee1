"""Pulls one queue while its window has space.

    wait for space ─> pull (the broker waits for a message) ─> deliver ─┐
         ^                                                              │
         └─────────── after the delivered messages ─────────────────────┘

A failure does not change the position: the same pull is repeated after a growing pause, or as soon as `resume` reports
that the broker is back. A logical queue is pulled from its leader, including the ranges that former leaders hold. While
one of them is away and a part of the queue cannot be read, the reader waits there: nothing is skipped.

The asyncio shell around `process_queue` and `pull_plan`. Does not know what happens to the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.client.cluster.cluster_client import now_ms
from holdfast.client.cluster.queue_rpc import UNKNOWN_TO_BROKER, QueueRpc
from holdfast.client.cluster.send_plan import backoff_ms, is_not_leader
from holdfast.client.consume.process_queue import ProcessQueue
from holdfast.client.consume.pull_plan import (
    SUSPEND_MS,
    TIMEOUT_S,
    PullLimits,
    PullOutcome,
    PullStatus,
    error_pause_s,
    pull_command,
    read_pull_answer,
)
from holdfast.model.errors import BrokerRefused, CorruptRecord, HoldfastError, RouteNotFound
from holdfast.model.group import Subscription
from holdfast.model.leadership import Leader
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.model.route import MASTER_ID
from holdfast.model.scope import is_mock_broker
from holdfast.wire.requests.relay import leader_in

log = logging.getLogger("holdfast.client")

_CORRUPT_PAUSE_S: Final = 30.0
_FLOW_CONTROL: Final = 215
# A replica that hangs is noticed sooner than a master: the queue can be read elsewhere.
_REPLICA_SUSPEND_MS: Final = 3_000
_REPLICA_TIMEOUT_S: Final = 8.0
_REPLICA_AVOID_S: Final = 30.0  # how long to avoid replicas after one failed: by then the master has noticed, too
_FLOW_CONTROL_PAUSE_S: Final = 0.02


class ReaderContext(msgspec.Struct, frozen=True):
    """The options and callbacks shared by the readers of one consumer.

    Attributes:
        rpc: The calls of the consumer group.
        subscription: Returns the current subscription of a topic.
        limits: Returns the current limits of a window.
        deliver: Receives pulled messages, in order.
        offset_moved: Called when a window was reset, because its offset is not in the queue or an operator reset it.
        with_subscription: Include the filter in every pull, for consumers that send no heartbeats about it.
    """

    rpc: QueueRpc
    subscription: Callable[[str], Subscription]
    limits: Callable[[], PullLimits]
    deliver: Callable[[list[Delivery]], None]
    offset_moved: Callable[[MessageQueue, LogicalOffset], None]
    namespace: str | None = None
    with_subscription: bool = False


class QueueReader:
    """The reader of one queue.

    Args:
        context: The options shared by all readers of the consumer.
        queue: The queue.
        offset: The offset to begin at.
    """

    def __init__(self, context: ReaderContext, queue: MessageQueue, offset: LogicalOffset) -> None:
        self.window = ProcessQueue(queue, offset)
        self.queue = queue
        self.pulled_ms = 0
        self.is_paused = False
        self._context = context
        self._broker_id = MASTER_ID  # where to pull: a master may name a replica close to us
        self._avoids_replicas_until_s = 0.0
        self._pulled_address: str | None = None  # the address of the last pull
        self._leader: Leader | None = None  # the leader of the queue, if the last answer came from another broker
        self._wake = asyncio.Event()
        self._resumed = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to pull."""
        if self._task is None:
            self._task = self._context.rpc.client.spawn(self._read_forever())

    def stop(self) -> None:
        """Stop pulling. Delivered messages can still be finished."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def retire(self) -> None:
        """Stop pulling, and ignore the completion of all delivered messages."""
        self.stop()
        self.window.reset(self.window.commit_offset)

    def reset(self, offset: LogicalOffset) -> None:
        """Discard the window and continue at *offset*, at once even while a pull waits at the broker."""
        was_reading = self._task is not None
        self.stop()
        self.window.reset(offset)
        if was_reading:
            self.start()

    def wake(self) -> None:
        """Check again whether the window has space."""
        self._wake.set()

    def resume(self) -> None:
        """Pull at once if the last pull failed: the broker is back."""
        self._failures = 0
        self._resumed.set()

    def follow_leader(self) -> bool:
        """Pull from the new leader of a logical queue if the last pull went elsewhere. Return whether that was so."""
        if self._pulled_address is None or not is_mock_broker(self.queue.broker_name):
            return False
        if self._context.rpc.find_address(self.queue, self._broker_id) in {None, self._pulled_address}:
            return False
        self._pulled_address = None
        self._broker_id = MASTER_ID  # The next leader has other replicas.
        self._failures = 0
        self.stop()
        self.start()
        return True

    async def _read_forever(self) -> None:
        while True:
            await self._wait_for_space()
            self._resumed.clear()
            try:
                outcome = await self._pull()
            except HoldfastError as error:
                await self._pause(await self._handle_error(error))
            else:
                self._failures = 0
                self._accept(outcome)
                await self._switch_leader()

    async def _switch_leader(self) -> None:
        """Switch to the leader that the last answer named, if that answer was relayed. Its messages are kept."""
        leader, self._leader = self._leader, None
        if leader is not None:
            self._context.rpc.client.learn_leader(self.queue, leader)
            await asyncio.sleep(0)  # If the route changed, a callback has called `follow_leader`, which cancels this.

    async def _pause(self, pause_s: float) -> None:
        """Return after *pause_s*, or on `resume`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._resumed.wait()

    async def _wait_for_space(self) -> None:
        """Return once the window has space and the reader is not paused."""
        while self.is_paused or not self._context.limits().allow(self.window):
            self._wake.clear()
            await self._wake.wait()

    async def _pull(self) -> PullOutcome:
        context, window = self._context, self.window
        subscription = context.subscription(self.queue.topic)
        is_at_master = self._broker_id == MASTER_ID
        command = pull_command(
            group=context.rpc.group,
            queue=self.queue,
            offset=window.next_offset,
            subscription=subscription,
            suspend_ms=SUSPEND_MS if is_at_master else _REPLICA_SUSPEND_MS,
            with_subscription=context.with_subscription,
            unit=context.rpc.client.unit,
        )
        self.pulled_ms = now_ms()
        self._pulled_address = context.rpc.address(self.queue, self._broker_id)
        timeout_s = TIMEOUT_S if is_at_master else _REPLICA_TIMEOUT_S
        answer = await context.rpc.client.ask(self._pulled_address, command, timeout_s)
        self._leader = leader_in(answer)
        return read_pull_answer(answer, self.queue, subscription, namespace=context.namespace)

    def _accept(self, outcome: PullOutcome) -> None:
        is_avoided = (
            outcome.broker_id != MASTER_ID and asyncio.get_running_loop().time() < self._avoids_replicas_until_s
        )
        self._broker_id = MASTER_ID if is_avoided else outcome.broker_id
        if outcome.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "queue %s: offset moves from %d to %d", self.queue, self.window.next_offset, outcome.next_offset
            )
            self.window.reset(outcome.next_offset)
            self._context.offset_moved(self.queue, outcome.next_offset)
            return
        for error in outcome.unreadable:
            # Its producer encoded it wrongly, and no later pull will succeed. Continue after it, but log an error.
            log.error("queue %s: %s; the batch is skipped", self.queue, error)
        fresh = self.window.add(outcome.messages, outcome.next_offset)
        if fresh:
            generation = self.window.generation
            self._context.deliver([Delivery(message, self, generation) for message in fresh])

    async def _handle_error(self, error: HoldfastError) -> float:
        """Try to remedy *error*, and return how long to wait before the next pull."""
        if isinstance(error, BrokerRefused) and error.code == _FLOW_CONTROL:
            return _FLOW_CONTROL_PAUSE_S
        if self._broker_id != MASTER_ID:
            return await self._leave_replica(error)
        if isinstance(error, CorruptRecord):
            # Retrying cannot repair the record. Stop the queue here and log an error: skipping would lose a message
            # silently.
            log.error("queue %s at offset %d: %s", self.queue, self.window.next_offset, error)
            return _CORRUPT_PAUSE_S
        self._failures += 1
        if is_not_leader(error):
            log.debug("pull of %s: %s", self.queue, error)
            await self._context.rpc.client.refresh_leaders(self.queue.topic)
            return backoff_ms(self._failures) / 1000
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        log.log(level, "pull of %s at offset %d failed: %s", self.queue, self.window.next_offset, error)
        if _is_client_unknown(error):
            with contextlib.suppress(RouteNotFound):
                await self._context.rpc.client.beat_one(self._context.rpc.address(self.queue))
        self._context.rpc.client.mark_stale(self.queue.topic)
        return error_pause_s(self._failures)

    async def _leave_replica(self, error: HoldfastError) -> float:
        """Pull from the master again at once. A replica that only does not know us yet is tried once more."""
        log.debug("pull of %s at replica %d failed: %s", self.queue, self._broker_id, error)
        if _is_client_unknown(error) and not self._failures:
            self._failures += 1
            with contextlib.suppress(RouteNotFound):
                await self._context.rpc.client.beat_one(self._context.rpc.address(self.queue, self._broker_id))
            return 0.0
        self._broker_id = MASTER_ID
        self._avoids_replicas_until_s = asyncio.get_running_loop().time() + _REPLICA_AVOID_S
        self._context.rpc.client.mark_stale(self.queue.topic)
        return 0.0


def _is_client_unknown(error: HoldfastError) -> bool:
    return isinstance(error, BrokerRefused) and error.code in UNKNOWN_TO_BROKER


class Delivery(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A message on its way to the application. If its window is reset or given up meanwhile, its result is ignored."""

    message: ReceivedMessage
    reader: QueueReader
    generation: int

    @property
    def is_current(self) -> bool:
        """Whether the message still belongs to the window of its reader."""
        return self.generation == self.reader.window.generation

    def finish(self) -> None:
        """Record that the message is done; there may be space for another pull now."""
        if self.reader.window.finish(self.message.offset, self.generation):
            self.reader.wake()
