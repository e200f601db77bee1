"""A process's session with a cluster, for the tasks that write.

It registers its group as a producer, because brokers name the features that they support in their answers to heartbeats
only. A process has one session for each cluster, unit and user. Sessions outlive tasks.
"""

from __future__ import annotations

import ipaddress
import os
import time
from typing import Final

from holdfast.bulk.cluster_connection import ClusterConnection, PerProcess
from holdfast.bulk.queue_directory import QueueDirectory
from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.client.cluster.cluster_client import ClientCallbacks, now_ms
from holdfast.client.cluster.heartbeat import heartbeat_command
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.options import ClientOptions
from holdfast.client.produce.inner_batch_support import InnerBatchSupport
from holdfast.client.produce.sender import Sender
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError
from holdfast.model.queue import MessageQueue
from holdfast.model.unique_id import UniqueIds

GROUP: Final = "holdfast-spark-sink"


class SinkSession:
    """Writes to queues of a cluster.

    Args:
        namesrv: `host:port;host:port`.
        patience_s: How long to retry a request.
        unit: The unit (a cluster name) to write to; None for all.
        group: The producer group.
        tls: Use TLS on every connection; None for plain connections.
        credentials: What proves our identity to servers; None for no access control.
    """

    def __init__(
        self,
        namesrv: str,
        patience_s: float,
        unit: str | None = None,
        group: str = GROUP,
        tls: ClientTls | None = None,
        credentials: CredentialsOptions | None = None,
    ) -> None:
        self._group = group
        callbacks = ClientCallbacks(
            heartbeat=lambda: heartbeat_command(self.connection.client.client_id, producer=group),
            broker_down=lambda address: self.inner_batch_support.forget_broker(address),  # noqa: PLW0108 - made later
        )
        options = ClientOptions(namesrv, unit=unit, tls=tls, credentials=credentials)
        self.connection = ClusterConnection(options, callbacks, patience_s)
        client = self.connection.client
        self.inner_batch_support = InnerBatchSupport(client)
        self._directory = QueueDirectory(self.connection, unit)
        self._rpc = QueueRpc(client, group)
        self._ids = UniqueIds(
            host=ipaddress.ip_address(client.local_address).packed,
            process=os.getpid(),
            salt=client.random.getrandbits(32),
            utc_offset_ms=time.localtime().tm_gmtoff * 1000,
        )

    def publishable(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a sink distributes keys over.

        Raises:
            ConfigError: there is no such topic, or no broker accepts messages for it.
        """
        route = self._directory.find_route(topic)
        found = () if route is None else route.publishable
        if not found:
            raise ConfigError(f"no broker accepts messages for topic {topic!r}")
        return found

    def sender(self) -> Sender:
        """Return a sender for one task."""
        return Sender(self.connection.client, self._group, inner_batch_support=self.inner_batch_support)

    def next_id(self) -> str:
        """Return a unique id for a message or a batch."""
        return self._ids.next(now_ms())

    async def supports_inner_batches(self, queue: MessageQueue) -> bool:
        """Return whether the current leader of *queue* stores inner batches."""
        address = self._rpc.find_address(queue)
        return address is not None and await self.inner_batch_support.is_supported(queue.topic, address)


_sessions: Final[PerProcess[SinkSession]] = PerProcess()


def sink_session_for(
    namesrv: str,
    patience_s: float,
    unit: str | None = None,
    tls: ClientTls | None = None,
    credentials: CredentialsOptions | None = None,
) -> SinkSession:
    """Return this process's session with a cluster; the first call creates it."""
    session = _sessions.get(
        (namesrv, unit, tls, credentials),
        lambda: SinkSession(namesrv, patience_s, unit, tls=tls, credentials=credentials),
    )
    session.connection.patience_s = patience_s
    return session
