"""A consumer whose group's offsets operators reset while it consumes.

    every queue of its topics:   pull without waiting ─> resume where the answer says ─> rest, commit, rest ─> pull ...

It is the only member of its group and consumes slowly, so that a reset often waits for it while the queue moves. Missed
or repeated messages do not matter; the checker only verifies that it receives every reset.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from holdfast.client.consume.pull_plan import PullStatus, pull_command, read_pull_answer
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError
from holdfast.model.group import Subscription
from holdfast.model.queue import LogicalOffset, LogicalQueueId, MessageQueue
from holdfast.sim.actors.client import SimClient
from holdfast.sim.checkers.resets import ResetChecker
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.offsets import UpdateOffsetFields

RESET_GROUP: Final = "wanderers"
_CYCLE_MS: Final = 2_000
_BATCH: Final = 8
_UNREPORTED_CODES: Final = frozenset({ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.SYSTEM_BUSY})


class ResetConsumer(SimClient):
    """The only member of the group.

    Args:
        topics: The static topics to consume.
        reset_checker: The checker that receives every answer.
    """

    def __init__(
        self, name: str, name_servers: str, rng: Random, *, topics: Iterable[str], reset_checker: ResetChecker
    ) -> None:
        super().__init__(name, name_servers, rng)
        self._subscriptions = {topic: Subscription(topic=topic) for topic in topics}
        self._reset_checker = reset_checker
        self._next_offsets: dict[MessageQueue, LogicalOffset] = {}

    def started(self) -> None:
        """Request the routes."""
        self._reset_checker.member_started(self.now_ms)
        for topic in self._subscriptions:
            self.route(topic)

    def route_changed(self, topic: str) -> None:
        """Start to pull new queues."""
        route = self.routes.find(topic)
        for queue in () if route is None or topic not in self._subscriptions else route.readable:
            if queue not in self._next_offsets:
                self._next_offsets[queue] = LogicalOffset(0)
                self._schedule_cycle(queue)

    def _schedule_cycle(self, queue: MessageQueue) -> None:
        cycle_ms = self.rng.randrange(_CYCLE_MS)
        self.after(cycle_ms // 2, lambda: self._commit(queue))
        self.after(cycle_ms, lambda: self._pull(queue))

    def _pull(self, queue: MessageQueue) -> None:
        address = self.find_address(queue)
        if address is None:
            self._schedule_cycle(queue)
            return
        pull_offset, requested_ms, key = self._next_offsets[queue], self.now_ms, queue.key
        subscription = self._subscriptions[queue.topic]
        command = pull_command(
            group=RESET_GROUP,
            queue=queue,
            offset=pull_offset,
            subscription=subscription,
            commit_offset=pull_offset,
            suspend_ms=0,
            with_subscription=True,
            batch_max=_BATCH,
        )

        def answered(answer: Command | HoldfastError) -> None:
            try:
                if isinstance(answer, HoldfastError):
                    raise answer
                outcome = read_pull_answer(answer, queue, subscription)
            except HoldfastError as error:
                if not _is_unreported(error):
                    self._reset_checker.record_unknown_outcome(key, self.now_ms)
                self.refresh_leaders(queue.topic)
            else:
                is_moved = outcome.status is PullStatus.OFFSET_MOVED
                self._reset_checker.pulled(key, pull_offset, requested_ms, outcome.next_offset if is_moved else None)
                self._next_offsets[queue] = outcome.next_offset
            self._schedule_cycle(queue)

        self.request(address, command, answered)

    def _commit(self, queue: MessageQueue) -> None:
        address, offset = self.find_address(queue), self._next_offsets[queue]
        fields = UpdateOffsetFields(
            consumer_group=RESET_GROUP, topic=queue.topic, queue_id=LogicalQueueId(queue.queue_id), commit_offset=offset
        )
        if address is not None:
            self.send_one_way(address, Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, fields=to_fields(fields)))


def _is_unreported(error: HoldfastError) -> bool:
    """Return whether a pull that failed with *error* cannot have reported a reset: no answer was lost."""
    if isinstance(error, ConnectionLost):
        return not error.was_sent
    return isinstance(error, BrokerRefused) and error.code in _UNREPORTED_CODES
