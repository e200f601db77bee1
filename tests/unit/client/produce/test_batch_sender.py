"""Sending a batch, or a message that no batch may hold."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from holdfast.client.messages.packing import Packing
from holdfast.client.produce.batch_sender import Batch, BatchSender
from holdfast.client.produce.sender import Parcel, Receipt
from holdfast.model.errors import BrokerRefused, SendFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.records.batch import split_items

QUEUE = MessageQueue("t", "b", 1)


class RecordedBatch(Batch):
    """Records what it learns, in order."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type] # the arguments of a batch
        self.learned: list[object] = []

    async def wait_for_turn(self) -> None:
        self.learned.append("turn")

    def complete(self, results: Iterator[SendResult]) -> None:
        self.learned.append([*results])

    def fail(self, error: Exception) -> None:
        self.learned.append(error)

    def cancel(self) -> None:
        self.learned.append("cancelled")

    def end(self) -> None:
        self.learned.append("end")


class Broker:
    """Stores every parcel at offset 40, and answers with *offset_id*."""

    def __init__(self, offset_id: str = "") -> None:
        self.parcels: list[Parcel] = []
        self._offset_id = offset_id
        self._ids = count()
        self.sender = BatchSender(self._store, self._next_ids, codec=None, packing=Packing(compress_over=1000))

    def _next_ids(self, wanted: int) -> list[str]:
        return [f"ID{next(self._ids)}" for _ in range(wanted)]

    async def _store(self, parcel: Parcel) -> Receipt:
        self.parcels.append(parcel)
        return Receipt(SendResult(parcel.outgoing.message_id, QUEUE, 40, self._offset_id), "address", "")


def two_messages() -> RecordedBatch:
    return RecordedBatch([Message("t", b"one"), Message("t", b"two", tags="x")], [b"", b"TAGS\x01x\x02"])


@pytest.mark.parametrize(("offset_id", "each"), [("A,B", ["A", "B"]), ("WHOLE", ["WHOLE", "WHOLE"])])
async def test_every_message_of_a_batch_has_an_id_and_a_position(offset_id: str, each: list[str]):
    """A batch that a broker stored whole is one record with one id; the offsets differ all the same."""
    broker = Broker(offset_id)

    batch = two_messages()
    await broker.sender.send_each("t", QUEUE, [batch])

    positions = [SendResult(f"ID{2 + at}", QUEUE, 40 + at, each[at]) for at in range(2)]
    assert batch.learned == ["turn", positions, "end"]
    (parcel,) = broker.parcels
    assert (parcel.code, parcel.queue, parcel.outgoing.properties) == (320, QUEUE, "UNIQ_KEY\x01ID1\x02")
    assert [(bytes(body), bytes(text)) for _, body, text in split_items(parcel.outgoing.body)] == [
        (b"one", b"UNIQ_KEY\x01ID2\x02"),
        (b"two", b"UNIQ_KEY\x01ID3\x02TAGS\x01x\x02"),
    ]


async def test_a_packed_message_is_no_batch():
    """It is packed with the options of the sender."""
    broker = Broker("A")
    message = Message("t", bytes(5000), delay_level=2)

    batch = RecordedBatch([message], [b""], broker.sender.pack(message))
    await broker.sender.send_each("t", None, [batch])

    assert batch.learned == ["turn", [SendResult("ID1", QUEUE, 40, "A")], "end"]
    (parcel,) = broker.parcels
    assert (parcel.code, parcel.queue, parcel.outgoing.sys_flag) == (310, None, 0x301)


async def test_a_failure_is_that_of_one_batch():
    """Later batches are sent."""
    failures: list[SendFailed] = []

    async def refuse(parcel: Parcel) -> Receipt:
        failures.append(SendFailed(BrokerRefused(2, "busy"), attempts=1, maybe_stored=False))
        raise failures[-1]

    sender = BatchSender(refuse, lambda wanted: ["ID"] * wanted, codec=None, packing=Packing())
    batches = [two_messages(), two_messages()]

    await sender.send_each("t", None, batches)

    assert [batch.learned for batch in batches] == [["turn", failure, "end"] for failure in failures]
    assert len(failures) == 2


async def test_a_programming_error_is_raised_too():
    """The batch learns of it, and no later one is sent."""

    async def break_down(parcel: Parcel) -> Receipt:
        raise ZeroDivisionError

    sender = BatchSender(break_down, lambda wanted: ["ID"] * wanted, codec=None, packing=Packing())
    batches = [two_messages(), two_messages()]

    with pytest.raises(ZeroDivisionError) as caught:
        await sender.send_each("t", None, batches)

    assert [batch.learned for batch in batches] == [["turn", caught.value, "end"], []]


async def test_a_batch_learns_that_its_send_was_cancelled():
    """Its outcome is unknown; batches that wait are not sent."""
    reached = asyncio.Event()

    async def hang(parcel: Parcel) -> Receipt:
        reached.set()
        return await asyncio.get_running_loop().create_future()

    sender = BatchSender(hang, lambda wanted: ["ID"] * wanted, codec=None, packing=Packing())
    batches = [two_messages(), two_messages()]
    sending = asyncio.create_task(sender.send_each("t", None, batches))
    await reached.wait()

    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending

    assert [batch.learned for batch in batches] == [["turn", "cancelled", "end"], []]


def test_the_size_of_an_id_is_known():
    """It counts towards the size of a batch."""
    assert Broker().sender.id_size == len("UNIQ_KEY\x01ID0\x02")
