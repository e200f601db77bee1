"""Sends batches: gives each message an id, encodes the batch, and returns the position of each message.

    a batch            ─> request 320, or an inner batch for a broker that stores it whole
    a packed message   ─> request 310

A batch is encoded only when it is sent, so that the bytes of waiting messages are not held twice. `accumulator` and
`send_many` decide which messages are sent together, and when.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from holdfast.client.messages.packing import Outgoing, Packing, pack, unique_key_property
from holdfast.client.produce.batch_plan import Batch, encode_messages, item_results, pack_inner_batch
from holdfast.client.produce.sender import Parcel, Receipt
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.records.compression import Codec

SendParcel = Callable[[Parcel], Awaitable[Receipt]]


class BatchSender:
    """Sends the batches of one producer.

    Args:
        send_parcel: Sends one request.
        next_ids: Returns the given number of new ids.
        codec: The compression of batches that brokers store whole; None for none.
        packing: How to pack messages that are sent alone.

    Attributes:
        id_size: The size of the property that carries the id of a message.
    """

    def __init__(
        self,
        send_parcel: SendParcel,
        next_ids: Callable[[int], list[str]],
        *,
        codec: Codec | None,
        packing: Packing,
    ) -> None:
        self._send_parcel = send_parcel
        self._next_ids = next_ids
        self._codec = codec
        self._packing = packing
        self.id_size = len(unique_key_property(next_ids(1)[0]))

    def pack(self, message: Message) -> Outgoing:
        """Return *message* packed to be sent alone.

        Raises:
            LocalProtocolError: it cannot be sent unchanged; the text says why.
        """
        return pack(message, self._next_ids(1)[0], self._packing)

    async def send(self, topic: str, queue: MessageQueue | None, batch: Batch) -> Iterator[SendResult]:
        """Send *batch* to *queue*, or to any queue of *topic*, and return the position of each message.

        Raises:
            SendFailed: the batch was not acknowledged.
            LocalProtocolError: the batch cannot be encoded.
        """
        if batch.single is not None:
            receipt = await self._send_parcel(Parcel(topic, batch.single, queue=queue))
            return iter((receipt.result,))
        messages = batch.messages
        batch_id, *ids = self._next_ids(1 + len(messages))
        body = encode_messages(messages, ids, batch.texts)
        parcel = Parcel(
            topic,
            Outgoing(batch_id, unique_key_property(batch_id), body, 0, 0),
            queue=queue,
            code=RequestCode.SEND_BATCH_MESSAGE,
            encode_inner=partial(pack_inner_batch, messages, body, batch_id, self._codec),
        )
        receipt = await self._send_parcel(parcel)
        return item_results(ids, receipt.result)
