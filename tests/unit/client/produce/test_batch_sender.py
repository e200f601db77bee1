"""Sending a batch, or a message that no batch may hold."""

from itertools import count

import pytest

from holdfast.client.messages.packing import Packing
from holdfast.client.produce.batch_plan import Batch
from holdfast.client.produce.batch_sender import BatchSender
from holdfast.client.produce.sender import Parcel, Receipt
from holdfast.model.errors import BrokerRefused, SendFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.records.batch import split_items

QUEUE = MessageQueue("t", "b", 1)


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


def two_messages() -> Batch:
    return Batch([Message("t", b"one"), Message("t", b"two", tags="x")], [b"", b"TAGS\x01x\x02"])


@pytest.mark.parametrize(("offset_id", "each"), [("A,B", ["A", "B"]), ("WHOLE", ["WHOLE", "WHOLE"])])
async def test_every_message_of_a_batch_has_an_id_and_a_position(offset_id: str, each: list[str]):
    """A batch that a broker stored whole is one record with one id; the offsets differ all the same."""
    broker = Broker(offset_id)

    results = [*await broker.sender.send("t", QUEUE, two_messages())]

    assert results == [SendResult(f"ID{2 + at}", QUEUE, 40 + at, each[at]) for at in range(2)]
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

    (result,) = await broker.sender.send("t", None, Batch([message], [b""], broker.sender.pack(message)))

    assert result == SendResult("ID1", QUEUE, 40, "A")
    (parcel,) = broker.parcels
    assert (parcel.code, parcel.queue, parcel.outgoing.sys_flag) == (310, None, 0x301)


async def test_a_failure_is_raised():
    """The caller knows whose messages they are."""

    async def refuse(parcel: Parcel) -> Receipt:
        raise SendFailed(BrokerRefused(2, "busy"), attempts=1, maybe_stored=False)

    sender = BatchSender(refuse, lambda wanted: ["ID"] * wanted, codec=None, packing=Packing())

    with pytest.raises(SendFailed, match="busy"):
        await sender.send("t", None, two_messages())


def test_the_size_of_an_id_is_known():
    """It counts towards the size of a batch."""
    assert Broker().sender.id_size == len("UNIQ_KEY\x01ID0\x02")
