"""Messages that are delivered only if something else succeeds."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
from tests.support.scripted_server import ScriptedServer
from tests.support.static_topics import a_record as a_static_record
from tests.support.static_topics import logical_queue, serve_static
from tests.unit.client.messages.test_unpacking import a_record

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.server_request import decode_request
from holdfast.client.produce.sender import Receipt
from holdfast.client.produce.transaction import Checker, ProducerTransactions, Transaction, TransactionOutcome
from holdfast.model.errors import BrokerRefused, LocalProtocolError
from holdfast.model.message import ReceivedMessage, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import format_message_id

END = RequestCode.END_TRANSACTION
HALF = a_record(properties=b"PGROUP\x01p\x02UNIQ_KEY\x01ID\x02")


class Scene:
    """A broker, and a desk that talks to it."""

    def __init__(self, server: ScriptedServer, client: ClusterClient, checker: Checker | None) -> None:
        self.server = server
        self.desk = ProducerTransactions(client, "p", checker=checker)
        result = SendResult("ID", MessageQueue("t", "broker-a", 0), 3, "0A00000200002A9F0000000000000400")
        self.receipt = Receipt(result, server.address, "TX")

    def transaction(self) -> Transaction:
        """Return a transaction whose half message is stored."""

        async def send() -> Receipt:
            self.desk.begin("ID")
            return self.receipt

        return Transaction(self.desk, send, "t")

    async def check(self, half: bytes = HALF) -> None:
        """Let the broker ask."""
        fields = {"tranStateTableOffset": "8", "commitLogOffset": "99", "transactionId": "TX", "bname": "broker-a"}
        request = decode_request(self.server.address, Command(code=39, fields=fields, body=half))
        assert request is not None
        await self.desk.check(request)

    async def told(self, count: int = 1) -> list[tuple[str, str]]:
        """Return what the broker was told, and whether that was an answer to its question."""
        commands = await self.server.wait_for_requests(END, count)
        return [(command.fields["commitOrRollback"], command.fields["fromTransactionCheck"]) for command in commands]


@asynccontextmanager
async def a_scene(checker: Checker | None = None) -> AsyncIterator[Scene]:
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.on(END)
        yield Scene(server, client, checker)


async def test_a_block_that_ends_commits():
    """By the places that the broker gave the half message."""
    async with a_scene() as scene:
        async with scene.transaction() as transaction:
            assert (transaction.message_id, transaction.queue.queue_id) == ("ID", 0)

        (command,) = scene.server.requests_of(END)
        assert command.fields == {
            "producerGroup": "p",
            "tranStateTableOffset": "3",
            "commitLogOffset": "1024",
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": "ID",
            "transactionId": "TX",
            "topic": "t",
            "bname": "broker-a",
        }


async def test_a_block_that_raises_rolls_back():
    """And lets the exception through, even if the broker does not confirm."""
    async with a_scene() as scene:
        with pytest.raises(ValueError, match="mine"):
            async with scene.transaction():
                raise ValueError("mine")
        assert await scene.told() == [("12", "false")]

        scene.server.refuse(END, 1)
        with pytest.raises(ValueError, match="mine"):
            async with scene.transaction():
                raise ValueError("mine")


async def test_a_decision_can_be_made_earlier_but_once():
    """The end of the block then does nothing."""
    async with a_scene() as scene:
        async with scene.transaction() as transaction:
            assert (await transaction.commit()).message_id == "ID"
            with pytest.raises(LocalProtocolError, match="decided"):
                await transaction.roll_back()
        async with scene.transaction() as transaction:
            await transaction.roll_back()

        assert await scene.told(2) == [("8", "false"), ("12", "false")]


async def test_a_commit_that_is_not_confirmed_is_reported():
    """The broker will ask, and be told the same."""
    async with a_scene() as scene:
        scene.server.refuse(END, 1)
        with pytest.raises(BrokerRefused):
            async with scene.transaction():
                pass

        await scene.check()
        assert await scene.told(2) == [("8", "false"), ("8", "true")]


async def test_a_question_about_a_block_that_runs_stays_open():
    """Its end will tell."""
    async with a_scene() as scene, scene.transaction():
        await scene.check()
        assert await scene.told() == [("0", "true")]


async def test_a_question_is_answered_with_its_own_places():
    """The broker asks about a new copy of the half message."""
    async with a_scene() as scene:
        await scene.check()

        (command,) = await scene.server.wait_for_requests(END)
        assert (command.fields["tranStateTableOffset"], command.fields["commitLogOffset"]) == ("8", "99")
        assert (command.fields["bname"], command.is_one_way) == ("broker-a", True)


async def test_another_groups_question_is_not_ours():
    """A connection may be shared."""
    async with a_scene() as scene:
        await scene.check(a_record(properties=b"PGROUP\x01other\x02"))
        await scene.check()
        assert await scene.told() == [("0", "true")]


def plain(message: ReceivedMessage) -> TransactionOutcome:
    return TransactionOutcome.COMMIT if message.message_id == "ID" else TransactionOutcome.ROLL_BACK


async def on_loop(message: ReceivedMessage) -> TransactionOutcome:
    return plain(message)


def wrapped(message: ReceivedMessage) -> Awaitable[TransactionOutcome]:
    return on_loop(message)


@pytest.mark.parametrize("checker", [plain, on_loop, wrapped])
async def test_what_nobody_remembers_the_checker_decides(checker: Checker):
    """It may be plain or async."""
    async with a_scene(checker) as scene:
        await scene.check()
        assert await scene.told() == [("8", "true")]


async def test_a_checker_that_fails_leaves_it_open():
    """The broker asks again later."""

    def broken(message: ReceivedMessage) -> TransactionOutcome:
        raise ValueError("no")

    async with a_scene(broken) as scene:
        await scene.check()
        assert await scene.told() == [("0", "true")]


async def test_old_decisions_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch):
    """Memory is bounded."""
    monkeypatch.setattr("holdfast.client.produce.transaction._REMEMBERED_MAX", 2)

    async with a_scene() as scene:
        for name in ("a", "b", "c"):
            scene.desk.begin(name)
        assert list(scene.desk._outcomes) == ["b", "c"]


async def test_a_transaction_that_has_not_begun_has_no_id():
    """The text says how to begin."""
    async with a_scene() as scene:
        with pytest.raises(LocalProtocolError, match="async with"):
            _ = scene.transaction().message_id


async def test_a_transaction_of_a_logical_queue_ends_where_its_half_message_is():
    """Whoever took it may have passed it on to the leader; the id in the answer says who has it."""
    async with ScriptedServer() as leader, ScriptedServer() as other, ClusterClient(leader.namesrv) as client:
        leader.on(END)
        other.on(END)
        addresses = {"a": leader.address, "b": other.address}
        serve_static(leader, a_static_record("a", {0: 1}), addresses=addresses)
        await client.route("t")
        for holder, name in ((leader, "a"), (None, "b")):
            host = pack_host(holder.address if holder is not None else "10.0.0.2:10911")
            result = SendResult("ID", logical_queue(0), 3, format_message_id(host, 1024))
            await ProducerTransactions(client, "p").end(
                Receipt(result, other.address, "TX"), "t", TransactionOutcome.COMMIT
            )

            (told,) = (holder or other).requests_of(END)
            assert (told.fields["bname"], told.fields["commitLogOffset"]) == (name, "1024")


async def test_a_decision_before_the_block_does_not_count():
    """It is refused, and the block still commits at its end."""
    async with a_scene() as scene:
        transaction = scene.transaction()
        with pytest.raises(LocalProtocolError, match="has not begun"):
            await transaction.commit()
        async with transaction:
            pass
        assert await scene.told() == [("8", "false")]


async def test_a_transaction_begins_once():
    """A second block would store a second half message, which no decision reaches."""
    async with a_scene() as scene:
        transaction = scene.transaction()
        async with transaction:
            with pytest.raises(LocalProtocolError, match="has begun already"):
                await transaction.__aenter__()
        with pytest.raises(LocalProtocolError, match="has begun already"):
            await transaction.__aenter__()
