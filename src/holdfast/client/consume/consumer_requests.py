"""Answers the requests of brokers and operators to a consumer.

220   reset the offsets of the group
221   report the offsets
307   report the running info
309   consume the given message now
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar

import msgspec

from holdfast.client.cluster.cluster_client import now_ms
from holdfast.client.cluster.server_request import ServerRequest
from holdfast.client.consume.committed_offsets import decode_offsets
from holdfast.client.consume.group_member import GroupMember
from holdfast.client.consume.listener import ListenerCall, RetryLater
from holdfast.client.consume.lock_renewal import LockRenewal
from holdfast.client.consume.offset_store import OffsetStore
from holdfast.client.consume.queue_reader import QueueReader
from holdfast.client.consume.running_info import (
    DirectOutcome,
    QueueStatus,
    encode_consumer_status,
    encode_direct_result,
    encode_running_info,
)
from holdfast.client.messages.unpacking import read_messages
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.requests.admin import ClientRequestFields, ConsumerStatusFields, ResetOffsetFields
from holdfast.wire.requests.heartbeat import ConsumeType, MessageModel

_MIB = 1024 * 1024


class ConsumerRequests:
    """The request handlers of one consumer.

    Args:
        member: The membership.
        readers: The readers of the queues assigned to us now.
        offset_store: The offsets.
        call: The listener, if there is one.
        locks: The locks, if the consumer needs them.
        is_ordered: Whether it consumes in order.
    """

    def __init__(
        self,
        member: GroupMember,
        readers: Mapping[MessageQueue, QueueReader],
        offset_store: OffsetStore,
        call: ListenerCall | None,
        locks: LockRenewal | None,
        *,
        is_ordered: bool,
    ) -> None:
        self._member = member
        self._readers = readers
        self._offset_store = offset_store
        self._call = call
        self._locks = locks
        self._is_ordered = is_ordered
        self._started_ms = now_ms()

    async def answer(self, request: ServerRequest) -> Command:
        """Return the answer to a request with one of `CODES`."""
        return await self._ANSWERS[request.command.code](self, request)

    async def _reset(self, request: ServerRequest) -> Command:
        fields = request.header_as(ResetOffsetFields)
        if fields.group != self._member.group:
            return response(request.command, ResponseCode.SYSTEM_ERROR, "not a member of that group")
        for queue, offset in decode_offsets(request.command.body).items():
            reader = self._readers.get(queue)
            if reader is not None and queue.topic == fields.topic:
                reader.reset(offset)
                self._offset_store.offsets.record(queue, offset)
        await self._offset_store.save()
        return response(request.command)

    async def _status(self, request: ServerRequest) -> Command:
        topic = request.header_as(ConsumerStatusFields).topic
        offsets = {
            queue: reader.window.commit_offset for queue, reader in self._readers.items() if topic == queue.topic
        }
        return response(request.command, body=encode_consumer_status(offsets))

    async def _running_info(self, request: ServerRequest) -> Command:
        member = self._member
        model = MessageModel.BROADCASTING if member.is_broadcast else MessageModel.CLUSTERING
        properties = {
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.name,
            "PROP_CONSUMEORDERLY": str(self._is_ordered).lower(),
            "PROP_NAMESERVER_ADDR": ";".join(member.client.name_servers),
            "PROP_THREADPOOL_CORE_SIZE": "0",
            "PROP_CLIENT_VERSION": "holdfast",
            "consumerGroup": member.group,
            "messageModel": model.name,
        }
        queues = {queue: self._queue_status(reader) for queue, reader in self._readers.items()}
        return response(request.command, body=encode_running_info(properties, member.subscriptions.values(), queues))

    def _queue_status(self, reader: QueueReader) -> QueueStatus:
        window = reader.window
        is_busy = window.message_count > 0
        return QueueStatus(
            commit_offset=window.commit_offset,
            cached_msg_min_offset=LogicalOffset(window.commit_offset if is_busy else 0),
            cached_msg_max_offset=LogicalOffset(window.next_offset - 1 if is_busy else 0),
            cached_msg_count=window.message_count,
            cached_msg_size_in_mi_b=window.byte_count // _MIB,
            locked=self._locks is not None and self._locks.has_lock(reader),
            last_pull_timestamp=reader.pulled_ms,
        )

    async def _consume(self, request: ServerRequest) -> Command:
        if self._call is None:
            return response(request.command, ResponseCode.SYSTEM_ERROR, "this consumer has no listener")
        messages = read_messages(request.command.body, None, namespace=self._member.options.namespace)
        if len(messages) != 1:  # a batch, from a broker that does not know which message is meant
            return response(request.command, ResponseCode.SYSTEM_ERROR, f"one message is wanted, not {len(messages)}")
        message = messages[0]
        broker_name = request.header_as(ClientRequestFields).broker_name or ""
        queue = MessageQueue(message.queue.topic, broker_name, message.queue.queue_id)
        begun_ms = now_ms()
        outcome, remark = DirectOutcome.DONE, None
        try:
            await self._call(msgspec.structs.replace(message, queue=queue))
        except RetryLater as later:
            outcome, remark = DirectOutcome.LATER, str(later)
        except Exception:  # noqa: BLE001 - application code: the operator wants to see its error
            outcome, remark = DirectOutcome.FAILED, traceback.format_exc(limit=20)
        spent_ms = now_ms() - begun_ms
        body = encode_direct_result(outcome, is_ordered=self._is_ordered, remark=remark, spent_ms=spent_ms)
        return response(request.command, body=body)

    _ANSWERS: ClassVar[Mapping[int, Callable[[ConsumerRequests, ServerRequest], Awaitable[Command]]]] = {
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _status,
        RequestCode.GET_CONSUMER_RUNNING_INFO: _running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume,
    }
    CODES: ClassVar[frozenset[int]] = frozenset(_ANSWERS)
