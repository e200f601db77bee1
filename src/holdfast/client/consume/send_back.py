"""Sends a failed message back, to be delivered again later.

It goes back to its broker, which puts it into the group's retry topic. A record of a logical queue may lie on any
broker that ever led it, or on one that is to be removed: then the message itself is sent to the retry topic. The same
holds for a message of a batch whose broker cannot address single messages of it: Java's refuses them.
"""

from __future__ import annotations

from typing import Final

from holdfast.client.access.refusal import refusal
from holdfast.client.cluster.cluster_client import ClusterClient, now_ms
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.messages.retry_message import RetryMessage, retry_of
from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError, RouteNotFound
from holdfast.model.message import ReceivedMessage, SendStatus
from holdfast.model.scope import is_mock_broker
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.inner_batch import is_inner_batch
from holdfast.wire.requests.heartbeat import INNER_BATCH_CAPABILITY
from holdfast.wire.requests.offsets import SendBackFields

TO_DEAD_LETTER: Final = -1
_TIMEOUT_S: Final = 5.0
_RETRY_BROKERS_MAX: Final = 3
_STORED: Final = frozenset(SendStatus)


async def send_back(rpc: QueueRpc, message: ReceivedMessage, delay_level: int, retries_max: int | None) -> None:
    """Send a message back: its broker redelivers it later, or dead-letters it after too many deliveries.

    Args:
        rpc: The calls of the consumer group.
        message: The pulled message.
        delay_level: The delay; 0 lets the broker decide, -1 is the dead-letter topic at once.
        retries_max: How often it may be redelivered; None lets the broker decide.

    Raises:
        HoldfastError: no broker accepted the message.
    """
    address = None if is_mock_broker(message.queue.broker_name) else rpc.address(message.queue)
    if address is None or not _can_address(rpc.client, message, address):
        await _send_retry(rpc, retry_of(message, rpc.group, delay_level, retries_max))
        return
    fields = SendBackFields(
        offset=message.position,
        group=rpc.group,
        delay_level=delay_level,
        origin_msg_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=retries_max,
    )
    bname = {"bname": message.queue.broker_name}
    command = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, fields=to_fields(fields) | bname)
    await rpc.invoke(address, command, _TIMEOUT_S)


def _can_address(client: ClusterClient, message: ReceivedMessage, address: str) -> bool:
    """Return whether the broker at *address* can find a message by its position and its id."""
    if not is_inner_batch(message.sys_flag):
        return True
    has_id = names.UNIQUE_KEY in message.properties
    return has_id and INNER_BATCH_CAPABILITY in client.capabilities_of(address)


async def _send_retry(rpc: QueueRpc, retry: RetryMessage) -> None:
    """Send a message to the retry topic of the group, on the first of its brokers that accepts it."""
    route = await rpc.client.publish_route(retry.topic)
    queues = rpc.client.random.sample(route.publishable, len(route.publishable))
    failure: HoldfastError = RouteNotFound(f"no broker accepts messages for the topic {retry.topic!r} now")
    for queue in queues[:_RETRY_BROKERS_MAX]:
        try:
            answer = await rpc.client.ask(rpc.address(queue), retry.command(queue, now_ms()), _TIMEOUT_S)
        except HoldfastError as error:
            failure = error
            continue
        if answer.code in _STORED:
            return
        failure = refusal(answer.code, answer.remark, address=rpc.address(queue))
    raise failure
