"""Pulls on a `PullSocket`, from the master or from a replica in the reader's unit.

    request ─┬─ the master named a replica in the reader's unit ─> replica ─┬─ progress ───────────> PullResult
             │                                                              └─ anything else ─┐
             └──────────────────────────────────────────────────────────────> master <────────┘ ──> PullResult

A replica decides nothing: only the master decides whether rows are lost and where a queue begins and ends. A replica
holds a pull briefly for planned rows that have not reached it yet, so that the master need not serve them.

The first pull of a queue of another unit requests one row only: its answer names the broker for the other rows.

No pull is retried here; `task_reader` retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.bulk import near_replicas
from holdfast.bulk.near_replicas import NearReplicas, ReplicaKey
from holdfast.bulk.pull_socket import PullSocket
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.consume.pull_plan import PullStatus, pull_command, read_pull_header
from holdfast.model.errors import BrokerRefused, HoldfastError
from holdfast.model.group import Subscription
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.model.route import MASTER_ID
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.relay import leader_in

log = logging.getLogger("holdfast.bulk")

# The most that a broker returns. A pull costs as much as about a thousand rows, whatever its size.
PULL_COUNT_MAX: Final = 16384
PULL_BYTES_MAX: Final = 12 * 1024 * 1024
_TIMEOUT_S: Final = 15.0
_PROGRESS_STATUSES: Final = frozenset({PullStatus.FOUND, PullStatus.NO_MATCH})


@dataclass(frozen=True, slots=True)
class PullRequest:
    """One pull.

    Attributes:
        count: The most rows to return.
        tags: Return only messages with one of these tags: `a || b`.
        size_max: The most bytes to return.
        unit: The reader's unit, so that a master of another unit can name a replica in it; None to use masters only.
        is_foreign: Whether the queue belongs to another unit than the reader's.
    """

    queue: MessageQueue
    offset: LogicalOffset
    count: int = PULL_COUNT_MAX
    tags: str = "*"
    size_max: int = PULL_BYTES_MAX
    unit: str | None = None
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to a pull. Its offsets are logical offsets in a static topic.

    Attributes:
        delta: What to add to the offsets in the records.
        block: The records; valid until the next pull on the same socket.
        is_from_replica: Whether a replica returned the records, so that the master can be tried instead.
    """

    status: PullStatus
    next_offset: LogicalOffset
    offset_min: LogicalOffset
    offset_max: LogicalOffset
    delta: int
    block: memoryview
    is_from_replica: bool = False


class QueuePuller:
    """Pulls for one group.

    Args:
        rpc: Finds the address that serves a queue, and names the group in which brokers count the reads.
        load_route: Looks up the route of a topic, and returns when it is known.
    """

    def __init__(self, rpc: QueueRpc, load_route: Callable[[str], object]) -> None:
        self._routes = rpc.client.routes
        self._rpc = rpc
        self._load_route = load_route
        self._replicas = NearReplicas()

    def pull(self, pull_socket: PullSocket, request: PullRequest) -> PullResult:
        """Return the answer to *request*, without retries.

        Raises:
            HoldfastError: no broker answered, or the broker refused.
        """
        if self._routes.find(request.queue.topic) is None:
            self._load_route(request.queue.topic)
        broker_id = self._find_broker_id(request)
        found = None if broker_id == MASTER_ID else self._pull_at_replica(pull_socket, request, broker_id)
        if found is not None:
            return found
        key = self._replica_key(request)
        if key is not None and request.is_foreign and not self._replicas.is_known(key):
            request = replace(request, count=1)
        address = self._rpc.address(request.queue)
        result, suggested = _request(pull_socket, address, self._command(request, MASTER_ID), _TIMEOUT_S)
        if key is not None:
            self._replicas.record(key, suggested)
        return result

    def pull_ahead(self, pull_socket: PullSocket, request: PullRequest) -> None:
        """Send *request* ahead, so that the broker works on it before `pull` waits for the answer.

        Failures are ignored: `pull` sends the request again.
        """
        broker_id = self._find_broker_id(request)
        address = self._rpc.find_address(request.queue, broker_id)
        if address is not None:
            timeout_s = _TIMEOUT_S if broker_id == MASTER_ID else near_replicas.TIMEOUT_S
            pull_socket.request_ahead(address, self._command(request, broker_id), timeout_s)

    def avoid_replica(self, request: PullRequest) -> None:
        """Pull from the master for a while, because the records that a replica returned cannot be read."""
        if (key := self._replica_key(request)) is not None:
            self._replicas.avoid(key, near_replicas.FAILED_AVOID_S)

    def _pull_at_replica(self, pull_socket: PullSocket, request: PullRequest, broker_id: int) -> PullResult | None:
        """Return a replica's answer; None if the master has to serve the pull."""
        key = self._replica_key(request)
        assert key is not None
        try:
            address = self._rpc.address(request.queue, broker_id)
            result, suggested = _request(
                pull_socket, address, self._command(request, broker_id), near_replicas.TIMEOUT_S
            )
        except HoldfastError as error:
            log.debug("pull of %s at replica %d failed: %s", request.queue, broker_id, error)
            is_refused = isinstance(error, BrokerRefused)
            self._replicas.avoid(key, near_replicas.LAGGING_AVOID_S if is_refused else near_replicas.FAILED_AVOID_S)
            return None
        offset = request.offset
        if result.status not in _PROGRESS_STATUSES or not result.offset_min <= offset < result.next_offset:
            self._replicas.avoid(key, near_replicas.LAGGING_AVOID_S)
            return None
        self._replicas.record(key, suggested)
        return replace(result, is_from_replica=True)

    def _find_broker_id(self, request: PullRequest) -> int:
        """Return the id of the broker to pull from; 0 is the master."""
        key = self._replica_key(request)
        return MASTER_ID if key is None else self._replicas.find(key)

    def _replica_key(self, request: PullRequest) -> ReplicaKey | None:
        if request.unit is None:
            return None
        queue = request.queue
        route = self._routes.find(queue.topic)
        return ReplicaKey(request.unit, queue.topic, queue.broker_name if route is None else route.broker_of(queue))

    def _command(self, request: PullRequest, broker_id: int) -> Command:
        is_at_master = broker_id == MASTER_ID
        queue = request.queue
        return pull_command(
            group=self._rpc.group,
            queue=queue,
            offset=request.offset,
            subscription=Subscription(topic=queue.topic, sub_string=request.tags),
            suspend_ms=0 if is_at_master else near_replicas.SUSPEND_MS,
            with_subscription=True,
            batch_max=request.count,
            bytes_max=request.size_max,
            unit=request.unit,
        )


def _request(pull_socket: PullSocket, address: str, command: Command, timeout_s: float) -> tuple[PullResult, int]:
    """Return a broker's answer, and the id of the broker that it names for the next pull.

    Raises:
        HoldfastError: the broker did not answer, or it refused the pull.
    """
    answer, block = pull_socket.request(address, command, timeout_s)
    header = read_pull_header(answer, address)
    result = PullResult(
        PullStatus(answer.code),
        LogicalOffset(header.next_begin_offset),
        LogicalOffset(header.min_offset),
        LogicalOffset(header.max_offset),
        header.offset_delta or 0,
        block,
    )
    # A relayed answer names a replica of the leader that produced it, not of the broker at *address*.
    return result, MASTER_ID if leader_in(answer) is not None else header.suggest_which_broker_id
