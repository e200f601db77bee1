"""Sends many messages in few requests. The shell around `batching`.

Groups of one queue follow one another, so that their order is kept; groups of different queues are in flight together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast.client.batching import Group, plan_groups
from holdfast.client.cluster_client import ClusterClient
from holdfast.client.outgoing import Outgoing
from holdfast.client.send_plan import queue_for_key
from holdfast.client.sender import Parcel, Receipt
from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError, RouteNotFound, SendFailed, SendManyFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.batch import encode_items
from holdfast.wire.codes import RequestCode

Carry = Callable[[Parcel], Awaitable[Receipt]]
_Place = tuple[str, MessageQueue | None]


class BatchSender:
    """One call of `send_many`.

    Args:
        client: Knows the queues of keys.
        carry: Sends one request.
        messages: What to send; their topics are as the wire knows them.
        packed: The same, packed.
    """

    def __init__(
        self, client: ClusterClient, carry: Carry, messages: Sequence[Message], packed: Sequence[Outgoing]
    ) -> None:
        self._client = client
        self._carry = carry
        self._messages = messages
        self._packed = packed
        self._results: list[SendResult | SendFailed | None] = [None] * len(messages)

    async def send(self, *, batch_id: Callable[[], str], bytes_max: int) -> list[SendResult]:
        """Send everything.

        Raises:
            SendManyFailed: some were not acknowledged.
            SendFailed: nobody knows where the messages should go; none was sent.
        """
        places = await self._find_places()
        groups = plan_groups(self._messages, lambda message: places[message.topic, message.key], bytes_max=bytes_max)
        lines: dict[_Place, list[Group[_Place]]] = {}
        for group in groups:
            lines.setdefault(group.place, []).append(group)
        await asyncio.gather(*(self._send_line(line, batch_id) for line in lines.values()))
        if any(isinstance(result, SendFailed) for result in self._results):
            raise SendManyFailed(self._results)
        return [result for result in self._results if isinstance(result, SendResult)]

    async def _find_places(self) -> dict[tuple[str, str | None], _Place]:
        """Return for each topic and key where it goes: a queue only if there is a key."""
        places: dict[tuple[str, str | None], _Place] = {}
        for message in self._messages:
            if (message.topic, message.key) not in places:
                queue = None if message.key is None else await self._queue_of(message.topic, message.key)
                places[message.topic, message.key] = (message.topic, queue)
        return places

    async def _queue_of(self, topic: str, key: str) -> MessageQueue:
        try:
            queues = (await self._client.publish_route(topic)).publishable
            if not queues:
                raise RouteNotFound(f"no broker takes messages for the topic {topic!r} now")
        except HoldfastError as error:
            raise SendFailed(error, attempts=1, maybe_stored=False) from error
        return queue_for_key(key, queues)

    async def _send_line(self, line: list[Group[_Place]], batch_id: Callable[[], str]) -> None:
        for group in line:
            topic, queue = group.place
            if group.is_batch:
                outgoing, code = self._batch(group, batch_id()), RequestCode.SEND_BATCH_MESSAGE
            else:
                outgoing, code = self._packed[group.indexes[0]], RequestCode.SEND_MESSAGE_V2
            try:
                receipt = await self._carry(Parcel(topic, outgoing, queue=queue, code=code))
            except SendFailed as error:
                for index in group.indexes:
                    self._results[index] = error
            else:
                self._note(group, receipt.result)

    def _batch(self, group: Group[_Place], batch_id: str) -> Outgoing:
        items = (self._packed[index] for index in group.indexes)
        body = encode_items((item.flag, item.body, item.properties.encode()) for item in items)
        return Outgoing(batch_id, f"{names.UNIQUE_KEY}\x01{batch_id}\x02", body, _PLAIN_FLAG, _PLAIN_FLAG)

    def _note(self, group: Group[_Place], result: SendResult) -> None:
        offset_ids = result.offset_id.split(",")
        if len(offset_ids) == 1:  # A batch that was kept whole is one record and has one id.
            offset_ids *= len(group.indexes)
        for place, index in enumerate(group.indexes):
            self._results[index] = SendResult(
                self._packed[index].message_id,
                result.queue,
                result.offset + place,
                offset_ids[place] if place < len(offset_ids) else "",
                result.status,
            )


_PLAIN_FLAG: Final = 0
