"""Sending many messages in few requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
from tests.support.deliveries import run_ready_tasks
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.messages.packing import Packing
from holdfast.client.options import ClientOptions
from holdfast.client.produce.batch_lines import UNORDERED_IN_FLIGHT
from holdfast.client.produce.batch_sender import BatchSender, SendParcel
from holdfast.client.produce.send_many import SendMany
from holdfast.client.produce.sender import Parcel, Receipt
from holdfast.model.errors import BrokerRefused, SendFailed, SendManyFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.properties import parse_properties


class Carrier:
    """Takes parcels instead of a broker."""

    def __init__(self, refuses: Callable[[Parcel], bool] = lambda _: False) -> None:
        self.parcels: list[Parcel] = []
        self._refuses = refuses

    async def __call__(self, parcel: Parcel) -> Receipt:
        """Take one."""
        self.parcels.append(parcel)
        if self._refuses(parcel):
            raise SendFailed(BrokerRefused(2, "busy"), attempts=1, maybe_stored=False)
        queue = parcel.queue or MessageQueue(parcel.topic, "b", 0)
        count = len(split_items(parcel.outgoing.body)) if parcel.code == RequestCode.SEND_BATCH_MESSAGE else 1
        offset_id = ",".join(f"O{number}" for number in range(count))
        return Receipt(SendResult(parcel.outgoing.message_id, queue, 100, offset_id), "address", "")


@asynccontextmanager
async def a_client() -> AsyncIterator[ClusterClient]:
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.serve_topic("t", queues=4)
        yield client


def a_call(
    client: ClusterClient, carry: SendParcel, messages: list[Message], *, bytes_max: int = 10_000, timeout_s: float = 10
) -> SendMany:
    made = count(-1)  # the first id shows the sender how long ids are

    def next_ids(wanted: int) -> list[str]:
        return [f"ID{next(made)}" for _ in range(wanted)]

    sender = BatchSender(carry, next_ids, codec=None, packing=Packing(compress_over=None))
    return SendMany(client, sender, messages, bytes_max=bytes_max, timeout_s=timeout_s)


async def test_messages_without_keys_go_in_one_request():
    """Each has its own id and its own place."""
    async with a_client() as client:
        carry = Carrier()

        results = await a_call(client, carry, [Message("t", b"%d" % n) for n in range(3)]).send()

        (parcel,) = carry.parcels
        assert (parcel.code, parcel.queue, parcel.outgoing.properties) == (320, None, "UNIQ_KEY\x01ID0\x02")
        assert [bytes(body) for _, body, _ in split_items(parcel.outgoing.body)] == [b"0", b"1", b"2"]
        assert [(result.message_id, result.offset, result.offset_id) for result in results] == [
            ("ID1", 100, "O0"),
            ("ID2", 101, "O1"),
            ("ID3", 102, "O2"),
        ]


async def test_keyed_messages_go_to_the_queues_of_their_keys():
    """One request for each queue."""
    async with a_client() as client:
        carry = Carrier()
        messages = [Message("t", b"x", key=key) for key in ("a", "b", "e", "a")]  # a and e share a queue

        results = await a_call(client, carry, messages).send()

        assert {parcel.queue.queue_id for parcel in carry.parcels if parcel.queue} == {97 % 4, 98 % 4}
        assert [result.queue.queue_id for result in results] == [1, 2, 1, 1]


async def test_what_failed_is_told_apart_from_what_did_not():
    """For each message, in the order given."""
    async with a_client() as client:
        carry = Carrier(lambda parcel: parcel.queue is not None and parcel.queue.queue_id == 1)
        messages = [Message("t", b"x", key="a"), Message("t", b"x", key="b")]

        with pytest.raises(SendManyFailed, match="1 of 2") as caught:
            await a_call(client, carry, messages).send()

        refused, sent = caught.value.results
        assert isinstance(refused, SendFailed)
        assert isinstance(sent, SendResult)
        assert (caught.value.code, caught.value.maybe_stored) == (2, False)


async def test_nobody_to_send_to_is_known_before_anything_leaves():
    """For keyed messages the queues must be known first."""
    async with a_client() as client:
        carry = Carrier()

        with pytest.raises(SendFailed):
            await a_call(client, carry, [Message("t", b"x"), Message("x", b"x", key="k")]).send()
        assert carry.parcels == []


async def test_what_cannot_be_in_a_batch_is_sent_by_itself():
    """In its place."""
    async with a_client() as client:
        carry = Carrier()
        messages = [Message("t", b"0"), Message("t", b"1", delay_level=1), Message("t", b"2")]

        await a_call(client, carry, messages).send()

        assert [parcel.code for parcel in carry.parcels] == [320, 310, 320]


async def test_requests_without_keys_are_on_their_way_together():
    """A few of them: the next is made when one is answered. Every message is told its own place."""
    async with a_client() as client:
        parcels: list[Parcel] = []
        answers: list[asyncio.Future[Receipt]] = []

        async def carry(parcel: Parcel) -> Receipt:
            parcels.append(parcel)
            answers.append(asyncio.get_running_loop().create_future())
            return await answers[-1]

        def answer(number: int) -> None:
            place = SendResult("", MessageQueue("t", "b", number), 10 * number, "")
            answers[number].set_result(Receipt(place, "address", ""))

        messages = [Message("t", b"%d" % number + bytes(100)) for number in range(12)]
        sending = asyncio.create_task(a_call(client, carry, messages, bytes_max=400).send())
        await run_ready_tasks()
        assert len(parcels) == UNORDERED_IN_FLIGHT == 4
        answer(2)
        await run_ready_tasks()
        assert len(parcels) == 5

        for number in (4, 5, 3, 1, 0):
            answer(number)
            await run_ready_tasks()
        results = await sending

        assert [(result.queue.queue_id, result.offset) for result in results] == [
            (number // 2, 10 * (number // 2) + number % 2) for number in range(12)
        ]
        sent = [body for parcel in parcels for _, body, _ in split_items(parcel.outgoing.body)]
        assert [bytes(body) for body in sent] == [message.body for message in messages]


async def test_requests_of_a_queue_follow_one_another():
    """A request that is tried again must not be overtaken."""
    async with a_client() as client:
        under_way = 0

        async def carry(parcel: Parcel) -> Receipt:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            await run_ready_tasks()
            under_way -= 1
            assert parcel.queue is not None
            return Receipt(SendResult("", parcel.queue, 0, ""), "address", "")

        messages = [Message("t", bytes(100), key="a") for _ in range(12)]
        assert len(await a_call(client, carry, messages, bytes_max=400).send()) == 12


async def test_a_batch_can_be_kept_whole():
    """Whoever carries it asks for it in that form when the broker takes it."""
    async with a_client() as client:
        carry = Carrier()

        await a_call(client, carry, [Message("t", b"%d" % n, key="a", tags="x") for n in range(3)]).send()

        (parcel,) = carry.parcels
        whole = parcel.encode_inner() if parcel.encode_inner else None
        assert whole is not None
        assert (whole.body, whole.sys_flag) == (parcel.outgoing.body, 0xC0)
        assert parse_properties(whole.properties) == {
            "UNIQ_KEY": "ID0",
            "INNER_NUM": "3",
            "INNER_IDS": "next",
            "KEYS": "a",
            "TAGS": "x",
        }


async def test_queues_of_keys_are_not_looked_for_without_end():
    """Name servers that hang end a batch, and nothing of it was sent."""
    async with asyncio.timeout(20):
        async with ScriptedServer() as server, ClusterClient(ClientOptions(server.address, timeout_s=60)) as client:
            server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
            carry = Carrier()

            with pytest.raises(SendFailed, match="no name server returned the route of 't' in time"):
                await a_call(client, carry, [Message("t", b"1", key="a")], timeout_s=0.1).send()

            assert carry.parcels == []
