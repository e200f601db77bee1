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
from holdfast.bulk.near_replicas import NearReplicas, Reading
from holdfast.bulk.pull_socket import PullLine
from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.queue_rpc import QueueCalls
from holdfast.client.consume.pull_plan import PullStatus
from holdfast.model.errors import BrokerRefused, HoldfastError, RemoteProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.model.route import MASTER_ID
from holdfast.model.scope import is_mock_broker
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.records.inner_batch import Opening
from holdfast.wire.requests.pull import SUBSCRIPTION, SUSPEND, PullAnswer, PullFields
from holdfast.wire.requests.relay import leader_in

log = logging.getLogger("holdfast.bulk")

# What a broker gives at most. A pull costs as much as a thousand of its rows, whatever it brings.
PULL_COUNT_MAX: Final = 16384
PULL_BYTES_MAX: Final = 12 * 1024 * 1024
_TIMEOUT_S: Final = 15.0
_STATUSES: Final = frozenset(PullStatus)
_LEADING_ON: Final = frozenset({PullStatus.FOUND, PullStatus.NO_MATCH})


@dataclass(frozen=True, slots=True)
class Question:
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
class Pulled:
    """What a pull brought; offsets are those of the queue as users know it.

    Attributes:
        delta: What is added to the offsets in the records.
        block: The records; they live until the next pull on the same line.
        is_copy: Whether a replica beside the reader handed them out: the master can still be asked.
    """

    status: PullStatus
    next_offset: int
    offset_min: int
    offset_max: int
    delta: int
    block: memoryview
    is_copy: bool = False


class QueuePulls:
    """Pulls of one group.

    Args:
        client: Knows routes.
        calls: Knows where queues are served.
        group: Whose reading brokers count.
    """

    def __init__(self, client: ClusterClient, calls: QueueCalls, group: str) -> None:
        self._client = client
        self._calls = calls
        self._group = group
        self._near = NearReplicas()

    def pull(self, line: PullLine, question: Question) -> Pulled:
        """Return the answer to *question*, asked once.

        Raises:
            HoldfastError: no broker answered, or the broker refused.
        """
        number = self._find_place(question)
        found = None if number == MASTER_ID else self._pull_near(line, question, number)
        if found is not None:
            return found
        reading = self._reading(question)
        if reading is not None and question.is_foreign and not self._near.knows(reading):
            question = replace(question, count=1)
        address = self._calls.address(question.queue)
        pulled, suggested = _ask(line, address, self._command(question, MASTER_ID), _TIMEOUT_S)
        if reading is not None:
            self._near.note(reading, suggested)
        return pulled

    def pull_ahead(self, line: PullLine, question: Question) -> None:
        """Have a broker work on what is pulled next; the same pull finds its answer there. Nothing depends on it."""
        number = self._find_place(question)
        address = self._calls.find_address(question.queue, number)
        if address is not None:
            timeout_s = _TIMEOUT_S if number == MASTER_ID else near_replicas.TIMEOUT_S
            line.ask_ahead(address, self._command(question, number), timeout_s)

    def reject_copy(self, question: Question) -> None:
        """Read at the master for a while: what a replica handed out cannot be read."""
        if (reading := self._reading(question)) is not None:
            self._near.avoid(reading, near_replicas.FAILED_S)

    def _pull_near(self, line: PullLine, question: Question, number: int) -> Pulled | None:
        """Return the answer of a replica; None where the master has to be asked."""
        reading = self._reading(question)
        assert reading is not None
        try:
            address = self._calls.address(question.queue, number)
            pulled, suggested = _ask(line, address, self._command(question, number), near_replicas.TIMEOUT_S)
        except HoldfastError as error:
            log.debug("pull of %s at replica %d failed: %s", question.queue, number, error)
            is_refused = isinstance(error, BrokerRefused)
            self._near.avoid(reading, near_replicas.LAGS_S if is_refused else near_replicas.FAILED_S)
            return None
        offset = question.offset
        if pulled.status not in _LEADING_ON or not pulled.offset_min <= offset < pulled.next_offset:
            self._near.avoid(reading, near_replicas.LAGS_S)
            return None
        self._near.note(reading, suggested)
        return replace(pulled, is_copy=True)

    def _find_place(self, question: Question) -> int:
        """Return the number of the broker to ask: 0 is the master."""
        reading = self._reading(question)
        return MASTER_ID if reading is None else self._near.find(reading)

    def _reading(self, question: Question) -> Reading | None:
        if question.unit is None:
            return None
        queue = question.queue
        route = self._client.routes.find(queue.topic)
        return Reading(question.unit, queue.topic, queue.broker_name if route is None else route.broker_of(queue))

    def _command(self, question: Question, broker_id: int) -> Command:
        is_at_master = broker_id == MASTER_ID
        queue = question.queue
        fields = PullFields(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=question.offset,
            max_msg_nums=question.count,
            sys_flag=SUBSCRIPTION if is_at_master else SUBSCRIPTION | SUSPEND,
            suspend_timeout_millis=0 if is_at_master else near_replicas.SUSPEND_MS,
            subscription=question.tags,
            expression_type="TAG",
            max_msg_bytes=question.size_max,
            broker_name=queue.broker_name,
            opens_batches=Opening.WANTED.value,
            unit=question.unit,
        )
        command = Command(code=RequestCode.PULL_MESSAGE, fields=to_fields(fields))
        if is_mock_broker(queue.broker_name):
            command.fields[MAPPING_FIELD] = "1"
        return command


def _ask(line: PullLine, address: str, command: Command, timeout_s: float) -> tuple[Pulled, int]:
    """Return what a broker answers, and the number of the broker that it names for the next pull.

    Raises:
        HoldfastError: it did not answer, or refused.
    """
    answer, block = line.ask(address, command, timeout_s)
    if answer.code not in _STATUSES:
        raise BrokerRefused(answer.code, answer.remark or "", address=address)
    try:
        head = from_fields(PullAnswer, answer.fields)
    except BadField as error:
        raise RemoteProtocolError(f"answer to a pull: {error}") from error
    offsets = (head.next_begin_offset, head.min_offset, head.max_offset)
    pulled = Pulled(PullStatus(answer.code), *offsets, head.offset_delta or 0, block)
    # An answer that was passed on names a replica of the broker that gave it, which is another one than was asked.
    return pulled, MASTER_ID if leader_in(answer) is not None else head.suggest_which_broker_id
