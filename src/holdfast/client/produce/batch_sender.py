"""Sends batches: gives each message an id, encodes the batch, and reports the position of each message.

    a batch            ─> request 320, or an inner batch for a broker that stores it whole
    a packed message   ─> request 310

A batch is encoded only when it is sent, so that the bytes of waiting messages are not held twice. `accumulator` and
`send_many` decide when which batches are sent, by the rules of `batch_plan`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

from holdfast.client.messages.packing import Outgoing, Packing, pack, unique_key_property
from holdfast.client.produce.batch_plan import encode_messages, item_results, pack_inner_batch
from holdfast.client.produce.sender import Parcel, Receipt
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.records.compression import Codec

SendParcel = Callable[[Parcel], Awaitable[Receipt]]


class Batch(ABC):
    """Messages of one topic that are sent together. The sender calls its methods.

    Attributes:
        messages: The messages.
        texts: For each message, the properties that follow its id.
        single: The request of the only message, if it is not sent as a batch.
    """

    __slots__ = ("messages", "single", "texts")

    def __init__(self, messages: list[Message], texts: list[bytes], single: Outgoing | None = None) -> None:
        self.messages = messages
        self.texts = texts
        self.single = single

    async def wait_for_turn(self) -> None:
        """Return when the batch may be sent."""
        return

    def to_single(self, pack: Callable[[Message], Outgoing]) -> Outgoing | None:  # noqa: ARG002 - for subclasses
        """Return the request of the only message, made by *pack*; None to send a batch."""
        return self.single

    @abstractmethod
    def complete(self, results: Iterator[SendResult]) -> None:
        """Receive the position of each message."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Receive the error that ended the send."""

    def cancel(self) -> None:
        """Learn that the send was cancelled: the outcome will not be known."""
        return

    def end(self) -> None:
        """Learn that the send has ended, whatever its outcome."""
        return


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

    async def send_each(self, topic: str, queue: MessageQueue | None, batches: Iterable[Batch]) -> None:
        """Send *batches* one after another to *queue*, or each to any queue of *topic*. Each receives its outcome.

        Several calls may share an iterator: then as many requests are in flight.
        """
        for batch in batches:
            try:
                await batch.wait_for_turn()
                results = await self._send(topic, queue, batch)
            except asyncio.CancelledError:
                batch.cancel()
                raise
            except Exception as error:
                batch.fail(error)
                if not isinstance(error, HoldfastError):
                    raise
            else:
                batch.complete(results)
            finally:
                batch.end()

    async def _send(self, topic: str, queue: MessageQueue | None, batch: Batch) -> Iterator[SendResult]:
        """Send *batch* and return the position of each message.

        Raises:
            SendFailed: the batch was not acknowledged.
            LocalProtocolError: the batch cannot be encoded.
        """
        single = batch.to_single(self.pack)
        if single is not None:
            receipt = await self._send_parcel(Parcel(topic, single, queue=queue))
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
