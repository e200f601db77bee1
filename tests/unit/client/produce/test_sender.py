"""Carrying packed messages to brokers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.support.deliveries import poll_until
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.send_plan import queue_for_key
from holdfast.client.messages.packing import Outgoing
from holdfast.client.options import ClientOptions
from holdfast.client.produce import sender as sender_module
from holdfast.client.produce.inner_batch_support import InnerBatchSupport
from holdfast.client.produce.sender import Parcel, Receipt, Sender
from holdfast.client.routes.route_table import TopicRoute
from holdfast.model.errors import RemoteProtocolError, SendFailed
from holdfast.model.message import SendStatus
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response

SEND = RequestCode.SEND_MESSAGE_V2
PARCEL = Parcel("t", Outgoing("ID", "UNIQ_KEY\x01ID\x02", b"body", 0, 0))
STORED = {"msgId": "AB", "queueId": "0", "queueOffset": "7", "transactionId": "TX"}


@asynccontextmanager
async def a_sender(retries: int = 2) -> AsyncIterator[tuple[ScriptedServer, Sender]]:
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.serve_topic("t")
        yield server, Sender(client, "p", retries=retries)


def busy_then_stored(times: int) -> Callable[[Command], Command]:
    left = iter(range(times))

    def answer(command: Command) -> Command:
        return response(command, 2, "busy") if next(left, None) is not None else response(command, fields=STORED)

    return answer


async def test_a_stored_message_has_a_receipt():
    """Where it is, and who said so."""
    async with a_sender() as (server, sender):
        server.on(SEND, **STORED)

        receipt = await sender.send(PARCEL, 5)

        result = receipt.result
        assert (result.message_id, result.queue, result.offset) == ("ID", MessageQueue("t", "broker-a", 0), 7)
        assert (result.offset_id, result.status) == ("AB", SendStatus.OK)
        assert (receipt.address, receipt.transaction_id) == (server.address, "TX")


@asynccontextmanager
async def a_patient_sender() -> AsyncIterator[tuple[ScriptedServer, Sender]]:
    """Provide a sender that gives up no name server for a long time."""
    async with ScriptedServer() as server, ClusterClient(ClientOptions(server.address, timeout_s=60)) as client:
        async with asyncio.timeout(10):
            server.serve_topic("t")
            yield server, Sender(client, "p")


@pytest.mark.parametrize("one_way", [False, True])
async def test_a_send_does_not_wait_for_name_servers_longer_than_for_anything_else(*, one_way: bool):
    """Where several hang they are asked one after the other, which may take any time."""
    async with a_patient_sender() as (server, sender):
        server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None

        with pytest.raises(SendFailed, match="no name server returned the route of 't' in time") as raised:
            await (sender.send_one_way if one_way else sender.send)(PARCEL, 0.1)

        assert not raised.value.maybe_stored


def note_times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets the time allowed for each attempt."""
    attempt, times_s = Sender._attempt, []

    async def timed(
        sender: Sender, parcel: Parcel, route: TopicRoute, queue: MessageQueue, timeout_s: float
    ) -> Receipt:
        times_s.append(timeout_s)
        return await attempt(sender, parcel, route, queue, timeout_s)

    monkeypatch.setattr(Sender, "_attempt", timed)
    return times_s


async def test_a_name_server_that_hangs_leaves_time_for_another_attempt(monkeypatch: pytest.MonkeyPatch):
    """By the route that is known."""
    times_s = note_times(monkeypatch)

    async with a_patient_sender() as (server, sender):
        server.answers[SEND] = busy_then_stored(0)
        await sender.send(PARCEL, 5)
        server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
        codes = iter([17, 0])
        server.answers[SEND] = lambda command: response(command, next(codes), "", fields=STORED)

        assert (await sender.send(PARCEL, 1)).result.status is SendStatus.OK
        assert times_s[-1] > 0.1


@pytest.mark.parametrize("status", [10, 11, 12])
async def test_stored_but_not_as_safely_is_a_success(status: int):
    """The result says so."""
    async with a_sender() as (server, sender):
        server.answers[SEND] = lambda command: response(command, status, fields=STORED)

        assert (await sender.send(PARCEL, 5)).result.status == status


async def test_the_broker_may_choose_the_queue():
    """The answer says which."""
    async with a_sender() as (server, sender):
        server.on(SEND, **(STORED | {"queueId": "3"}))

        assert (await sender.send(PARCEL, 5)).result.queue.queue_id == 3


async def test_a_busy_broker_is_tried_again():
    """Twice, unless told otherwise."""
    async with a_sender() as (server, sender):
        server.answers[SEND] = busy_then_stored(2)

        assert (await sender.send(PARCEL, 5)).result.offset == 7
        assert len(server.requests_of(SEND)) == 3


async def test_the_last_refusal_is_reported():
    """It was certainly not stored."""
    async with a_sender() as (server, sender):
        server.answers[SEND] = busy_then_stored(99)

        with pytest.raises(SendFailed, match=r"3 times.*not stored") as caught:
            await sender.send(PARCEL, 5)
        assert (caught.value.maybe_stored, caught.value.code) == (False, 2)


