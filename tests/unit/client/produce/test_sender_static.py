"""Carrying packed messages to the leaders of logical queues, also while those change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.support.deliveries import poll_until, run_ready_tasks
from tests.support.scripted_server import ScriptedServer
from tests.support.static_topics import a_record, logical_queue, serve_static

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.send_plan import queue_for_key
from holdfast.client.messages.packing import Outgoing
from holdfast.client.produce import sender as sender_module
from holdfast.client.produce.sender import Parcel, Sender
from holdfast.model.errors import SendFailed
from holdfast.model.mapping import TopicMapping
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.frames.host import pack_host

SEND = RequestCode.SEND_MESSAGE_V2
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
PARCEL = Parcel("t", Outgoing("ID", "UNIQ_KEY\x01ID\x02", b"body", 0, 0))
A_LEADS = a_record("a", {0: 1, 1: 1}, total=2)
B_LEADS = a_record("b", {0: 2, 1: 2}, epoch=2, total=2)
B_LEADS_1 = a_record("b", {1: 1}, total=2)


def stored(command: Command) -> Command:
    """Answer as a leader: in logical numbers."""
    fields = {"msgId": "AB", "queueId": command.fields["e"], "queueOffset": "7"}
    return response(command, fields=fields)


class Cluster:
    """Name servers and the brokers `a` and `b`."""

    def __init__(self, name_servers: list[ScriptedServer], a: ScriptedServer, b: ScriptedServer) -> None:
        self.name_servers = name_servers
        self.a, self.b = a, b
        self.addresses = {"a": a.address, "b": b.address}
        a.answers[SEND] = b.answers[SEND] = stored

    def serve(self, *records: TopicMapping, on: ScriptedServer | None = None) -> None:
        """Let the name servers, or one of them, say what brokers registered."""
        for name_server in self.name_servers if on is None else [on]:
            serve_static(name_server, *records, addresses=self.addresses)


@asynccontextmanager
async def a_cluster(name_servers: int = 1, *, retries: int = 2) -> AsyncIterator[tuple[Cluster, Sender]]:
    async with asyncio.timeout(30), AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedServer()) for _ in range(name_servers + 2)]
        cluster = Cluster(servers[2:], servers[0], servers[1])
        namesrv = ";".join(server.address for server in cluster.name_servers)
        client = await stack.enter_async_context(ClusterClient(namesrv))
        yield cluster, Sender(client, "p", retries=retries)


def to(number: int) -> Parcel:
    return Parcel("t", PARCEL.outgoing, queue=logical_queue(number))


async def test_a_send_goes_to_the_leader_with_the_logical_queue():
    """The header names the real broker; the result names the logical queue."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(a_record("a", {0: 1}, total=2), B_LEADS_1)

        receipt = await sender.send(to(1), 5)

        (heard,) = cluster.b.requests_of(SEND)
        assert (heard.fields["e"], heard.fields["n"]) == ("1", "b")
        assert (receipt.result.queue, receipt.result.offset, receipt.address) == (
            logical_queue(1),
            7,
            cluster.b.address,
        )
        assert cluster.a.requests_of(SEND) == []


async def test_keys_are_spread_over_all_queues_and_the_rest_over_those_that_can_be_reached():
    """A queue without a leader keeps its keys, which wait for it."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(a_record("a", {0: 1, 2: 1}, total=4))
        queues = [logical_queue(number) for number in range(4)]
        for key in ("k0", "k1", "k2", "k3", "k4", "k5"):
            route = await sender._client.publish_route("t")
            assert sender.choose(Parcel("t", PARCEL.outgoing, key), route, None) == queue_for_key(key, queues)

        for _ in range(4):
            assert (await sender.send(PARCEL, 5)).result.queue in {logical_queue(0), logical_queue(2)}
        with pytest.raises(SendFailed, match="logical queue 1 of 't' has no leader") as caught:
            await sender.send(to(1), 0.2)
        assert not caught.value.maybe_stored


async def test_a_queue_that_has_moved_is_found_at_once():
    """A broker that leads it no more says so; the caller sees nothing of it, even without retries."""
    async with a_cluster(retries=0) as (cluster, sender):
        cluster.serve(A_LEADS)
        await sender.send(to(0), 5)
        cluster.a.refuse(SEND, 501, "moved")
        cluster.serve(A_LEADS, B_LEADS)

        receipt = await sender.send(to(0), 5)

        assert (receipt.result.queue, receipt.address) == (logical_queue(0), cluster.b.address)


async def test_an_answer_that_another_broker_gave_lets_the_next_send_go_there():
    """An old leader passes sends on: the id in the answer names who stored the message, and who leads is looked up."""
    async with a_cluster(retries=0) as (cluster, sender):
        cluster.serve(A_LEADS)
        await sender.send(to(0), 5)
        host = pack_host(cluster.b.address).hex().upper()
        fields = {"msgId": host + "0" * 16, "queueId": "0", "queueOffset": "8"}
        cluster.a.answers[SEND] = lambda command: response(command, fields=fields)
        cluster.serve(A_LEADS, B_LEADS)
        sender._refreshed_s.clear()

        assert (await sender.send(to(0), 5)).address == cluster.a.address
        await poll_until(lambda: sender._client.routes.find("t").broker_of(logical_queue(0)) == "b")

        assert (await sender.send(to(0), 5)).address == cluster.b.address


async def test_a_moved_queue_is_asked_for_until_somebody_leads_it():
    """Sealed here and not open there yet: that is short, and costs no attempt."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        cluster.a.refuse(SEND, 501, "moved")
        sending = asyncio.ensure_future(sender.send(to(0), 30))
        await cluster.a.wait_for_requests(SEND, 4)
        cluster.serve(A_LEADS, B_LEADS)

        assert (await sending).address == cluster.b.address


