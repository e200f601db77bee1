"""RIP-26, "new client + old broker": the client finds out whether batches may stay whole, and falls back."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.support.batch_bytes import BATCH
from tests.support.scripted_server import ScriptedServer

from holdfast import Batching, Codec, ConfigError, Message, Producer
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.records.batch import split_items

COUNT = 20
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def config(**attributes: str) -> bytes:
    """Return what a broker says of its topic T."""
    said = {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": attributes}
    return msgspec.json.encode(said)


def old_broker(server: ScriptedServer) -> None:
    """Know nothing of it: an answer to heartbeats without a word, as every Java broker gives it."""
    server.on(RequestCode.GET_TOPIC_CONFIG, body=config(**{"queue.type": "BatchCQ"}))


def topic_by_message(server: ScriptedServer) -> None:
    """Take batches, but not in this topic."""
    server.on(RequestCode.HEART_BEAT, capabilities="innerBatch")
    server.on(RequestCode.GET_TOPIC_CONFIG, body=config())


def topic_unknown(server: ScriptedServer) -> None:
    """Take batches, and say nothing of topics."""
    server.on(RequestCode.HEART_BEAT, capabilities="innerBatch")
    server.refuse(RequestCode.GET_TOPIC_CONFIG, 1)


def refusing(server: ScriptedServer) -> None:
    """Say that batches may come, and refuse them: as a broker whose topic was made anew meanwhile."""
    server.on(RequestCode.HEART_BEAT, capabilities="somethingElse,innerBatch")
    server.on(RequestCode.GET_TOPIC_CONFIG, body=config(**{"queue.type": "BatchCQ"}))


def taking(server: ScriptedServer) -> None:
    """Take them."""
    refusing(server)
    server.answers[SENDS[0]] = server.answers[SENDS[1]] = stored


def stored(command: Command) -> Command:
    """Return what a broker says that stored a request at the beginning of its queue."""
    ids = ",".join(["7F00000100002A9F0000000000000000"] * (1 if is_whole(command) else COUNT))
    return response(command, fields={"msgId": ids, "queueId": "0", "queueOffset": "0"})


def is_whole(command: Command) -> bool:
    """Say whether a request wants to stay one record."""
    return int(command.fields["f"]) & BATCH != 0


@pytest.mark.parametrize("way", ["send_nowait", "send_many"])
@pytest.mark.parametrize("kind", [old_broker, topic_by_message, topic_unknown, refusing, taking])
async def test_a_new_client_sends_what_its_broker_takes(kind: Callable[[ScriptedServer], None], way: str):
    """Whole where that is possible; else a batch that every broker splits, not compressed, and as many results."""
    async with ScriptedServer() as server:
        server.serve_topic("T")
        for code in SENDS:
            server.answers[code] = lambda command: response(command, 13, "no") if is_whole(command) else stored(command)
        kind(server)
        messages = [Message("T", b"%d" % number + bytes(99)) for number in range(COUNT)]
        async with Producer(server.namesrv, batching=Batching(codec=Codec.LZ4), compress_over=None) as producer:
            if way == "send_many":
                results = await producer.send_many(messages)
            else:
                futures = [producer.send_nowait(message) for message in messages]
                await producer.flush()
                results = [future.result() for future in futures]

        assert [result.offset for result in results] == list(range(COUNT))
        assert len({result.message_id for result in results}) == COUNT
        sent = [command for code in SENDS for command in server.requests_of(code)]
        last = sent[-1]
        assert is_whole(last) == (kind is taking)
        assert len(sent) == (2 if kind is refusing else 1)
        if not is_whole(last):
            assert last.code == RequestCode.SEND_BATCH_MESSAGE
            bodies = [bytes(body) for _, body, _ in split_items(last.body)]
            assert bodies == [message.body for message in messages]


def test_a_batch_that_no_request_can_hold_is_refused_when_the_producer_is_made():
    """A broker would hang up on it, and on everything else on its way there."""
    with pytest.raises(ConfigError, match="no broker accepts larger ones"):
        Producer("127.0.0.1:9876", batch_bytes_max=16 << 20)
