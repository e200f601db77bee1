"""Who watches is told of changes, who does not is not: the name server on real sockets, frame by frame."""

import pytest
from tests.support.cluster.name_server_machine import a_topic
from tests.support.static_reports import a_report, a_segment
from tests.support.watchers import Peer, running_name_server, topics_of

from holdfast.wire.cluster.route import decode_route
from holdfast.wire.cluster.watch import ROUTES_CHANGED, TEXT_MAX, TOPICS_FIELD, UNWATCH, WATCHING_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.frame import BINARY, JSON


async def test_a_notice_is_a_oneway_request_that_names_topics_and_nothing_else():
    """328, oneway, `topics`, no body: what changed is asked for by whoever wants to know."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders", "bills")

        await broker.register(a_topic("orders", 8))

        assert await client.next_notice() == {"orders"}
        (notice,) = client.notices
        assert notice.code == ROUTES_CHANGED
        assert notice.is_one_way
        assert not notice.is_response
        assert notice.fields == {TOPICS_FIELD: "orders"}
        assert notice.body == b""
        route = decode_route((await client.request_route("orders")).body)
        assert [queue.write_queues for queue in route.queue_datas] == [8]


@pytest.mark.parametrize("serializer", [JSON, BINARY])
async def test_the_answer_says_that_the_topic_is_watched(serializer: int):
    """`watching=true` beside the route; in both encodings, and the route is the same as without."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders")
        plain = await client.request_route("orders")
        fields = {"topic": "orders", "watch": "true"}

        answer = await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, serializer=serializer)

        assert answer.code == 0
        assert answer.fields == {WATCHING_FIELD: "true"}
        assert decode_route(answer.body) == decode_route(plain.body)
        await broker.register(a_topic("orders", 8))
        assert await client.next_notice() == {"orders"}


@pytest.mark.parametrize("fields", [{}, {"watch": "false"}, {"scope": "global"}])
async def test_who_does_not_ask_for_it_is_never_told(fields: dict[str, str]):
    """A client that knows nothing of watching gets the answer it always got, and no request it does not know."""
    async with running_name_server() as server, server.peers(3) as (broker, old, new):
        await broker.register("orders")
        answer = await old.request_route("orders", **fields)
        await new.watch("orders")

        await broker.register(a_topic("orders", 8))
        await new.next_notice()
        await broker.register(a_topic("orders", 9))
        await new.next_notice()

        assert answer.code == 0
        assert WATCHING_FIELD not in answer.fields
        assert await old.has_no_notice()
        assert old.notices == []


async def test_a_query_without_watch_does_not_end_a_watch():
    """Nor does it begin one: only 329 and the end of the connection take back what was asked for."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders")
        await client.request_route("orders")
        await client.request_route("bills")

        await broker.register(a_topic("orders", 8), a_topic("bills", 8))

        assert await client.next_notice() == {"orders"}


async def test_a_missing_topic_can_be_watched_and_its_creation_is_told():
    """The answer says both: that there is no such topic, and that it is watched."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("bills", "fence")

        answer = await client.watch("orders")

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "orders" in (answer.remark or "")
        await broker.register("orders")
        assert await client.next_notice() == {"orders"}
        assert (await client.request_route("orders")).code == 0


async def test_a_deleted_topic_stays_watched():
    """It may be created again."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders")
        await broker.call_successfully(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders")
        assert await client.next_notice() == {"orders"}

        await broker.register("orders")

        assert await client.next_notice() == {"orders"}


async def test_a_busy_topic_can_be_watched():
    """A static topic that is known in part gets "busy" and is watched; the rest of it is told."""
    half = a_report("a", {0: [a_segment("b")]}, total=1)
    whole = a_report("b", {0: [a_segment("b")]}, total=1)
    async with running_name_server() as server, server.peers(3) as (first, second, client):
        await first.register(a_topic("orders"), mappings={"orders": half})

        answer = await client.watch("orders")

        assert answer.code == ResponseCode.SYSTEM_BUSY
        await second.register(a_topic("orders"), name="b", address="10.0.0.2:10911", mappings={"orders": whole})
        assert await client.next_notice() == {"orders"}
        assert (await client.request_route("orders", **{"hf.mapping": "1"})).code == 0


async def test_one_frame_names_everything_that_changed():
    """Changes within a second are one notice for a client, and a topic that changed often is named once."""
    topics = [f"topic-{number}" for number in range(20)]
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register(*topics)
        await client.watch(*topics, *topics)

        await broker.register(*(a_topic(topic, 8) for topic in topics))
        assert await client.next_notice() == set(topics)

        for queues in (9, 10, 11):
            await broker.register(*(a_topic(topic, queues) for topic in topics))
        await broker.register(a_topic("topic-7", 99))
        await client.notices_until("topic-7")

        named = [topics_of(notice) for notice in client.notices]
        assert sorted(named[0]) == sorted(topics)
        assert all(len(names) == len(set(names)) for names in named)


async def test_everybody_who_watches_is_told_what_he_watches():
    """And of nothing else."""
    async with running_name_server() as server, server.peers(4) as (broker, both, one, other):
        await broker.register("orders", "bills", "rest")
        await both.watch("orders", "bills")
        await one.watch("orders")
        await other.watch("bills", "rest")

        await broker.register(a_topic("orders", 8), a_topic("bills", 8))

        assert await both.next_notice() == {"orders", "bills"}
        assert await one.next_notice() == {"orders"}
        assert await other.next_notice() == {"bills"}


async def test_more_than_64_kib_of_names_go_in_several_frames():
    """Each is small enough for every reader; together they name each topic once."""
    topics = [f"{number:03}-{'t' * 120}" for number in range(1500)]
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register(*topics)
        await client.watch(*topics)

        await broker.register(*(a_topic(topic, 8) for topic in topics))

        named: set[str] = set()
        while len(named) < len(topics):
            named |= await client.next_notice()
        assert named == set(topics)
        texts = [notice.fields[TOPICS_FIELD] for notice in client.notices]
        assert len(texts) == 3
        assert all(len(text.encode()) <= TEXT_MAX for text in texts)
        assert sum(len(topics_of(notice)) for notice in client.notices) == len(topics)


async def check_silence(broker: Peer, client: Peer) -> None:
    """Let the watched topic `fence` change and see that this is all the client is told of, in its next notice."""
    await broker.register(a_topic("fence", 99))
    assert await client.next_notice() == {"fence"}


@pytest.mark.parametrize("is_one_way", [False, True])
async def test_329_ends_a_watch(*, is_one_way: bool):
    """Of the topics it names, at once; the others stay, and what was ended can be begun again."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills", "rest", "fence")
        await client.watch("orders", "bills", "rest", "fence")

        if is_one_way:
            client.send_one_way(UNWATCH, {TOPICS_FIELD: "orders;bills"})
            await client.request_route("orders")
        else:
            answer = await client.unwatch("orders", "bills")
            assert (answer.code, answer.body) == (0, b"")

        await broker.register(a_topic("orders", 8), a_topic("bills", 8), a_topic("rest", 8))
        assert await client.next_notice() == {"rest"}
        await check_silence(broker, client)
        await client.watch("orders")
        await broker.register(a_topic("orders", 9), a_topic("bills", 9))
        assert await client.next_notice() == {"orders"}