async def test_a_refusal_of_the_message_itself_is_final():
    """It would be refused everywhere."""
    async with a_sender() as (server, sender):
        server.refuse(SEND, 13, "illegal")

        with pytest.raises(SendFailed, match=r"once.*illegal"):
            await sender.send(PARCEL, 5)


async def test_a_lost_connection_may_have_stored_it():
    """Even if the last attempt certainly did not."""
    async with a_sender() as (server, sender):

        def answer(command: Command) -> Command | None:
            if len(server.requests_of(SEND)) > 0:
                return response(command, 13, "illegal")
            server.drop_connections()
            return None

        server.answers[SEND] = answer

        with pytest.raises(SendFailed, match="may have been stored") as caught:
            await sender.send(PARCEL, 5)
        assert caught.value.maybe_stored


async def test_silence_ends_with_the_time_allowed(monkeypatch: pytest.MonkeyPatch):
    """And may have stored it."""
    monkeypatch.setattr(sender_module, "ATTEMPT_TIMEOUT_S", 0.05)

    async with a_sender() as (server, sender):
        server.answers[SEND] = lambda _: None

        with pytest.raises(SendFailed, match="2 times") as caught:
            await sender.send(PARCEL, 30, retries=1)
        assert caught.value.maybe_stored
        with pytest.raises(SendFailed, match="once"):
            await sender.send(PARCEL, 0.01)


async def test_a_retry_goes_to_another_broker():
    """A keyed message stays with its queue."""
    async with ScriptedServer() as bad, ScriptedServer() as good, ClusterClient(bad.address) as client:
        bad.serve_topic("t", other_brokers={"broker-b": good.address})
        bad.refuse(SEND, 14, "not available")
        good.on(SEND, **STORED)
        sender = Sender(client, "p")

        for _ in range(4):
            assert (await sender.send(PARCEL, 5)).address == good.address
        keyed = Parcel("t", PARCEL.outgoing, queue=MessageQueue("t", "broker-a", 0))
        with pytest.raises(SendFailed):
            await sender.send(keyed, 5)


async def test_a_keyed_message_waits_for_its_broker():
    """It may go nowhere else, and nothing of it left: as long as there is time, it is tried again."""
    async with (
        ScriptedServer() as name_server,
        ScriptedServer() as broker,
        ClusterClient(name_server.address) as client,
    ):
        name_server.serve_topic("t", other_brokers={"broker-b": broker.address})
        queues = (await client.route("t")).publishable
        key = next(key for key in "abcd" if queue_for_key(key, queues).broker_name == "broker-b")
        port = int(broker.address.rpartition(":")[2])
        await broker.stop()
        sending = asyncio.create_task(Sender(client, "p").send(Parcel("t", PARCEL.outgoing, key), 30))
        await name_server.wait_for_requests(RequestCode.GET_ROUTEINFO_BY_TOPIC, 4)
        name_server.serve_topic("t")  # the name server has noticed; the key would have another queue now
        await name_server.wait_for_requests(RequestCode.GET_ROUTEINFO_BY_TOPIC, 6)
        assert not sending.done()

        broker.on(SEND, **STORED)
        await broker.listen(port)
        name_server.serve_topic("t", other_brokers={"broker-b": broker.address})

        assert (await sending).result.queue.broker_name == "broker-b"


async def test_a_keyed_message_does_not_wait_for_ever():
    """Its time ends."""
    async with a_sender() as (_server, sender):
        keyed = Parcel("t", PARCEL.outgoing, queue=MessageQueue("t", "broker-x", 0))

        with pytest.raises(SendFailed, match="broker-x") as caught:
            await sender.send(keyed, 0.3)
        assert not caught.value.maybe_stored
        with pytest.raises(SendFailed, match="once"):
            await sender.send(keyed, 30, retries=0)


async def test_a_stale_route_is_refreshed_before_the_retry():
    """The topic may have moved."""
    async with ScriptedServer() as old, ScriptedServer() as new, ClusterClient(old.address) as client:
        old.serve_topic("t")
        await client.route("t")
        old.refuse(SEND, 17, "no such topic")
        new.on(SEND, **STORED)
        new.address, old.address = old.address, new.address
        old.serve_topic("t")  # the same name, now at the new address
        new.address, old.address = old.address, new.address

        assert (await Sender(client, "p").send(PARCEL, 5)).address == new.address


async def test_a_one_way_send_waits_for_nothing():
    """It fails only if there is nobody to send it to."""
    async with a_sender() as (server, sender):
        await sender.send_one_way(PARCEL)
        (heard,) = await server.wait_for_requests(SEND)
        assert (heard.is_one_way, heard.body) == (True, b"body")

        with pytest.raises(SendFailed) as caught:
            await sender.send_one_way(Parcel("unknown", PARCEL.outgoing))
        assert not caught.value.maybe_stored


async def test_a_topic_nobody_may_write_to_is_no_route():
    """Though it is known."""
    async with a_sender() as (server, sender):
        server.serve_topic("closed", queues=0)

        with pytest.raises(SendFailed, match="no broker accepts messages"):
            await sender.send(Parcel("closed", PARCEL.outgoing), 5)