async def test_a_moved_queue_that_nobody_leads_ends_with_the_time_allowed():
    """It was certainly not stored, and was tried as often as the caller is told."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        cluster.a.refuse(SEND, 501, "moved")

        with pytest.raises(SendFailed, match=r"tried once.*moved") as caught:
            await sender.send(to(0), 0.3)
        assert (caught.value.maybe_stored, caught.value.code) == (False, 501)


async def test_all_name_servers_are_asked_for_the_new_leader():
    """The one in use may be the last to know, and another may be away."""
    async with a_cluster(3) as (cluster, sender):
        cluster.serve(A_LEADS)
        await sender.send(to(0), 5)
        stale = sender._client._name_servers.current
        fresh, away = (server for server in cluster.name_servers if server.address != stale)
        await away.stop()
        cluster.a.refuse(SEND, 501, "moved")
        cluster.serve(A_LEADS, B_LEADS, on=fresh)

        assert (await sender.send(to(0), 5)).address == cluster.b.address
        assert sender._client._name_servers.current == stale
        await away.listen(0)


async def test_a_queue_changes_its_broker_only_with_nothing_in_flight():
    """What is on its way through the old leader must not be overtaken."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        held: list[Command] = []
        cluster.a.answers[SEND] = held.append  # type: ignore[assignment]
        first = asyncio.ensure_future(sender.send(to(0), 30))
        other = asyncio.ensure_future(sender.send(to(1), 30))
        await cluster.a.wait_for_requests(SEND, 2)
        cluster.serve(A_LEADS, a_record("b", {0: 2}, epoch=2, total=2))
        await sender._client.refresh_leaders("t")
        second = asyncio.ensure_future(sender.send(to(0), 30))
        await run_ready_tasks()
        assert cluster.b.requests_of(SEND) == []

        for command in held:
            cluster.a.push(stored(command))

        assert (await first).address == cluster.a.address
        assert (await second).address == cluster.b.address
        assert (await other).address == cluster.a.address


async def test_waiting_for_what_is_in_flight_ends_with_the_time_allowed():
    """Nothing was sent then."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        cluster.a.answers[SEND] = lambda _: None
        first = asyncio.ensure_future(sender.send(to(0), 30))
        await cluster.a.wait_for_requests(SEND)
        cluster.serve(A_LEADS, B_LEADS)
        await sender._client.refresh_leaders("t")

        with pytest.raises(SendFailed, match="old leader") as caught:
            await sender.send(to(0), 0.1)
        assert not caught.value.maybe_stored
        first.cancel()


@pytest.mark.parametrize("parcel", [PARCEL, to(0)], ids=["any queue", "one queue"])
async def test_a_leader_that_is_being_restarted_is_waited_for(parcel: Parcel):
    """Refused and closed connections cost no attempt, keyed or not, while the only leader is away."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        await sender.send(parcel, 5)
        port = int(cluster.a.address.rpartition(":")[2])

        def crash(_: Command) -> None:
            cluster.a.drop_connections()

        cluster.a.answers[SEND] = crash  # type: ignore[assignment]
        sending = asyncio.ensure_future(sender.send(parcel, 30))
        await cluster.a.wait_for_requests(SEND, 2)
        await cluster.a.stop()
        await cluster.name_servers[0].wait_for_requests(ROUTE, 6)
        assert not sending.done()
        cluster.a.answers[SEND] = stored
        await cluster.a.listen(port)

        assert (await sending).address == cluster.a.address