async def test_329_of_one_client_leaves_the_others_alone():
    """A watch belongs to a connection."""
    async with running_name_server() as server, server.peers(3) as (broker, client, other):
        await broker.register("orders")
        await client.watch("orders")
        await other.watch("orders")

        await other.unwatch("orders")

        await broker.register(a_topic("orders", 8))
        assert await client.next_notice() == {"orders"}
        assert await other.has_no_notice()


@pytest.mark.parametrize("fields", [{}, {TOPICS_FIELD: ""}, {TOPICS_FIELD: ";;"}, {TOPICS_FIELD: "unknown;other"}])
async def test_329_for_what_nobody_watches_is_answered_with_success(fields: dict[str, str]):
    """And has no effect."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders")
        await client.watch("orders")
        async with server.connect() as stranger:
            assert (await stranger.call(UNWATCH, fields)).code == 0

        assert (await client.call(UNWATCH, fields)).code == 0

        await broker.register(a_topic("orders", 8))
        assert await client.next_notice() == {"orders"}


async def test_a_client_that_left_does_not_disturb_the_others():
    """Its connection is closed while it is owed a notice; whoever comes after it starts from nothing."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "fence")
        await client.watch("orders", "fence")
        for queues in range(5, 10):
            async with server.connect() as passer:
                await passer.watch("orders", "fence")
                await broker.register(a_topic("orders", queues))

        async with server.connect() as newcomer:
            await client.notices_until("orders")
            await check_silence(broker, client)
            assert await newcomer.has_no_notice()


async def test_a_connection_watches_so_many_topics_and_no_more():
    """Beyond that the answer does not say `watching`, so that the client polls; 329 makes room."""
    async with running_name_server(watches_per_channel_max=2) as server, server.peers(2) as (broker, client):
        await broker.register("a", "b", "c")
        await client.watch("a", "b")

        refused = await client.request_route("c", watch="true")
        again = await client.request_route("a", watch="true")

        assert refused.code == 0
        assert WATCHING_FIELD not in refused.fields
        assert again.fields == {WATCHING_FIELD: "true"}
        await broker.register(a_topic("b", 8), a_topic("c", 8))
        assert await client.next_notice() == {"b"}
        await client.unwatch("a")
        await client.watch("c")
        await broker.register(a_topic("c", 9))
        assert await client.next_notice() == {"c"}


async def test_a_topic_that_changed_before_it_was_watched_is_not_told():
    """The answer to the query had it already."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "fence")
        await client.watch("fence")
        await broker.register(a_topic("orders", 8))

        await client.watch("orders")

        await check_silence(broker, client)


@pytest.mark.parametrize("topic", ["t" * 100_000, ""])
async def test_what_cannot_be_a_topic_is_not_watched(topic: str):
    """Nobody can create it; ten thousand of such names would fill the memory, and one a frame."""
    async with running_name_server() as server, server.connect() as client:
        answer = await client.request_route(topic, watch="true")

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert WATCHING_FIELD not in answer.fields
        assert (await client.push_state()).watches == 0


async def test_a_name_server_takes_no_notices():
    """328 goes to clients only."""
    async with running_name_server() as server, server.connect() as client:
        answer = await client.call(ROUTES_CHANGED, {TOPICS_FIELD: "orders"})
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
