"""Sends the rows of one task to their queues and waits for every acknowledgement.

    rows of a queue ─ cut into requests ─ one in flight at a time, to preserve their order
    queues          ─ in parallel; a queue that has all its rows begins the next ones, without waiting for others

If the broker stores batches of the topic whole, a request becomes one record. Otherwise each of its rows does.

At least once: a request without an answer is sent again, so its rows may be stored twice.

Exactly once: each request identifies its rows by number and running checksum (`wire.requests.sink`). The broker accepts
a request only if it continues the stored rows. Otherwise, for a retry or a stale task, it returns how many rows it has
stored. The task resumes after these if its own rows have the same checksum up to there. If they do not, the rows differ
from those written before, and the write fails.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final, Self

import msgspec

from holdfast.bulk.cluster_connection import Unavailable
from holdfast.client.produce.sender import Sender
from holdfast.model.errors import HoldfastError, SendFailed
from holdfast.model.queue import MessageQueue
from holdfast.spark.sink_items import running_checksums
from holdfast.spark.sink_requests import RowRequests, Stamps, WriteName
from holdfast.spark.sink_rows import MessageSelection
from holdfast.spark.sink_session import SinkSession
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.compression import Codec
from holdfast.wire.requests.sink import SinkState

_SEND_TIMEOUT_S: Final = 10.0
_ILLEGAL: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER})
_FINAL: Final = _ILLEGAL | {ResponseCode.SINK_REFUSED}
_DELIVERIES_MAX: Final = 2
"""Deliveries in progress: a second one keeps brokers busy while some queues still receive rows of the first."""


class SinkRefused(HoldfastError):
    """A broker rejected the rows for good; the text says why."""


class Delivery:
    """Sends the rows of one task. As a context manager it cancels unfinished deliveries on exit.

    Args:
        session: The connection to the cluster.
        sender: Sends one request.
        name: Identifies the rows for exactly-once delivery; None for at least once.
        codec: Compresses batches that brokers store whole; None for no compression.
    """

    def __init__(
        self, session: SinkSession, sender: Sender, name: WriteName | None, codec: Codec | None = None
    ) -> None:
        self._session = session
        self._sender = sender
        self._name = name
        self._codec = codec
        self._in_flight: deque[Future[None]] = deque()
        self._delivered: dict[MessageQueue, asyncio.Event] = {}  # Set when a queue has all rows begun so far.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._in_flight:
            each.cancel()

    def deliver(self, rows: Mapping[MessageQueue, MessageSelection], queue_count: int = 0) -> None:
        """Send all *rows* to their queues, and return when all are stored.

        Raises:
            SinkRefused: other rows were written before under this name, or a broker rejected the rows.
            Unavailable: a broker was unavailable for too long.
        """
        self.begin(rows, queue_count)
        self.finish()

    def begin(self, rows: Mapping[MessageQueue, MessageSelection], queue_count: int = 0) -> None:
        """Begin to send *rows*, in each queue after the rows begun before. The caller can prepare more rows meanwhile.

        Raises:
            SinkRefused, Unavailable: an earlier delivery failed.
        """
        self._finish_all_but(_DELIVERIES_MAX - 1)
        self._in_flight.append(self._session.connection.begin(self._deliver_all(rows, queue_count)))

    def finish(self) -> None:
        """Wait until all rows are stored.

        Raises:
            SinkRefused, Unavailable: a delivery failed.
        """
        self._finish_all_but(0)

    def _finish_all_but(self, count: int) -> None:
        while len(self._in_flight) > count:
            self._in_flight[0].result()
            self._in_flight.popleft()

    async def _deliver_all(self, rows: Mapping[MessageQueue, MessageSelection], queue_count: int) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for queue, queue_rows in rows.items():
                    before, self._delivered[queue] = self._delivered.get(queue), asyncio.Event()
                    tasks.create_task(
                        self._deliver_after(before, self._delivered[queue], queue, queue_rows, queue_count)
                    )
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _deliver_after(
        self,
        before: asyncio.Event | None,
        done: asyncio.Event,
        queue: MessageQueue,
        rows: MessageSelection,
        queue_count: int,
    ) -> None:
        """Send rows to one queue after the earlier ones. Wait forever if sending those failed."""
        if before is not None:
            await before.wait()
        if self._name is None:
            await self._deliver(queue, rows)
        else:
            await self._deliver_once(queue, rows, self._name, queue_count)
        done.set()

    async def _deliver(self, queue: MessageQueue, rows: MessageSelection) -> None:
        requests = RowRequests(rows, self._codec)
        start = 0
        while start < len(rows):
            start, _ = await self._send_until_answered(queue, requests, start)

    async def _deliver_once(
        self, queue: MessageQueue, rows: MessageSelection, name: WriteName, queue_count: int
    ) -> None:
        # The checksum includes the number of queues: with another number keys map to other queues.
        checksums = running_checksums(rows, queue_count)
        requests = RowRequests(rows, self._codec, Stamps(name, checksums))
        start = 0
        while start < len(rows):
            end, state = await self._send_until_answered(queue, requests, start)
            if state is None:
                start = end
            elif state.count and checksums[state.count : state.count + 1] != [state.checksum]:
                raise SinkRefused(_difference_text(queue, name, f"it stored {state.count} rows that differ from these"))
            elif state.is_over and state.count != len(rows):
                raise SinkRefused(
                    _difference_text(queue, name, f"it stored all of {state.count} rows, now they are {len(rows)}")
                )
            else:
                start = state.count

    async def _send_until_answered(
        self, queue: MessageQueue, requests: RowRequests, start: int
    ) -> tuple[int, SinkState | None]:
        """Send a request with rows from *start* on, and retry until the broker answers.

        Return the row after its last, and the broker's state if it did not accept the request.
        """
        connection = self._session.connection
        deadline_s = time.monotonic() + connection.patience_s
        failures = 0
        may_be_inner_batch = True
        while True:
            request = None
            if may_be_inner_batch and await self._session.supports_inner_batches(queue):
                request = requests.to_inner_batch(start, self._session.next_id())
            request = request or requests.to_separate_records(start)
            try:
                await self._sender.send(request.to_parcel(queue), _SEND_TIMEOUT_S)
            except SendFailed as error:
                if error.code == ResponseCode.SINK_OUT_OF_SEQUENCE:
                    return request.end, _read_state(error)
                if request.is_inner_batch and error.code in _ILLEGAL:
                    may_be_inner_batch = False  # Fall back to the form that every broker accepts.
                    continue
                if error.code in _FINAL:
                    raise SinkRefused(f"{queue.topic}/{queue.queue_id}: {error.cause}") from error
                if time.monotonic() > deadline_s:
                    raise Unavailable(
                        f"{queue.topic}/{queue.queue_id} accepted nothing for {connection.patience_s:g} s "
                        f"(option 'brokerTimeout'): {error}"
                    ) from error
                failures += 1
                await connection.recover(queue.topic, error.cause, failures)
            else:
                return request.end, None


def _read_state(error: SendFailed) -> SinkState:
    remark = getattr(error.cause, "remark", "")
    try:
        return msgspec.json.decode(remark, type=SinkState)
    except msgspec.MsgspecError:
        raise SinkRefused(f"a broker did not report which rows it has stored: {error}") from error


def _difference_text(queue: MessageQueue, name: WriteName, difference: str) -> str:
    return (
        f"{queue.topic}/{queue.queue_id}: partition {name.partition} of batch {name.batch} of query {name.query} was "
        f"written before with other rows: {difference}. Exactly once needs a query that computes the same rows in "
        "every run, "
        "and a topic whose number of queues did not change meanwhile"
    )
