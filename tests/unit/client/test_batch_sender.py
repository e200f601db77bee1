"""Sending many messages in few requests."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.scripted_server import ScriptedServer

from holdfast.client.batch_sender import BatchSender, Carry
from holdfast.client.cluster_client import ClusterClient
from holdfast.client.outgoing import Packing, pack
from holdfast.client.sender import Parcel, Receipt
from holdfast.model.errors import BrokerRefused, SendFailed, SendManyFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.batch import split_items
from holdfast.wire.codes import RequestCode


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


def with_client(story: Callable[[ClusterClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with ScriptedServer() as server, ClusterClient(server.address) as client:
            server.serve_topic("t", queues=4)
            await story(client)

    asyncio.run(run())


def a_batch(client: ClusterClient, carry: Carry, messages: list[Message]) -> BatchSender:
    packed = [pack(message, f"ID{number}", Packing()) for number, message in enumerate(messages)]
    return BatchSender(client, carry, messages, packed)


def test_messages_without_keys_go_in_one_request():
    """Each has its own id and its own place."""

    async def story(client: ClusterClient) -> None:
        carry = Carrier()

        results = await a_batch(client, carry, [Message("t", b"%d" % n) for n in range(3)]).send(
            batch_id=lambda: "BATCH", bytes_max=10_000
        )

        (parcel,) = carry.parcels
        assert (parcel.code, parcel.queue, parcel.outgoing.properties) == (320, None, "UNIQ_KEY\x01BATCH\x02")
        assert [bytes(body) for _, body, _ in split_items(parcel.outgoing.body)] == [b"0", b"1", b"2"]
        assert [(result.message_id, result.offset, result.offset_id) for result in results] == [
            ("ID0", 100, "O0"),
            ("ID1", 101, "O1"),
            ("ID2", 102, "O2"),
        ]

    with_client(story)


def test_messages_of_a_batch_that_was_kept_whole_have_its_place():
    """The broker answers with one id: that of the record that holds them all."""

    async def story(client: ClusterClient) -> None:
        async def keep(parcel: Parcel) -> Receipt:
            result = SendResult(parcel.outgoing.message_id, MessageQueue("t", "b", 0), 100, "O")
            return Receipt(result, "address", "")

        messages = [Message("t", b"%d" % n) for n in range(3)]
        results = await a_batch(client, keep, messages).send(batch_id=lambda: "BATCH", bytes_max=10_000)

        assert [(result.offset, result.offset_id) for result in results] == [(100, "O"), (101, "O"), (102, "O")]

    with_client(story)


def test_keyed_messages_go_to_the_queues_of_their_keys():
    """One request for each queue."""

    async def story(client: ClusterClient) -> None:
        carry = Carrier()
        messages = [Message("t", b"x", key=key) for key in ("a", "b", "e", "a")]  # a and e share a queue

        results = await a_batch(client, carry, messages).send(batch_id=lambda: "B", bytes_max=10_000)

        assert {parcel.queue.queue_id for parcel in carry.parcels if parcel.queue} == {97 % 4, 98 % 4}
        assert [result.queue.queue_id for result in results] == [1, 2, 1, 1]

    with_client(story)


def test_what_failed_is_told_apart_from_what_did_not():
    """For each message, in the order given."""

    async def story(client: ClusterClient) -> None:
        carry = Carrier(lambda parcel: parcel.queue is not None and parcel.queue.queue_id == 1)
        messages = [Message("t", b"x", key="a"), Message("t", b"x", key="b")]

        with pytest.raises(SendManyFailed, match="1 of 2") as caught:
            await a_batch(client, carry, messages).send(batch_id=lambda: "B", bytes_max=10_000)

        refused, sent = caught.value.results
        assert isinstance(refused, SendFailed)
        assert isinstance(sent, SendResult)
        assert (caught.value.code, caught.value.maybe_stored) == (2, False)

    with_client(story)


def test_nobody_to_send_to_is_known_before_anything_leaves():
    """For keyed messages the queues must be known first."""

    async def story(client: ClusterClient) -> None:
        carry = Carrier()

        with pytest.raises(SendFailed):
            await a_batch(client, carry, [Message("t", b"x"), Message("x", b"x", key="k")]).send(
                batch_id=lambda: "B", bytes_max=10_000
            )
        assert carry.parcels == []

    with_client(story)


def test_what_cannot_be_in_a_batch_is_sent_by_itself():
    """In its place."""

    async def story(client: ClusterClient) -> None:
        carry = Carrier()
        messages = [Message("t", b"0"), Message("t", b"1", delay_level=1), Message("t", b"2")]

        await a_batch(client, carry, messages).send(batch_id=lambda: "B", bytes_max=10_000)

        assert [parcel.code for parcel in carry.parcels] == [320, 310, 320]

    with_client(story)
