"""Pulls on a plain connection: at the master, or at a replica beside the reader.

    question ─┬─ the master named a replica in the reader's unit ─> replica ─┬─ leads on ──────────> Pulled
              │                                                              └─ anything else ─┐
              └──────────────────────────────────────────────────────────────> master <────────┘ ──> Pulled

A replica decides nothing: whether rows are gone, where a queue begins and where it ends is the master's word. A replica
is asked to wait a moment for rows that are planned already, so the master need not send what is under way to it.

The first pull of a queue of another unit brings one row only: its answer says where the rest is read.

Asks once; `task_reader` asks again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final

from holdfast.bulk import near_replicas
from holdfast.bulk.near_replicas import NearReplicas, ReplicaKey
from holdfast.bulk.pull_socket import PullSocket
from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.consume.pull_plan import PullStatus
from holdfast.model.errors import BrokerRefused, HoldfastError, RemoteProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.model.route import MASTER_ID
from holdfast.model.scope import is_mock_broker
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.records.inner_batch import BatchSupport
from holdfast.wire.requests.pull import SUBSCRIPTION, SUSPEND, PullAnswer, PullFields
from holdfast.wire.requests.relay import leader_in

log = logging.getLogger("holdfast.bulk")

# What a broker gives at most. A pull costs as much as a thousand of its rows, whatever it brings.
PULL_COUNT_MAX: Final = 16384
PULL_BYTES_MAX: Final = 12 * 1024 * 1024
_TIMEOUT_S: Final = 15.0
_STATUSES: Final = frozenset(PullStatus)
_PROGRESS_STATUSES: Final = frozenset({PullStatus.FOUND, PullStatus.NO_MATCH})


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What is pulled.

    Attributes:
        count: How many rows at most.
        tags: `a || b`: only messages with one of these.
        size_max: How many bytes at most.
        unit: The reader's, so that a master of another unit can name a replica in it; None: read at the master.
        is_foreign: Whether the queue belongs to another unit.
    """

    queue: MessageQueue
    offset: int
    count: int = PULL_COUNT_MAX
    tags: str = "*"
    size_max: int = PULL_BYTES_MAX
    unit: str | None = None
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull brought; offsets are those of the queue as users know it.

    Attributes:
        delta: What is added to the offsets in the records.
        block: The records; they live until the next pull on the same line.
        is_from_replica: Whether a replica beside the reader handed them out: the master can still be asked.
    """

    status: PullStatus
    next_offset: int
    offset_min: int
    offset_max: int
    delta: int
    block: memoryview
    is_from_replica: bool = False


class QueuePuller:
    """Pulls of one group.

    Args:
        client: Knows routes.
        rpc: Knows where queues are served.
        group: Whose reading brokers count.
    """

    def __init__(self, client: ClusterClient, rpc: QueueRpc, group: str) -> None:
        self._client = client
        self._rpc = rpc
        self._group = group
        self._replicas = NearReplicas()

    def pull(self, pull_socket: PullSocket, request: PullRequest) -> PullResult:
        """Return the answer to *question*, asked once.

        Raises:
            HoldfastError: no broker answered, or the broker refused.
        """
        number = self._find_broker_id(request)
        found = None if number == MASTER_ID else self._pull_at_replica(pull_socket, request, number)
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
        """Have a broker work on what is pulled next; the same pull finds its answer there. Nothing depends on it."""
        broker_id = self._find_broker_id(request)
        address = self._rpc.find_address(request.queue, broker_id)
        if address is not None:
            timeout_s = _TIMEOUT_S if broker_id == MASTER_ID else near_replicas.TIMEOUT_S
            pull_socket.request_ahead(address, self._command(request, broker_id), timeout_s)

    def avoid_replica(self, request: PullRequest) -> None:
        """Read at the master for a while: what a replica handed out cannot be read."""
        if (key := self._replica_key(request)) is not None:
            self._replicas.avoid(key, near_replicas.FAILED_AVOID_S)

    def _pull_at_replica(self, pull_socket: PullSocket, request: PullRequest, broker_id: int) -> PullResult | None:
        """Return the answer of a replica; None where the master has to be asked."""
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
        """Return the number of the broker to ask: 0 is the master."""
        key = self._replica_key(request)
        return MASTER_ID if key is None else self._replicas.find(key)

    def _replica_key(self, request: PullRequest) -> ReplicaKey | None:
        if request.unit is None:
            return None
        queue = request.queue
        route = self._client.routes.find(queue.topic)
        return ReplicaKey(request.unit, queue.topic, queue.broker_name if route is None else route.broker_of(queue))

    def _command(self, request: PullRequest, broker_id: int) -> Command:
        is_at_master = broker_id == MASTER_ID
        queue = request.queue
        fields = PullFields(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=request.offset,
            max_msg_nums=request.count,
            sys_flag=SUBSCRIPTION if is_at_master else SUBSCRIPTION | SUSPEND,
            suspend_timeout_millis=0 if is_at_master else near_replicas.SUSPEND_MS,
            subscription=request.tags,
            expression_type="TAG",
            max_msg_bytes=request.size_max,
            broker_name=queue.broker_name,
            batch_support=BatchSupport.REQUESTED.value,
            unit=request.unit,
        )
        command = Command(code=RequestCode.PULL_MESSAGE, fields=to_fields(fields))
        if is_mock_broker(queue.broker_name):
            command.fields[MAPPING_FIELD] = "1"
        return command


def _request(pull_socket: PullSocket, address: str, command: Command, timeout_s: float) -> tuple[PullResult, int]:
    """Return what a broker answers, and the number of the broker that it names for the next pull.

    Raises:
        HoldfastError: it did not answer, or refused.
    """
    answer, block = pull_socket.request(address, command, timeout_s)
    if answer.code not in _STATUSES:
        raise BrokerRefused(answer.code, answer.remark or "", address=address)
    try:
        header = from_fields(PullAnswer, answer.fields)
    except BadField as error:
        raise RemoteProtocolError(f"answer to a pull: {error}") from error
    offsets = (header.next_begin_offset, header.min_offset, header.max_offset)
    result = PullResult(PullStatus(answer.code), *offsets, header.offset_delta or 0, block)
    # An answer that was passed on names a replica of the broker that gave it, which is another one than was asked.
    return result, MASTER_ID if leader_in(answer) is not None else header.suggest_which_broker_id
