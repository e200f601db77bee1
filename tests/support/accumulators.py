"""An accumulator between a test and a broker that answers when it is told to."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from tests.support.deliveries import run_ready_tasks
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.messages.packing import Packing
from holdfast.client.produce.accumulator import Accumulator
from holdfast.client.produce.batch_lines import Batching
from holdfast.client.produce.batch_sender import BatchSender
from holdfast.client.produce.key_sequencer import KeySequencer
from holdfast.client.produce.sender import Parcel, Receipt
from holdfast.model.errors import BrokerRefused, SendFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.model.unique_id import UniqueIds
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.compression import Codec

FOREVER = 3600.0
NOT_STORED = SendFailed(BrokerRefused(2, "busy"), attempts=1, maybe_stored=False)


class AccumulatorHarness:
    """What was carried, and what the broker is told to say."""

    def __init__(self, client: ClusterClient, **options: float) -> None:
        self.parcels: list[Parcel] = []
        self.key_sequencer = KeySequencer()
        self._answers: list[asyncio.Future[Receipt]] = []
        sender = BatchSender(
            self._send_parcel,
            lambda count: self._ids.next_many(0, count),
            codec=None,
            packing=Packing(compress_over=100_000, codec=Codec.LZ4),
        )
        batching = Batching(**options)  # type: ignore[arg-type] # the test knows which are whole numbers
        self.accumulator = Accumulator(client, sender, self.key_sequencer, batching)

    _ids = UniqueIds(host=bytes(4), process=1, salt=1)

    async def _send_parcel(self, parcel: Parcel) -> Receipt:
        self.parcels.append(parcel)
        self._answers.append(asyncio.get_running_loop().create_future())
        return await self._answers[-1]

    def put(self, message: Message, queue: MessageQueue | None = None) -> asyncio.Future[SendResult]:
        """Put one."""
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self.accumulator.put(message, future, queue)
        return future

    def answer(self, number: int, offset: int = 100) -> None:
        """Let the broker have stored a request, the first message at *offset*."""
        parcel = self.parcels[number]
        queue = parcel.queue or MessageQueue(parcel.topic, "broker-a", 0)
        offset_id = ",".join(f"O{index}" for index in range(len(bodies(parcel))))
        result = SendResult(parcel.outgoing.message_id, queue, offset, offset_id)
        self._answers[number].set_result(Receipt(result, "address", ""))

    def refuse(self, number: int) -> None:
        """Let the broker have refused a request."""
        self._answers[number].set_exception(NOT_STORED)

    async def answer_all(self) -> None:
        """Let the broker store everything, whatever comes."""
        answered = 0
        while answered < len(self.parcels):
            if not self._answers[answered].done():
                self.answer(answered)
            answered += 1
            await run_ready_tasks()

    @property
    def bodies(self) -> list[list[bytes]]:
        """What each request held."""
        return [bodies(parcel) for parcel in self.parcels]


def bodies(parcel: Parcel) -> list[bytes]:
    """Return the bodies that a request holds."""
    if parcel.code == RequestCode.SEND_MESSAGE_V2:
        return [parcel.outgoing.body]
    return [bytes(body) for _, body, _ in split_items(parcel.outgoing.body)]


@asynccontextmanager
async def accumulator_harness(**options: float) -> AsyncIterator[AccumulatorHarness]:
    """Provide a bench; batches leave with the next turn unless *options* say otherwise."""
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.serve_topic("t", queues=4)
        await client.route("t")
        yield AccumulatorHarness(client, **{"linger_s": 0, **options})


def make_messages(count: int, key: str | None = None) -> Iterable[Message]:
    """Return messages whose bodies are their numbers."""
    return [Message("t", b"%d" % number, key=key) for number in range(count)]
