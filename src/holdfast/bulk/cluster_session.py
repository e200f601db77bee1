"""A process's session with a cluster, for the planner in the driver and for the tasks that read.

    session_for(...) ─> ClusterSession ─┬─ connection   the event loop, retries, patience
                                        ├─ directory    topics, and queues by name
                                        ├─ offsets      bounds, times, commits
                                        └─ pulls        rows

The session knows which unit a queue belongs to: a queue of another unit is served by a session of that unit. A process
has one session for each cluster, group, unit and user. Sessions outlive tasks.
"""

from __future__ import annotations

from typing import Final

from holdfast.bulk.cluster_connection import ClusterConnection, PerProcess
from holdfast.bulk.queue_directory import QueueDirectory
from holdfast.bulk.queue_mappings import QueueMappings
from holdfast.bulk.queue_offsets import QueueOffsets
from holdfast.bulk.queue_pulls import QueuePuller
from holdfast.bulk.read_options import DEFAULT_GROUP, QueueKey, ReadOptions
from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.client.cluster.cluster_client import ClientCallbacks
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.options import ClientOptions
from holdfast.columns.message_columns import RecordOrigin
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.model.scope import is_mock_broker


class ClusterSession:
    """Reads queues of a cluster.

    Args:
        namesrv: `host:port;host:port`.
        group: The group in which brokers count the reads.
        patience_s: How long to retry a request.
        unit: The unit (a cluster name) to read; None for all. Other units are read while they are open.
        tls: Use TLS on every connection; None for plain connections.
        credentials: What proves our identity to servers; None for no access control.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        patience_s: float,
        unit: str | None = None,
        tls: ClientTls | None = None,
        credentials: CredentialsOptions | None = None,
    ) -> None:
        self._namesrv = namesrv
        self._group = group
        self._tls = tls
        self._credentials = credentials
        self.unit = unit
        self._unit_sessions: dict[QueueKey, ClusterSession] = {}
        options = ClientOptions(namesrv, unit=unit, reader_group=group, tls=tls, credentials=credentials)
        self.connection = ClusterConnection(options, ClientCallbacks(), patience_s)
        client = self.connection.client
        rpc = QueueRpc(client, group)
        self.directory = QueueDirectory(self.connection, unit)
        self.offsets = QueueOffsets(self.connection, rpc)
        self.pulls = QueuePuller(rpc, lambda topic: self.connection.wait(client.route(topic)))
        self.mappings = QueueMappings(client.routes, unit)

    # Units.

    def session_of(self, name: QueueKey) -> tuple[ClusterSession, QueueKey]:
        """Return the session that serves a queue, and the queue's name in that session.

        A queue of another unit is served by a session of that unit, which can read it even after the unit was closed:
        a batch that was planned while the unit was open is read to its end.
        """
        topic, text = name
        prefix, _, number = text.rpartition("/")
        if not prefix or self.unit is None:
            return self, name
        session = self._unit_sessions.get((topic, prefix)) or self._find_session(topic, prefix)
        self._unit_sessions[topic, prefix] = session
        return session, (topic, number) if session.unit == prefix else name

    def _find_session(self, topic: str, prefix: str) -> ClusterSession:
        """Return the session for the queues of *topic* in *prefix*, which names a unit or a broker."""
        route = self.connection.client.routes.find(topic) or self.directory.seek_route(topic)
        if route is not None and not route.leaders:
            return self if self.directory.is_own_broker(route, prefix) else self._session_of_unit(None)
        other = self._session_of_unit(prefix)
        if route is None:
            found = other.directory.seek_route(topic)
            return other if found is not None and found.leaders else self._session_of_unit(None)
        return other

    def _session_of_unit(self, unit: str | None) -> ClusterSession:
        return open_session(self._namesrv, self._group, self.connection.patience_s, unit, self._tls, self._credentials)

    # Queues by name.

    def find_queue(self, name: QueueKey) -> MessageQueue:
        """Return the queue of that name. A queue of a normal topic is found without a route."""
        session, local = self.session_of(name)
        return session.directory.find_queue(local)

    def readable_ranges(
        self, name: QueueKey, start: int, end: int, *, skips_unknown: bool = False
    ) -> list[tuple[int, int]]:
        """Return the parts of a range that can hold messages, see `LogicalQueue.readable_ranges`."""
        if end - start < 2:
            return [(start, end)] if end > start else []
        session, local = self.session_of(name)
        if session is not self and "/" not in local[1]:
            session.directory.load_static(local[0])
        queue = session.mappings.find(local)
        if queue is None:
            return [(start, end)]
        return queue.readable_ranges(LogicalOffset(start), LogicalOffset(end), skips_unknown=skips_unknown)

    def find_unknown_end(self, name: QueueKey, start: int, end: int) -> str | None:
        """Return the unreachable broker that may still have messages of a range; None if there is none."""
        session, local = self.session_of(name)
        queue = session.mappings.find(local)
        segment = None if queue is None else queue.find_unknown_end(LogicalOffset(start), LogicalOffset(end))
        return None if segment is None else segment.broker

    def origin(self, name: QueueKey, queue: MessageQueue, offset: int, delta: int) -> RecordOrigin:
        """Return the origin of the records of an answer that begins at *offset*."""
        if not is_mock_broker(queue.broker_name):
            return RecordOrigin(queue.topic, queue.queue_id, queue.broker_name, None, delta)
        segment = self.mappings.find_segment(name, offset, delta)
        if segment is None:  # The queue has moved since the route was looked up.
            self.connection.wait(self.connection.client.refresh_leaders(queue.topic))
            segment = self.mappings.find_segment(name, offset, delta)
        broker, generation = ("", None) if segment is None else (segment.broker, segment.generation)
        return RecordOrigin(queue.topic, queue.queue_id, broker, generation, delta)


_sessions: Final[PerProcess[ClusterSession]] = PerProcess()


def open_session(
    namesrv: str,
    group: str,
    patience_s: float,
    unit: str | None = None,
    tls: ClientTls | None = None,
    credentials: CredentialsOptions | None = None,
) -> ClusterSession:
    """Return this process's session with a cluster; the first call creates it."""
    session = _sessions.get(
        (namesrv, group, unit, tls, credentials),
        lambda: ClusterSession(namesrv, group, patience_s, unit, tls, credentials),
    )
    session.connection.patience_s = patience_s
    return session


def session_for(options: ReadOptions) -> ClusterSession:
    """Return this process's session for a query; the first call creates it."""
    group = options.group or DEFAULT_GROUP
    return open_session(options.namesrv, group, options.patience_s, options.unit, options.tls, options.credentials)
