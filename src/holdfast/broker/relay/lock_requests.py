"""Locks of queues that several brokers lead (41 and 42): this broker locks its own queues, and relays the others.

    {queue 0, 1, 2, 3} ─┬─ led here: locked here
                        └─ the others: one request per leader, relayed ─> one answer with all locked queues

A queue whose leader does not answer is not locked: the client tries again in its next round.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Answer, Handlers, Request
from holdfast.broker.relay.relay import Relay
from holdfast.broker.tables.locks import QueueLocks
from holdfast.machine.component import Component
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.offsets import LockAnswer, LockBody
from holdfast.wire.requests.table import Relaying


class LockRequests(Component):
    """Handles requests of consumers that lock or unlock queues, on whichever brokers these are."""

    def __init__(self, locks: QueueLocks, relay: Relay) -> None:
        self._locks = locks
        self._relay = relay

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, request: Request) -> Answer | Procedure[Answer]:
        """Lock queues (41), and return those that the client now holds."""
        body = java_json.decode(request.command.body, LockBody)
        local, away = self._partition(body.mq_set)
        locked = self._locks.lock(body.consumer_group, body.client_id, local)
        if not away:
            return request.answer(body=java_json.encode(LockAnswer(lockOKMQSet=locked)))
        return self._lock_away(request, body, locked, away)

    async def _lock_away(
        self, request: Request, body: LockBody, locked: list[MessageQueue], away: Sequence[list[MessageQueue]]
    ) -> Answer:
        for queues in away:
            answer = await self._relay_to_leader(request, body, queues)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                try:
                    confirmed = java_json.decode(answer.body, LockAnswer).lockOKMQSet
                except RemoteProtocolError:
                    continue  # A leader with a malformed answer has locked nothing.
                granted = {queue.queue_id for queue in confirmed if queue.topic == queues[0].topic}
                locked += [queue for queue in queues if queue.queue_id in granted]
        return request.answer(body=java_json.encode(LockAnswer(lockOKMQSet=locked)))

    def unlock(self, request: Request) -> Answer | Procedure[Answer]:
        """Unlock queues (42)."""
        body = java_json.decode(request.command.body, LockBody)
        local, away = self._partition(body.mq_set)
        self._locks.unlock(body.consumer_group, body.client_id, local)
        return self._unlock_away(request, body, away) if away else request.answer()

    async def _unlock_away(self, request: Request, body: LockBody, away: Sequence[list[MessageQueue]]) -> Answer:
        for queues in away:
            await self._relay_to_leader(request, body, queues)
        return request.answer()

    def _partition(self, queues: list[MessageQueue]) -> tuple[list[MessageQueue], list[list[MessageQueue]]]:
        """Return the queues to lock here, and the others grouped by topic and leader."""
        local: list[MessageQueue] = []
        away: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in queues:
            if not self._relay.is_away(queue.key, Relaying.LOCK):
                local.append(queue)
                continue
            leader = self._relay.find_leader_name(queue.key) or f"unknown {queue.queue_id}"
            away.setdefault((queue.topic, leader), []).append(queue)
        return local, list(away.values())

    async def _relay_to_leader(self, request: Request, body: LockBody, queues: list[MessageQueue]) -> Command | None:
        command = Command(
            code=request.command.code, body=java_json.encode(msgspec.structs.replace(body, mq_set=queues))
        )
        return await self._relay.relay_to_leader(command, queues[0].key, request.channel, request.sender)
