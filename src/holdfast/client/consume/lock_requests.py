"""Requests the locks of queues from their brokers, and releases them: one request for all queues of a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.cluster.send_plan import is_not_leader
from holdfast.model.errors import HoldfastError, RouteNotFound
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.offsets import LockAnswer, LockBody

log = logging.getLogger("holdfast.client")


class LockOutcome(msgspec.Struct, frozen=True):
    """The result of a request for locks. If a broker did not answer, its queues are in neither set.

    Attributes:
        granted: Only this client may consume these queues.
        refused: Another client holds the locks of these queues.
    """

    granted: frozenset[MessageQueue] = frozenset()
    refused: frozenset[MessageQueue] = frozenset()


async def request_locks(rpc: QueueRpc, queues: Iterable[MessageQueue]) -> LockOutcome:
    """Request the exclusive right to consume *queues*."""
    outcomes = await asyncio.gather(
        *(_lock_at(rpc, address, broker_queues) for address, broker_queues in _by_address(rpc, queues).items())
    )
    return LockOutcome(
        frozenset[MessageQueue]().union(*(outcome.granted for outcome in outcomes)),
        frozenset[MessageQueue]().union(*(outcome.refused for outcome in outcomes)),
    )


async def release_locks(rpc: QueueRpc, queues: Iterable[MessageQueue]) -> None:
    """Release the locks of *queues*. If a broker does not answer, its locks expire."""
    await asyncio.gather(
        *(_unlock_at(rpc, address, broker_queues) for address, broker_queues in _by_address(rpc, queues).items())
    )


def _by_address(rpc: QueueRpc, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        try:
            found.setdefault(rpc.address(queue), []).append(queue)
        except RouteNotFound as error:
            log.warning("queue %s: %s", queue, error)
    return found


async def _lock_at(rpc: QueueRpc, address: str, queues: list[MessageQueue]) -> LockOutcome:
    try:
        answer = await rpc.invoke(address, _command(rpc, RequestCode.LOCK_BATCH_MQ, queues))
        granted = frozenset(queues) & set(java_json.decode(answer.body, LockAnswer).lockOKMQSet)
    except HoldfastError as error:
        log.warning("queues %s could not be locked: %s", queues, error)
        if is_not_leader(error):
            for topic in {queue.topic for queue in queues}:
                await rpc.client.refresh_leaders(topic)
        return LockOutcome()
    return LockOutcome(granted, frozenset(queues) - granted)


async def _unlock_at(rpc: QueueRpc, address: str, queues: list[MessageQueue]) -> None:
    try:
        await rpc.client.invoke(address, _command(rpc, RequestCode.UNLOCK_BATCH_MQ, queues))
    except HoldfastError as error:
        log.warning("queues %s could not be unlocked: %s", queues, error)


def _command(rpc: QueueRpc, code: RequestCode, queues: list[MessageQueue]) -> Command:
    body = LockBody(client_id=rpc.client.client_id, consumer_group=rpc.group, mq_set=queues)
    return Command(code=code, body=java_json.encode(body))
