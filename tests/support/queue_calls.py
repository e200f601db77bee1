"""The calls of a consumer group to one scripted broker with two queues of the topic `t`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClientCallbacks, ClusterClient
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command


@asynccontextmanager
async def queue_calls() -> AsyncIterator[tuple[ScriptedServer, QueueRpc]]:
    """Provide the broker, and the calls of the group `g`."""
    heartbeat = Command(code=RequestCode.HEART_BEAT, body=b"me")
    async with (
        ScriptedServer() as server,
        ClusterClient(server.address, ClientCallbacks(heartbeat=lambda: heartbeat)) as client,
    ):
        server.serve_topic("t", queues=2)
        await client.route("t")
        yield server, QueueRpc(client, "g")
