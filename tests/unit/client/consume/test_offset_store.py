"""Where a consumer's offsets are kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.consume.committed_offsets import decode_offsets
from holdfast.client.consume.offset_store import OffsetStore
from holdfast.model.errors import BrokerRefused, ConfigError
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response

ONE, TWO = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


@asynccontextmanager
async def queue_calls() -> AsyncIterator[tuple[ScriptedServer, QueueRpc]]:
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.serve_topic("t", queues=2)
        server.on(RequestCode.GET_MIN_OFFSET, offset="3")
        await client.route("t")
        yield server, QueueRpc(client, "g")


async def test_a_group_keeps_its_offsets_at_the_broker():
    """Only what changed is told, until it is taken."""
    async with queue_calls() as (server, calls):
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, offset="5")
        server.on(COMMIT)
        keeper = OffsetStore(calls, "latest")
        assert await keeper.load(ONE) == 5
        assert await keeper.save()
        assert server.requests_of(COMMIT) == []

        keeper.offsets.record(ONE, 6)
        server.refuse(COMMIT, 2)
        assert not await keeper.save()
        server.on(COMMIT)
        assert await keeper.save()
        assert await keeper.save()

        assert [command.fields["commitOffset"] for command in server.requests_of(COMMIT)] == ["6", "6"]


async def test_a_broadcasting_consumer_keeps_its_offsets_in_a_file(tmp_path: Path):
    """And tells no broker; the next one with the same file goes on there."""
    file = tmp_path / "deep" / "offsets.json"

    async with queue_calls() as (server, calls):
        keeper = OffsetStore(calls, "earliest", file)
        assert await keeper.load(ONE) == 3
        keeper.offsets.record(ONE, 9)
        assert await keeper.save()

        following = OffsetStore(calls, "earliest", file)
        assert await following.load(ONE) == 9
        assert await following.load(TWO) == 3
        following.offsets.record(TWO, 4)
        assert await following.save()

        assert decode_offsets(file.read_bytes()) == {ONE: 9, TWO: 4}
        assert server.requests_of(COMMIT) == []


async def test_a_file_that_cannot_be_read_is_not_ignored(tmp_path: Path):
    """Beginning elsewhere would repeat or skip."""
    file = tmp_path / "offsets.json"
    file.write_bytes(b"nonsense")

    async with queue_calls() as (_server, calls):
        with pytest.raises(ConfigError, match=r"offsets\.json"):
            await OffsetStore(calls, "earliest", file).load(ONE)


async def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path):
    """The consumer goes on meanwhile."""
    file = tmp_path / "folder" / "offsets.json"
    (tmp_path / "folder").write_text("in the way")

    async with queue_calls() as (_server, calls):
        keeper = OffsetStore(calls, "earliest", file)
        keeper._saved = {}
        keeper.offsets.record(ONE, 9)
        assert not await keeper.save()

        (tmp_path / "folder").unlink()
        assert await keeper.save()
        assert decode_offsets(file.read_bytes()) == {ONE: 9}


async def test_a_broker_that_came_back_is_told_what_it_forgot():
    """Where it knows of more, that is returned; where it does not answer, it is told with the next save."""
    three = MessageQueue("t", "broker-a", 2)
    committed = {"0": "3", "1": "20"}

    async with queue_calls() as (server, calls):

        def query(command: Command) -> Command:
            offset = committed.get(command.fields["queueId"])
            return response(command, 1, "busy") if offset is None else response(command, fields={"offset": offset})

        server.answers[RequestCode.QUERY_CONSUMER_OFFSET] = query
        server.on(COMMIT)
        keeper = OffsetStore(calls, "latest")
        for queue in (ONE, TWO, three):
            keeper.offsets.begin(queue, 10)

        assert await keeper.recommit({ONE: 10, TWO: 10, three: 10}) == {TWO: 20}

        (told,) = server.requests_of(COMMIT)
        assert (told.fields["queueId"], told.fields["commitOffset"]) == ("0", "10")
        assert set(keeper.offsets.uncommitted()) == {TWO, three}


async def test_a_broker_that_forgot_nothing_is_told_nothing():
    """Only the connection broke."""
    async with queue_calls() as (server, calls):
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, offset="10")
        keeper = OffsetStore(calls, "latest")
        keeper.offsets.begin(ONE, 10)

        assert await keeper.recommit({ONE: 10}) == {}

        assert server.requests_of(COMMIT) == []
        assert keeper.offsets.uncommitted() == {}


async def test_there_is_nothing_to_repair_in_a_file(tmp_path: Path):
    """Brokers know nothing of it."""
    async with queue_calls() as (server, calls):
        assert await OffsetStore(calls, "latest", tmp_path / "offsets").recommit({ONE: 1}) == {}
        assert server.requests_of(RequestCode.QUERY_CONSUMER_OFFSET) == []


async def test_a_queue_that_could_not_be_saved_goes_on_where_it_was():
    """When it comes back soon."""
    async with queue_calls() as (server, calls):
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, offset="5")
        keeper = OffsetStore(calls, "latest")
        await keeper.load(ONE)
        keeper.offsets.record(ONE, 8)
        keeper.release(ONE)

        assert await keeper.load(ONE) == 8


async def test_where_a_group_begins_is_kept_though_nothing_was_consumed():
    """Beginning at the end again after a restart would skip what came meanwhile."""
    async with queue_calls() as (server, calls):
        server.refuse(RequestCode.QUERY_CONSUMER_OFFSET, 22)
        server.on(RequestCode.GET_MAX_OFFSET, offset="100")
        server.on(COMMIT)
        keeper = OffsetStore(calls, "latest")

        assert await keeper.load(ONE) == 100
        assert await keeper.save()

        assert [command.fields["commitOffset"] for command in server.requests_of(COMMIT)] == ["100"]


async def test_an_unanswered_question_is_no_place_to_begin():
    """Taking it for "never committed" would skip or repeat messages."""
    async with queue_calls() as (server, calls):
        server.refuse(RequestCode.QUERY_CONSUMER_OFFSET, 1)
        with pytest.raises(BrokerRefused):
            await OffsetStore(calls, "latest").load(ONE)