async def test_what_may_go_anywhere_goes_to_another_leader():
    """If one is up."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(a_record("a", {0: 1}, total=2), B_LEADS_1)
        cluster.a.refuse(SEND, 14, "not available")

        for _ in range(4):
            assert (await sender.send(PARCEL, 5)).address == cluster.b.address


async def test_silence_still_costs_attempts(monkeypatch: pytest.MonkeyPatch):
    """Each may have stored the message once more."""
    monkeypatch.setattr(sender_module, "ATTEMPT_TIMEOUT_S", 0.05)

    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        cluster.a.answers[SEND] = lambda _: None

        with pytest.raises(SendFailed, match="3 times") as caught:
            await sender.send(to(0), 30)
        assert caught.value.maybe_stored


async def test_a_topic_that_is_being_made_is_waited_for():
    """The name server knows it, but not yet the whole of it."""
    async with a_cluster() as (cluster, sender):
        (name_server,) = cluster.name_servers
        name_server.refuse(ROUTE, 2, "not all brokers have registered")
        sending = asyncio.ensure_future(sender.send(to(0), 30))
        await name_server.wait_for_requests(ROUTE, 5)
        cluster.serve(A_LEADS)

        assert (await sending).address == cluster.a.address


async def test_a_topic_that_was_made_anew_is_found():
    """Its generations begin again, and all name servers agree on it."""
    async with a_cluster(2) as (cluster, sender):
        cluster.serve(a_record("a", {0: 7}, epoch=9, total=1))
        await sender.send(PARCEL, 5)
        cluster.a.refuse(SEND, 17, "no such topic")
        cluster.serve(a_record("b", {0: 0}, epoch=20, total=1))

        assert (await sender.send(PARCEL, 5)).address == cluster.b.address


async def test_a_one_way_send_goes_to_the_leader():
    """Like every other."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS, B_LEADS)

        await sender.send_one_way(to(1))

        (heard,) = await cluster.b.wait_for_requests(SEND)
        assert (heard.is_one_way, heard.fields["e"]) == (True, "1")


def relayed(leader: str, generation: int) -> Callable[[Command], Command]:
    """Answer as a broker that passed the send on to *leader*."""

    def answer(command: Command) -> Command:
        told = stored(command)
        told.fields |= {"hf.leader": leader, "hf.generation": str(generation)}
        return told

    return answer


async def test_an_answer_that_names_the_new_leader_is_followed_at_once():
    """No name server is asked: the broker that passed the send on knows best."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS, a_record("b", {}, total=2))
        cluster.a.answers[SEND] = relayed("b", 2)
        own_id = f"{pack_host(cluster.b.address).hex().upper()}{0:016X}"
        cluster.b.on(SEND, msgId=own_id, queueId="0", queueOffset="8")

        await sender.send(to(0), 5)
        asked = len(cluster.name_servers[0].requests_of(ROUTE))
        await sender.send(to(0), 5)
        await sender.send(to(1), 5)

        assert [heard.fields["e"] for heard in cluster.a.requests_of(SEND)] == ["0", "1"]
        assert [heard.fields["e"] for heard in cluster.b.requests_of(SEND)] == ["0"]
        assert len(cluster.name_servers[0].requests_of(ROUTE)) == asked
        assert {heard.fields["hf.mapping"] for heard in cluster.a.requests_of(SEND)} == {"1"}


async def test_the_new_leader_gets_nothing_while_sends_are_under_way_through_the_old_one():
    """What is sent later must not overtake: the lane changes its broker when it is empty."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS, a_record("b", {}, total=2))
        held: list[Command] = []
        cluster.a.answers[SEND] = held.append  # type: ignore[assignment]
        first = asyncio.ensure_future(sender.send(to(0), 30))
        second = asyncio.ensure_future(sender.send(to(0), 30))
        await cluster.a.wait_for_requests(SEND, 2)
        cluster.a.push(relayed("b", 2)(held[0]))
        await first
        third = asyncio.ensure_future(sender.send(to(0), 30))
        await run_ready_tasks()
        assert cluster.b.requests_of(SEND) == []

        cluster.a.push(relayed("b", 2)(held[1]))

        assert (await second).address == cluster.a.address
        assert (await third).address == cluster.b.address