async def test_a_success_without_a_place_is_the_brokers_fault():
    """Nobody could find the message."""
    async with a_sender() as (server, sender):
        server.on(SEND, msgId="AB")

        with pytest.raises(RemoteProtocolError, match="did not return its queue and offset"):
            await sender.send(PARCEL, 5)


async def test_of_a_topic_that_was_forgotten_nothing_is_kept():
    """Programs that send to many topics once must not grow."""
    async with a_sender() as (server, sender):
        server.serve_topic("u")
        server.on(SEND, **STORED)
        await sender.send(PARCEL, 5)
        await sender.send(msgspec.structs.replace(PARCEL, topic="u"), 5)

        sender.forget(["t"])

        assert {topic for topic, _ in sender._templates} == {"u"}
        assert sender._round_robin._next.keys() == {"u"}


@pytest.mark.parametrize("one_way", [True, False])
async def test_a_send_is_a_use_of_its_topic(*, one_way: bool):
    """Otherwise it would be forgotten while it is busy."""
    async with a_sender() as (server, sender):
        server.on(SEND, **STORED)
        routes = sender._client.routes
        await sender.send(PARCEL, 5)
        routes.use("t", 0.0)

        await (sender.send_one_way(PARCEL) if one_way else sender.send(PARCEL, 5))

        used_s = routes._entries["t"].used_s
        assert used_s is not None
        assert used_s > 0


class _Whole(InnerBatchSupport):
    """Knows what it was told."""

    def __init__(self, answers: list[bool]) -> None:
        self._answers = answers

    async def is_supported(self, topic: str, address: str) -> bool:
        return self._answers.pop(0)

    def mark_unsupported(self, topic: str, address: str) -> None:
        assert self._answers == [False]


async def test_a_batch_that_must_stay_whole_goes_to_nobody_who_splits_it():
    """Looked at before each attempt: the next one may go to another broker, or to one that came back as another."""
    async with a_sender() as (server, sender):
        codes = iter([2, 0, 0])
        server.answers[SEND] = lambda command: response(command, next(codes), "", fields=STORED)
        parcel = Parcel("t", PARCEL.outgoing, is_inner_batch=True)
        sender._inner_batch_support = _Whole([True, False, True])

        with pytest.raises(SendFailed, match="does not keep batches of this topic whole") as raised:
            await sender.send(parcel, 5)
        assert raised.value.code == 13
        assert len(server.requests_of(SEND)) == 1
        await sender.send(parcel, 5)
        assert len(server.requests_of(SEND)) == 2
        sender._inner_batch_support = None
        with pytest.raises(SendFailed, match="does not keep batches of this topic whole"):
            await sender.send(parcel, 5)


async def test_a_refused_whole_batch_and_its_other_form_share_the_time_of_one_attempt(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a send could take twice its timeout."""
    times_s = note_times(monkeypatch)
    now_s = [1000.0]
    monkeypatch.setattr(sender_module, "monotonic", lambda: now_s[0])

    async with a_sender() as (server, sender):

        def refuse_late(command: Command) -> Command:
            now_s[0] += 2
            return response(command, 13, "not here") if len(times_s) == 1 else response(command, fields=STORED)

        server.answers[SEND] = refuse_late
        sender._inner_batch_support = _Whole([True, False])

        await sender.send(Parcel("t", PARCEL.outgoing, encode_inner=lambda: PARCEL.outgoing), 3)

        assert times_s == [3, 1]


async def test_a_connection_that_ends_while_its_broker_is_asked_carries_nothing():
    """The message is known not to be stored, and nobody waits for an answer."""
    async with a_sender(retries=0) as (server, sender):

        class Leaving(_Whole):
            async def is_supported(self, topic: str, address: str) -> bool:
                server.drop_connections()
                await poll_until(lambda: sender._client.find_connection(address) is None)
                return await super().is_supported(topic, address)

        sender._inner_batch_support = Leaving([True])

        with pytest.raises(SendFailed, match="was not sent") as raised:
            await sender.send(Parcel("t", PARCEL.outgoing, is_inner_batch=True), 5)

        assert not raised.value.maybe_stored
        assert server.requests_of(SEND) == []


async def test_a_retry_avoids_the_broker_that_failed(monkeypatch: pytest.MonkeyPatch):
    """Unless its key or its queue binds the message to that broker."""
    choose, avoided = Sender.choose, []

    def note(sender: Sender, parcel: Parcel, route: TopicRoute, avoid_broker: str | None) -> MessageQueue:
        avoided.append(avoid_broker)
        return choose(sender, parcel, route, avoid_broker)

    monkeypatch.setattr(Sender, "choose", note)
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.serve_topic("t", other_brokers={"broker-b": server.address})
        for key in (None, "k"):
            codes = iter([14, 0])
            server.answers[SEND] = lambda command, codes=codes: response(command, next(codes), "", fields=STORED)
            await Sender(client, "p").send(Parcel("t", PARCEL.outgoing, key), 5)

    first, retry, *keyed = avoided
    assert first is None
    assert retry in {"broker-a", "broker-b"}
    assert set(keyed) == {None}
