"""A simulated member of a consumer group, concurrent or ordered.

    members and routes ─> which queues are mine ─┬─ lost ───> commit, unlock, forget
                                                 └─ gained ─> lock (ordered) ─> committed offset ─> pull, consume ...

Concurrent: messages are consumed in any order, and a failed message is sent back to the broker (36) and redelivered
from the retry topic. Ordered: messages of a queue are consumed one after the other while the lock holds, and a failed
message is retried in place.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from holdfast.client.cluster.heartbeat import consumer_data, heartbeat_command
from holdfast.client.consume.committed_offsets import OffsetBook
from holdfast.client.consume.process_queue import ProcessQueue
from holdfast.client.consume.pull_plan import PullOutcome, PullStatus, pull_command, read_pull_answer
from holdfast.client.consume.rebalance import allocate_average, plan_change
from holdfast.client.messages.retry_message import retry_of
from holdfast.model.errors import BrokerRefused, CorruptRecord, HoldfastError
from holdfast.model.group import Subscription
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.model.topic import retry_topic
from holdfast.sim.actors.client import SimClient
from holdfast.sim.actors.witness import Witness
from holdfast.sim.checkers.offset_identity import Place
from holdfast.sim.checkers.progress import Doing
from holdfast.sim.world.workload import RECONSUME_MAX, uid_of
from holdfast.sim.world.world import Violation
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.heartbeat import ConsumeFromWhere, ConsumerList, UnregisterFields
from holdfast.wire.requests.offsets import LockAnswer, LockBody, QueryOffsetFields, SendBackFields, UpdateOffsetFields

_REBALANCE_MS: Final = 5_000
_COMMIT_MS: Final = 2_000
_SUSPEND_MS: Final = 10_000
_PULL_TIMEOUT_MS: Final = 14_000
_PAUSE_MS: Final = 500
_RENEW_MS: Final = 4_000
_LOCK_LIFE_MS: Final = 20_000  # The member's limit; the broker's is longer.
_BATCH: Final = 16


class _Claim(msgspec.Struct):
    """A queue that this member owns.

    Attributes:
        window: None until the start offset is known.
        asked: The address of the pull in flight; None if there is none.
        turn: Counts pulls: the answer to an older pull is ignored.
        locked_ms: When the broker last confirmed the lock; ordered groups only.
        backlog: Messages pulled and not yet consumed; ordered groups only.
    """

    queue: MessageQueue
    window: ProcessQueue | None = None
    asked: str | None = None
    turn: int = 0
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
        chance: Random,
        *,
        group: str,
        topic: str,
        is_ordered: bool,
        witness: Witness,
        is_old: bool = False,
        unit: str = "",
    ) -> None:
        super().__init__(name, name_servers, chance, is_old=is_old, unit=unit)
        self._group = group
        self._is_ordered = is_ordered
        self._witness = witness
        topics = (topic,) if is_ordered else (topic, retry_topic(group))
        self._subscriptions = {name: Subscription(topic=name) for name in topics}
        self._claims: dict[MessageQueue, _Claim] = {}
        self._shares: dict[str, int] = {}  # By topic, the number of queues at the last rebalance.
        self._book = OffsetBook()

    def started(self) -> None:
        """Join the group."""
        for topic in self._subscriptions:
            self.route(topic)
        self.after(self.chance.randrange(500), self._rebalance_regularly)
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

    def requested(self, address: str, command: Command) -> None:  # noqa: ARG002 - any broker may send it
        """Rebalance when a broker reports that the members changed."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance()

    def route_changed(self, topic: str) -> None:
        """Send heartbeats to new brokers and rebalance. Pull a queue whose leader changed from the new leader."""
        self.beat()
        self._rebalance()
        for claim in list(self._claims.values()):
            address = self.find_address(claim.queue)
            if claim.queue.topic == topic and claim.asked is not None and address not in {None, claim.asked}:
                self._pull(claim)
        if self.unit:
            fields = UnregisterFields(client_id=self.name, consumer_group=self._group)
            self.part(Command(code=RequestCode.UNREGISTER_CLIENT, fields=to_fields(fields)))

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
                self.ask(self.chance.choice(known), command, lambda answer, topic=topic: self._members(topic, answer))  # type: ignore[misc]

    def _members(self, topic: str, answer: Command | HoldfastError) -> None:
        route = self.routes.find(topic)
        if isinstance(answer, HoldfastError) or answer.code != ResponseCode.SUCCESS or route is None:
            return
        members = java_json.decode(answer.body, ConsumerList).consumer_id_list
        self._shares[topic] = len(route.readable)
        mine = allocate_average(route.readable, members, self.name)
        change = plan_change([queue for queue in self._claims if queue.topic == topic], mine)
        for queue in change.lost:
            self._drop(self._claims[queue])
        for queue in change.gained:
            self._claims[queue] = _Claim(queue)
            self._claim(self._claims[queue])

    def _drop(self, claim: _Claim) -> None:
        self._commit(claim)
        claim.is_dropped = True
        del self._claims[claim.queue]
        self._book.forget(claim.queue)
        address = self.find_address(claim.queue)
        if self._is_ordered and address is not None:
            body = LockBody(client_id=self.name, consumer_group=self._group, mq_set=[claim.queue])
            self.tell(address, Command(code=RequestCode.UNLOCK_BATCH_MQ, body=java_json.encode(body)))

    def _doubt(self, queue: MessageQueue, answer: Command | HoldfastError) -> None:
        """Refresh the leader of a queue if it may have changed."""
        if isinstance(answer, HoldfastError) or answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            route = self.routes.find(queue.topic)
            if route is not None and route.leaders:
                self.refresh_leaders(queue.topic)

    def _again(self, claim: _Claim) -> None:
        """Retry later to claim a queue."""
        self.after(_PAUSE_MS, lambda: self._claim(claim))

    def _claim(self, claim: _Claim) -> None:
        """Claim a queue: lock it if the group is ordered, then request its committed offset."""
        if claim.is_dropped:
            return
        if not self._is_ordered:
            self._ask_offset(claim)
            return

        def locked(is_ours: bool) -> None:  # noqa: FBT001 - an answer, not a switch
            if is_ours:
                self._ask_offset(claim)
            else:
                self._again(claim)

        self._lock(claim, locked)

    def _ask_offset(self, claim: _Claim) -> None:
        address = self.find_address(claim.queue)
        if address is None:
            self._again(claim)
            return
        queue = claim.queue
        fields = QueryOffsetFields(consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id)

        def answered(answer: Command | HoldfastError) -> None:
            if claim.is_dropped:
                return
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                offset = int(answer.fields["offset"])
                self._witness.committed(self._group, queue, offset)
            elif isinstance(answer, Command) and answer.code == ResponseCode.QUERY_NOT_FOUND:
                offset = 0
            else:
                self._doubt(queue, answer)
                self._again(claim)
                return
            claim.window = ProcessQueue(queue, offset)
            self._book.begin(queue, offset)
            self._pull(claim)

        self.ask(address, Command(code=RequestCode.QUERY_CONSUMER_OFFSET, fields=to_fields(fields)), answered)

    # Locks.

    def _lock(self, claim: _Claim, then: object) -> None:
        address = self.find_address(claim.queue)
        if address is None:
            then(False)  # type: ignore[operator]
            return
        body = LockBody(client_id=self.name, consumer_group=self._group, mq_set=[claim.queue])
        asked_ms = self.now_ms

        def answered(answer: Command | HoldfastError) -> None:
            is_ours = (
                isinstance(answer, Command)
                and answer.code == ResponseCode.SUCCESS
                and claim.queue in java_json.decode(answer.body, LockAnswer).lockOKMQSet
            )
            if is_ours:
                claim.locked_ms = asked_ms
            then(is_ours)  # type: ignore[operator]

        self.ask(address, Command(code=RequestCode.LOCK_BATCH_MQ, body=java_json.encode(body)), answered)

    def _renew_regularly(self) -> None:
        for claim in list(self._claims.values()):
            if claim.window is not None:
                self._lock(claim, lambda _is_ours: None)
        self.after(_RENEW_MS, self._renew_regularly)

    def _has_lock(self, claim: _Claim) -> bool:
        return claim.locked_ms is not None and self.now_ms - claim.locked_ms < _LOCK_LIFE_MS

    # Pulling.

    def _pull(self, claim: _Claim) -> None:
        window = claim.window
        if claim.is_dropped or window is None:
            return
        claim.turn += 1
        turn = claim.turn
        claim.asked = address = self.find_address(claim.queue)
        if address is None or window.message_count > 4 * _BATCH:
            claim.asked = None
            self._pull_later(claim)
            return
        subscription, asked_ms = self._subscriptions[claim.queue.topic], self.now_ms
        command = pull_command(
            group=self._group,
            queue=claim.queue,
            offset=window.next_offset,
            subscription=subscription,
            commit_offset=window.commit_offset,
            suspend_ms=_SUSPEND_MS,
            batch_max=_BATCH,
        )

        def answered(answer: Command | HoldfastError) -> None:
            if claim.is_dropped or claim.turn != turn:
                return
            claim.asked = None
            if isinstance(answer, Command):
                try:
                    self._pulled(claim, window, read_pull_answer(answer, claim.queue, subscription), asked_ms)
                except CorruptRecord as error:
                    raise Violation("a pull returns the bytes that were written", f"{claim.queue}: {error}") from error
                except BrokerRefused:
                    self.beat()  # Perhaps the broker has forgotten us.
                else:
                    return
            self._doubt(claim.queue, answer)
            self._pull_later(claim)

        self.ask(address, command, answered, timeout_ms=_PULL_TIMEOUT_MS)

    def _pull_later(self, claim: _Claim) -> None:
        turn = claim.turn
        self.after(_PAUSE_MS, lambda: self._pull(claim) if claim.turn == turn else None)

    def _pulled(self, claim: _Claim, window: ProcessQueue, outcome: PullOutcome, asked_ms: int) -> None:
        if outcome.status is PullStatus.MOVED:
            self._witness.moved(self._group, claim.queue, window.next_offset, outcome.next_offset)
            window.reset(outcome.next_offset)
            claim.backlog = []
        else:
            self._witness.pulled(claim.queue, window.next_offset, outcome, asked_ms)
            fresh = window.add(outcome.messages, outcome.next_offset)
            if self._is_ordered:
                claim.backlog += fresh
                self._consume_next(claim)
            else:
                for message in fresh:
                    self._begin(claim, message)
        self._pull(claim)

    # Consuming.

    def _begin(self, claim: _Claim, message: ReceivedMessage) -> None:
        """Consume one message of a concurrent group, after a short random time."""
        assert claim.window is not None
        generation = claim.window.generation
        self.after(self.chance.randrange(60), lambda: self._consume(claim, message, generation))

    def _consume(self, claim: _Claim, message: ReceivedMessage, generation: int) -> None:
        if claim.is_dropped:
            return
        uid = uid_of(message.body)
        if self._witness.consume(self._group, uid, message.reconsume_times, self.now_ms):
            self._finish(claim, message, generation)
        else:
            self._send_back(claim, message, generation)

    def _finish(self, claim: _Claim, message: ReceivedMessage, generation: int) -> None:
        window = claim.window
        assert window is not None
        if not claim.is_dropped and window.finish(message.offset, generation):
            doing = Doing(self.now_ms, 0 if self._is_ordered else self._shares[claim.queue.topic])
            self._witness.done(self._group, uid_of(message.body), place_of(message), message.reconsume_times, doing)
            self._book.record(claim.queue, window.commit_offset)

    def _send_back(self, claim: _Claim, message: ReceivedMessage, generation: int) -> None:
        """Send a message back, and finish it once the broker has accepted it."""

        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                self._finish(claim, message, generation)
            elif not claim.is_dropped:
                self.after(1000, lambda: self._consume(claim, message, generation))

        way = self._way_back(claim.queue, message)
        if way is not None:
            self.ask(*way, answered)
        else:
            self.after(1000, lambda: self._consume(claim, message, generation))

    def _way_back(self, queue: MessageQueue, message: ReceivedMessage) -> tuple[str, Command] | None:
        """Return the address and the request for sending a message back; None if no broker is known."""
        if is_mock_broker(queue.broker_name) and not self.is_old:
            route = self.route(retry_topic(self._group))
            if route is None or not route.publishable:
                return None
            target = self.chance.choice(route.publishable)
            address = self.find_address(target)
            command = retry_of(message, self._group, 0, RECONSUME_MAX).command(target, self.now_ms)
        else:
            address = self.find_address(queue)
            fields = SendBackFields(
                offset=message.position,
                group=self._group,
                # Messages of a batch share one position: only their own ids distinguish them.
                origin_msg_id=message.message_id if self._witness.keeps_batches else message.offset_id,
                origin_topic=message.topic,
                max_reconsume_times=RECONSUME_MAX,
            )
            command = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, fields=to_fields(fields))
        return None if address is None else (address, command)

    def _consume_next(self, claim: _Claim) -> None:
        """Consume the next message of an ordered queue, unless one is being consumed already."""
        if claim.is_busy or not claim.backlog or claim.is_dropped:
            return
        claim.is_busy = True
        self.after(self.chance.randrange(40), lambda: self._consume_in_order(claim))

    def _consume_in_order(self, claim: _Claim) -> None:
        claim.is_busy = False
        if claim.is_dropped or not claim.backlog or claim.window is None:
            return
        if not self._has_lock(claim):
            claim.is_busy = True
            self.after(_PAUSE_MS, lambda: self._consume_in_order(claim))
            return
        message = claim.backlog[0]
        if self._witness.consume_in_order(self._group, uid_of(message.body), claim.queue.broker_name):
            claim.backlog.pop(0)
            self._finish(claim, message, claim.window.generation)
            self._consume_next(claim)
        else:
            claim.is_busy = True
            self.after(_PAUSE_MS, lambda: self._consume_in_order(claim))

    # Committing.

    def _commit_regularly(self) -> None:
        for claim in list(self._claims.values()):
            self._commit(claim)
        self.after(_COMMIT_MS, self._commit_regularly)

    def _commit(self, claim: _Claim) -> None:
        offset = self._book.untold().get(claim.queue)
        address = self.find_address(claim.queue)
        if offset is None or address is None:
            return
        queue = claim.queue
        fields = UpdateOffsetFields(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        self.tell(address, Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, fields=to_fields(fields)))
        self._book.tell(queue, offset)


def place_of(message: ReceivedMessage) -> Place:
    """Return the place that *message* was pulled from."""
    queue = message.queue
    return Place(queue.broker_name, queue.topic, queue.queue_id, message.offset)