async def test_word_of_an_older_leader_or_of_a_stranger_changes_nothing():
    """Answers may be late; a broker that no route tells of cannot be dialled."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(a_record("a", {0: 3, 1: 3}, total=2), a_record("b", {}, total=2))
        cluster.a.answers[SEND] = relayed("b", 2)
        await sender.send(to(0), 5)
        cluster.a.answers[SEND] = relayed("stranger", 4)
        await sender.send(to(0), 5)

        await sender.send(to(0), 5)

        assert len(cluster.a.requests_of(SEND)) == 3


def no_leader(command: Command) -> Command:
    """Refuse as a broker that knows that the mapping of a queue was deleted."""
    return response(command, 501, "logical queue 1 of t has no leader: set it", fields={"hf.leader": "__syslo__none__"})


KEY_OF_1 = next(key for key in "abcdef" if queue_for_key(key, [logical_queue(0), logical_queue(1)]) == logical_queue(1))


@pytest.mark.parametrize("parcel", [to(1), Parcel("t", PARCEL.outgoing, key=KEY_OF_1)])
async def test_a_queue_without_a_leader_fails_with_the_words_of_the_broker(parcel: Parcel):
    """At once, as the broker has waited already; and nothing was stored. The name servers may not have heard of it."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        cluster.a.answers[SEND] = no_leader

        with pytest.raises(SendFailed, match=r"has no leader: set it; the message was not stored") as caught:
            await sender.send(parcel, 25)

        assert caught.value.code == 501
        assert len(cluster.a.requests_of(SEND)) == 1


async def test_a_queue_without_a_leader_gets_the_message_if_a_name_server_knows_a_leader():
    """It was set again meanwhile."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        await sender._client.publish_route("t")
        cluster.serve(A_LEADS, a_record("b", {1: 2}, epoch=2, total=2))
        cluster.a.answers[SEND] = no_leader

        receipt = await sender.send(to(1), 25)

        assert receipt.address == cluster.b.address


async def test_messages_for_any_queue_avoid_one_without_a_leader():
    """One of them finds out, for all."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        cluster.a.answers[SEND] = lambda command: (no_leader if command.fields["e"] == "1" else stored)(command)

        for _ in range(8):
            assert (await sender.send(PARCEL, 25)).result.queue == logical_queue(0)

        assert [command.fields["e"] for command in cluster.a.requests_of(SEND)].count("1") == 1


async def test_a_refusal_that_came_late_is_not_followed_by_an_attempt_that_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch,
):
    """A refused message was not stored; one without an answer may have been."""
    clock_s = [100.0]
    monkeypatch.setattr(sender_module, "monotonic", lambda: clock_s[0])

    def refuse_late(command: Command) -> Command:
        clock_s[0] += 2.6
        return response(command, 501, "the queue is moving")

    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        cluster.a.answers[SEND] = refuse_late

        with pytest.raises(SendFailed, match="the queue is moving; the message was not stored"):
            await sender.send(to(1), 10)

        assert len(cluster.a.requests_of(SEND)) == 3, "a fourth would have 2.2 s"


async def test_a_queue_that_the_topic_does_not_have_is_refused_at_once():
    """After one look at the route, and with the number of queues that there are. One-way sends, too."""
    async with a_cluster() as (cluster, sender):
        cluster.serve(A_LEADS)
        await sender.send(to(0), 5)
        asked = len(cluster.name_servers[0].requests_of(ROUTE))

        with pytest.raises(SendFailed, match="'t' has no queue 99: it has 2, numbered from 0 to 1") as caught:
            await sender.send(to(99), 30)
        assert not caught.value.maybe_stored
        assert len(cluster.name_servers[0].requests_of(ROUTE)) == asked + 1
        with pytest.raises(SendFailed, match="has no queue 99"):
            await sender.send_one_way(to(99))

        elsewhere = Parcel("t", PARCEL.outgoing, queue=MessageQueue("t", "__logic__east", 0))
        with pytest.raises(SendFailed, match="no queues of '__logic__east'; it has those of __logic__global"):
            await sender.send(elsewhere, 30)


async def test_a_queue_by_which_the_topic_has_grown_is_found():
    """The caller may know of it before the producer does."""
    async with a_cluster(retries=0) as (cluster, sender):
        cluster.serve(A_LEADS)
        await sender.send(to(0), 5)
        cluster.serve(a_record("a", {0: 1, 1: 1, 2: 1}, epoch=2, total=3))

        assert (await sender.send(to(2), 5)).result.queue == logical_queue(2)


async def test_both_names_of_the_broker_of_a_logical_queue_are_accepted():
    """The result has the name that the wire has."""
    async with a_cluster(retries=0) as (cluster, sender):
        cluster.serve(A_LEADS)
        shown = Parcel("t", PARCEL.outgoing, queue=MessageQueue("t", "__logic__global", 1))

        assert (await sender.send(shown, 5)).result.queue == logical_queue(1)
        assert len(cluster.name_servers[0].requests_of(ROUTE)) == 1
        with pytest.raises(SendFailed, match="has no queue 99"):
            await sender.send(Parcel("t", PARCEL.outgoing, queue=MessageQueue("t", "__logic__global", 99)), 5)
