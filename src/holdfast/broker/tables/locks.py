"""Queue locks of orderly consumers, by group (codes 41 and 42).

A lock belongs to a client and expires a minute after its last renewal; clients renew every 20 seconds. Locks are in
memory only: after a restart, clients simply lock again.

A lock is keyed by topic and queue number, never by the broker name in the request. A broker has one queue of each
number in a topic: its own, or the logical queue of a static topic. Clients name the broker of a logical queue in
several ways (`__syslo__global__`, `__logic__global`, or the broker that it was found on). All mean the same queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from holdfast.broker.flow.request import Answer, Handlers, Request
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.moves import LockHeld
from holdfast.wire.requests.offsets import LockAnswer, LockBody

LOCK_LIFE_MS: Final = 60_000

Place = tuple[str, int]
"""Topic and queue number."""


class QueueLocks:
    """The owner and last renewal of each lock, by group and queue."""

    def __init__(self) -> None:
        self._held: dict[str, dict[Place, tuple[str, int]]] = {}

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock_batch,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock_batch,
        }

    def lock(self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock those of *queues* that are free, expired or already the client's; return the locked ones."""
        held = self._held.setdefault(group, {})
        taken = []
        for queue in queues:
            place = _place(queue)
            owner, since_ms = held.get(place, (client_id, now_ms))
            if owner == client_id or now_ms - since_ms > LOCK_LIFE_MS:
                held[place] = (client_id, now_ms)
                taken.append(queue)
        return taken

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Release those of *queues* that the client has locked."""
        held = self._held.get(group, {})
        for place in map(_place, queues):
            owner, _ = held.get(place, (None, 0))
            if owner == client_id:
                del held[place]
        if not held:
            self._held.pop(group, None)

    def expire(self, now_ms: int) -> None:
        """Remove expired locks, so that groups that no longer exist use no memory."""
        for group, held in list(self._held.items()):
            for place, (_, since_ms) in list(held.items()):
                if now_ms - since_ms > LOCK_LIFE_MS:
                    del held[place]
            if not held:
                del self._held[group]

    # The locks of a logical queue move with it.

    def held_of(self, topic: str, queues: Collection[int]) -> list[LockHeld]:
        """Return the locks on these queues of *topic*."""
        return [
            LockHeld(group=group, client=client, queue=number, taken_ms=since_ms)
            for group, held in self._held.items()
            for (name, number), (client, since_ms) in held.items()
            if name == topic and number in queues
        ]

    def adopt(self, topic: str, locks: Iterable[LockHeld]) -> None:
        """Add the locks that were moved here with queues of *topic*."""
        for lock in locks:
            held = self._held.setdefault(lock.group, {})
            held[topic, lock.queue] = (lock.client, lock.taken_ms)

    def forget_queues(self, topic: str, queues: Collection[int]) -> None:
        """Remove the locks on these queues of *topic*, which have moved to another broker."""
        for group, held in list(self._held.items()):
            for place in [(name, number) for name, number in held if name == topic and number in queues]:
                del held[place]
            if not held:
                del self._held[group]

    def lock_batch(self, request: Request) -> Answer:
        """Answer 41 with the queues that the client has locked now."""
        body = java_json.decode(request.command.body, LockBody)
        taken = self.lock(body.consumer_group, body.client_id, body.mq_set, request.now_ms)
        return request.answer(body=java_json.encode(LockAnswer(lockOKMQSet=taken)))

    def unlock_batch(self, request: Request) -> Answer:
        """Answer 42: release queue locks."""
        body = java_json.decode(request.command.body, LockBody)
        self.unlock(body.consumer_group, body.client_id, body.mq_set)
        return request.answer()


def _place(queue: MessageQueue) -> Place:
    return queue.topic, queue.queue_id
