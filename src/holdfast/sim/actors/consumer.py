"""A simulated member of a consumer group, concurrent or ordered.

    members and routes ─> which queues are mine ─┬─ lost ───> commit, unlock, forget
                                                 └─ gained ─> lock (ordered) ─> committed offset ─> pull, consume ...

Concurrent: messages are consumed in any order, and a failed message is sent back to the broker (36) and redelivered
from the retry topic. Ordered: messages of a queue are consumed one after the other while the lock holds, and a failed
message is retried in place.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

import msgspec

from holdfast.client.cluster.heartbeat import consumer_data, heartbeat_command
from holdfast.client.cluster.server_request import ServerRequest
from holdfast.client.consume.committed_offsets import CommittedOffsets
from holdfast.client.consume.process_queue import ProcessQueue
from holdfast.client.consume.pull_plan import PullOutcome, PullStatus, pull_command, read_pull_answer
from holdfast.client.consume.rebalance import allocate_average, plan_change
from holdfast.client.messages.retry_message import retry_of
from holdfast.model.errors import BrokerRefused, CorruptRecord, HoldfastError
from holdfast.model.group import Subscription
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import LogicalOffset, LogicalQueueId, MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.model.topic import retry_topic
from holdfast.sim.actors.client import SimClient
from holdfast.sim.actors.witness import Witness
from holdfast.sim.checkers.offset_identity import QueueOffset
from holdfast.sim.checkers.progress import FinishInfo
from holdfast.sim.world.workload import RECONSUME_MAX, uid_of
from holdfast.sim.world.world import Violation
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.heartbeat import ConsumeFromWhere, ConsumerGroupFields, ConsumerList, UnregisterFields
from holdfast.wire.requests.offsets import LockAnswer, LockBody, QueryOffsetFields, SendBackFields, UpdateOffsetFields

_REBALANCE_MS: Final = 5_000
_COMMIT_MS: Final = 2_000
_SUSPEND_MS: Final = 10_000
_PULL_TIMEOUT_MS: Final = 14_000
_PAUSE_MS: Final = 500
_RENEW_MS: Final = 4_000
_LOCK_LIFE_MS: Final = 20_000  # The member's limit; the broker's is longer.
_BATCH: Final = 16


class _OwnedQueue(msgspec.Struct):
    """A queue that this member owns.

    Attributes:
        window: None until the start offset is known.
        pull_address: The address of the pull in flight; None if there is none.
        pull_number: Counts pulls: the answer to an older pull is ignored.
        locked_ms: When the broker last confirmed the lock; ordered groups only.
        backlog: Messages pulled and not yet consumed; ordered groups only.
    """

    queue: MessageQueue
    window: ProcessQueue | None = None
    pull_address: str | None = None
    pull_number: int = 0
    locked_ms: int | None = None
    is_dropped: bool = False
    is_busy: bool = False
    backlog: list[ReceivedMessage] = []


class Consumer(SimClient):
    """One member.

    Args:
        witness: Receives everything that this member sees and does.
    """

    def __init__(  # noqa: PLR0913 - one name for each option
        self,
        name: str,
        name_servers: str,
        rng: Random,
        *,
        group: str,
        topic: str,
        is_ordered: bool,
        witness: Witness,
        is_old: bool = False,
        unit: str = "",
    ) -> None:
        super().__init__(name, name_servers, rng, is_old=is_old, unit=unit)
        self._group = group
        self._is_ordered = is_ordered
        self._witness = witness
        topics = (topic,) if is_ordered else (topic, retry_topic(group))
        self._subscriptions = {name: Subscription(topic=name) for name in topics}
        self._owned_queues: dict[MessageQueue, _OwnedQueue] = {}
        self._queue_counts: dict[str, int] = {}  # By topic, the number of queues at the last rebalance.
        self._committed_offsets = CommittedOffsets()

    def started(self) -> None:
        """Join the group."""
        for topic in self._subscriptions:
            self.route(topic)
        self.after(self.rng.randrange(500), self._rebalance_regularly)
        self.after(_COMMIT_MS, self._commit_regularly)
        if self._is_ordered:
            self.after(_RENEW_MS, self._renew_regularly)

    def heartbeat(self) -> Command | None:
        """Return the heartbeat of a group member, with its subscriptions."""
        data = consumer_data(
            self._group,
            self._subscriptions.values(),
            is_push=True,
            is_broadcast=False,
            start=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        return heartbeat_command(self.name, consumer=data)

    def handle_request(self, request: ServerRequest) -> None:
        """Rebalance when a broker reports that the members changed."""
        if isinstance(request.header, ConsumerGroupFields):
            self._rebalance()

    def route_changed(self, topic: str) -> None:
        """Send heartbeats to new brokers and rebalance. Pull a queue whose leader changed from the new leader."""
        self.send_heartbeats()
        self._rebalance()
        for owned in list(self._owned_queues.values()):
            address = self.find_address(owned.queue)
            if (
                owned.queue.topic == topic
                and owned.pull_address is not None
                and address not in {None, owned.pull_address}
            ):
                self._pull(owned)
        if self.unit:
            fields = UnregisterFields(client_id=self.name, consumer_group=self._group)
            self.leave_closed_units(Command(code=RequestCode.UNREGISTER_CLIENT, fields=to_fields(fields)))

    # Rebalancing.

    def _rebalance_regularly(self) -> None:
        self._rebalance()
        self.after(_REBALANCE_MS, self._rebalance_regularly)

    def _rebalance(self) -> None:
        for topic in self._subscriptions:
            route = self.route(topic)
            addresses = route.route.broker_datas if route is not None else []
            known = [address for broker in addresses for address in broker.broker_addrs.values()]
            if known:
                fields = {"consumerGroup": self._group}
                command = Command(code=RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields=fields)
                self.request(self.rng.choice(known), command, partial(self._apply_members, topic))

    def _apply_members(self, topic: str, answer: Command | HoldfastError) -> None:
        route = self.routes.find(topic)
        if isinstance(answer, HoldfastError) or answer.code != ResponseCode.SUCCESS or route is None:
            return
        members = java_json.decode(answer.body, ConsumerList).consumer_id_list
        self._queue_counts[topic] = len(route.readable)
        allocated = allocate_average(route.readable, members, self.name)
        change = plan_change([queue for queue in self._owned_queues if queue.topic == topic], allocated)
        for queue in change.lost:
            self._drop(self._owned_queues[queue])
        for queue in change.gained:
            self._owned_queues[queue] = _OwnedQueue(queue)
            self._acquire(self._owned_queues[queue])

    def _drop(self, owned: _OwnedQueue) -> None:
        self._commit(owned)
        owned.is_dropped = True
        del self._owned_queues[owned.queue]
        self._committed_offsets.forget(owned.queue)
        address = self.find_address(owned.queue)
        if self._is_ordered and address is not None:
            body = LockBody(client_id=self.name, consumer_group=self._group, mq_set=[owned.queue])
            self.send_one_way(address, Command(code=RequestCode.UNLOCK_BATCH_MQ, body=java_json.encode(body)))

    def _refresh_if_stale(self, queue: MessageQueue, answer: Command | HoldfastError) -> None:
        """Refresh the leader of a queue if it may have changed."""
        if isinstance(answer, HoldfastError) or answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            route = self.routes.find(queue.topic)
            if route is not None and route.leaders:
                self.refresh_leaders(queue.topic)

    def _acquire_later(self, owned: _OwnedQueue) -> None:
        """Retry later to claim a queue."""
        self.after(_PAUSE_MS, lambda: self._acquire(owned))

    def _acquire(self, owned: _OwnedQueue) -> None:
        """Claim a queue: lock it if the group is ordered, then request its committed offset."""
        if owned.is_dropped:
            return
        if not self._is_ordered:
            self._query_offset(owned)
            return

        def locked(is_locked: bool) -> None:  # noqa: FBT001 - an answer, not a switch
            if is_locked:
                self._query_offset(owned)
            else:
                self._acquire_later(owned)

        self._lock(owned, locked)

    def _query_offset(self, owned: _OwnedQueue) -> None:
        address = self.find_address(owned.queue)
        if address is None:
            self._acquire_later(owned)
            return
        queue = owned.queue
        fields = QueryOffsetFields(
            consumer_group=self._group, topic=queue.topic, queue_id=LogicalQueueId(queue.queue_id)
        )

        def answered(answer: Command | HoldfastError) -> None:
            if owned.is_dropped:
                return
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                offset = LogicalOffset(int(answer.fields["offset"]))
                self._witness.committed(self._group, queue, offset)
            elif isinstance(answer, Command) and answer.code == ResponseCode.QUERY_NOT_FOUND:
                offset = LogicalOffset(0)
            else:
                self._refresh_if_stale(queue, answer)
                self._acquire_later(owned)
                return
            owned.window = ProcessQueue(queue, offset)
            self._committed_offsets.begin(queue, offset)
            self._pull(owned)

        self.request(address, Command(code=RequestCode.QUERY_CONSUMER_OFFSET, fields=to_fields(fields)), answered)

    # Locks.

    def _lock(self, owned: _OwnedQueue, then: object) -> None:
        address = self.find_address(owned.queue)
        if address is None:
            then(False)  # type: ignore[operator]
            return
        body = LockBody(client_id=self.name, consumer_group=self._group, mq_set=[owned.queue])
        requested_ms = self.now_ms

        def answered(answer: Command | HoldfastError) -> None:
            is_locked = (
                isinstance(answer, Command)
                and answer.code == ResponseCode.SUCCESS
                and owned.queue in java_json.decode(answer.body, LockAnswer).lockOKMQSet
            )
            if is_locked:
                owned.locked_ms = requested_ms
            then(is_locked)  # type: ignore[operator]

        self.request(address, Command(code=RequestCode.LOCK_BATCH_MQ, body=java_json.encode(body)), answered)

    def _renew_regularly(self) -> None:
        for owned in list(self._owned_queues.values()):
            if owned.window is not None:
                self._lock(owned, lambda _is_locked: None)
        self.after(_RENEW_MS, self._renew_regularly)

    def _has_lock(self, owned: _OwnedQueue) -> bool:
        return owned.locked_ms is not None and self.now_ms - owned.locked_ms < _LOCK_LIFE_MS

    # Pulling.

    def _pull(self, owned: _OwnedQueue) -> None:
        window = owned.window
        if owned.is_dropped or window is None:
            return
        owned.pull_number += 1
        pull_number = owned.pull_number
        owned.pull_address = address = self.find_address(owned.queue)
        if address is None or window.message_count > 4 * _BATCH:
            owned.pull_address = None
            self._pull_later(owned)
            return
        subscription, requested_ms = self._subscriptions[owned.queue.topic], self.now_ms
        command = pull_command(
            group=self._group,
            queue=owned.queue,
            offset=window.next_offset,
            subscription=subscription,
            commit_offset=window.commit_offset,
            suspend_ms=_SUSPEND_MS,
            batch_max=_BATCH,
        )

        def answered(answer: Command | HoldfastError) -> None:
            if owned.is_dropped or owned.pull_number != pull_number:
                return
            owned.pull_address = None
            if isinstance(answer, Command):
                try:
                    self._handle_pulled(
                        owned, window, read_pull_answer(answer, owned.queue, subscription), requested_ms
                    )
                except CorruptRecord as error:
                    raise Violation("a pull returns the bytes that were written", f"{owned.queue}: {error}") from error
                except BrokerRefused:
                    self.send_heartbeats()  # Perhaps the broker has forgotten us.
                else:
                    return
            self._refresh_if_stale(owned.queue, answer)
            self._pull_later(owned)

        self.request(address, command, answered, timeout_ms=_PULL_TIMEOUT_MS)

    def _pull_later(self, owned: _OwnedQueue) -> None:
        pull_number = owned.pull_number
        self.after(_PAUSE_MS, lambda: self._pull(owned) if owned.pull_number == pull_number else None)

    def _handle_pulled(self, owned: _OwnedQueue, window: ProcessQueue, outcome: PullOutcome, requested_ms: int) -> None:
        if outcome.status is PullStatus.OFFSET_MOVED:
            self._witness.moved(self._group, owned.queue, window.next_offset, outcome.next_offset)
            window.reset(outcome.next_offset)
            owned.backlog = []
        else:
            self._witness.pulled(owned.queue, window.next_offset, outcome, requested_ms)
            fresh = window.add(outcome.messages, outcome.next_offset)
            if self._is_ordered:
                owned.backlog += fresh
                self._consume_next(owned)
            else:
                for message in fresh:
                    self._schedule_consume(owned, message)
        self._pull(owned)

    # Consuming.

    def _schedule_consume(self, owned: _OwnedQueue, message: ReceivedMessage) -> None:
        """Consume one message of a concurrent group, after a short random time."""
        assert owned.window is not None
        generation = owned.window.generation
        self.after(self.rng.randrange(60), lambda: self._consume(owned, message, generation))

    def _consume(self, owned: _OwnedQueue, message: ReceivedMessage, generation: int) -> None:
        if owned.is_dropped:
            return
        uid = uid_of(message.body)
        if self._witness.consume(self._group, uid, message.reconsume_times, self.now_ms):
            self._finish(owned, message, generation)
        else:
            self._send_back(owned, message, generation)

    def _finish(self, owned: _OwnedQueue, message: ReceivedMessage, generation: int) -> None:
        window = owned.window
        assert window is not None
        if not owned.is_dropped and window.finish(message.offset, generation):
            finish = FinishInfo(self.now_ms, 0 if self._is_ordered else self._queue_counts[owned.queue.topic])
            self._witness.finished(
                self._group, uid_of(message.body), queue_offset_of(message), message.reconsume_times, finish
            )
            self._committed_offsets.record(owned.queue, window.commit_offset)

    def _send_back(self, owned: _OwnedQueue, message: ReceivedMessage, generation: int) -> None:
        """Send a message back, and finish it once the broker has accepted it."""

        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                self._finish(owned, message, generation)
            elif not owned.is_dropped:
                self.after(1000, lambda: self._consume(owned, message, generation))

        request = self._send_back_request(owned.queue, message)
        if request is not None:
            self.request(*request, answered)
        else:
            self.after(1000, lambda: self._consume(owned, message, generation))

    def _send_back_request(self, queue: MessageQueue, message: ReceivedMessage) -> tuple[str, Command] | None:
        """Return the address and the request for sending a message back; None if no broker is known."""
        if is_mock_broker(queue.broker_name) and not self.is_old:
            route = self.route(retry_topic(self._group))
            if route is None or not route.publishable:
                return None
            target = self.rng.choice(route.publishable)
            address = self.find_address(target)
            command = retry_of(message, self._group, 0, RECONSUME_MAX).command(target, self.now_ms)
        else:
            address = self.find_address(queue)
            fields = SendBackFields(
                offset=message.position,
                group=self._group,
                # Messages of a batch share one position: only their own ids distinguish them.
                origin_msg_id=message.message_id if self._witness.uses_inner_batches else message.offset_id,
                origin_topic=message.topic,
                max_reconsume_times=RECONSUME_MAX,
            )
            command = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, fields=to_fields(fields))
        return None if address is None else (address, command)

    def _consume_next(self, owned: _OwnedQueue) -> None:
        """Consume the next message of an ordered queue, unless one is being consumed already."""
        if owned.is_busy or not owned.backlog or owned.is_dropped:
            return
        owned.is_busy = True
        self.after(self.rng.randrange(40), lambda: self._consume_in_order(owned))

    def _consume_in_order(self, owned: _OwnedQueue) -> None:
        owned.is_busy = False
        if owned.is_dropped or not owned.backlog or owned.window is None:
            return
        if not self._has_lock(owned):
            owned.is_busy = True
            self.after(_PAUSE_MS, lambda: self._consume_in_order(owned))
            return
        message = owned.backlog[0]
        if self._witness.consume_in_order(self._group, uid_of(message.body), owned.queue.broker_name):
            owned.backlog.pop(0)
            self._finish(owned, message, owned.window.generation)
            self._consume_next(owned)
        else:
            owned.is_busy = True
            self.after(_PAUSE_MS, lambda: self._consume_in_order(owned))

    # Committing.

    def _commit_regularly(self) -> None:
        for owned in list(self._owned_queues.values()):
            self._commit(owned)
        self.after(_COMMIT_MS, self._commit_regularly)

    def _commit(self, owned: _OwnedQueue) -> None:
        offset = self._committed_offsets.uncommitted().get(owned.queue)
        address = self.find_address(owned.queue)
        if offset is None or address is None:
            return
        queue = owned.queue
        fields = UpdateOffsetFields(
            consumer_group=self._group, topic=queue.topic, queue_id=LogicalQueueId(queue.queue_id), commit_offset=offset
        )
        self.send_one_way(address, Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, fields=to_fields(fields)))
        self._committed_offsets.mark_committed(queue, offset)


def queue_offset_of(message: ReceivedMessage) -> QueueOffset:
    """Return the queue and offset that *message* was pulled from."""
    queue = message.queue
    return QueueOffset(queue.broker_name, queue.topic, queue.queue_id, message.offset)
