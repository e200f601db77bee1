"""Brings the rows of one task to their queues and waits for every answer.

    rows of a queue ─ cut into requests ─ one on its way at a time, so that their order is kept
    queues          ─ all at once; one that has all its rows goes on with the next, whatever others have to do

Where the broker keeps batches of the topic whole, a request is one record, else each of its rows is.

At least once: a request that is not answered is made again, and its rows may be there twice.

Exactly once: each request says which rows it brings, by number and running checksum (`wire.sink`). The broker takes it
only where its own count goes on; whoever comes second, a retry or a ghost, is told how far the batch is, and resumes
behind that if its own rows so far have the same checksum. If not, the rows are not the same as before: that is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final, Self

import msgspec

from holdfast.bulk.cluster_session import Link, Unavailable
from holdfast.client.produce.sender import Sender
from holdfast.model.errors import HoldfastError, SendFailed
from holdfast.model.queue import MessageQueue
from holdfast.spark.sink_items import run_checksums
from holdfast.spark.sink_requests import RowRequests, Stamps, WriteName
from holdfast.spark.sink_rows import Messages
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.compression import Codec
from holdfast.wire.requests.sink import SinkState

_SEND_TIMEOUT_S: Final = 10.0
_ILLEGAL: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER})
_NEVER: Final = _ILLEGAL | {ResponseCode.SINK_REFUSED}
_BEGUN_MAX: Final = 2
"""Deliveries under way: the next one keeps brokers busy while some queues have not all rows of the one before."""


class SinkRefused(HoldfastError):
    """A broker will not take the rows, now or ever; the text says why."""


class Delivery:
    """The sending of one task. As a context it leaves nothing under way behind it, also when the task fails.

    Args:
        link: The way to the cluster.
        sender: Sends one request.
        name: Which rows these are; None to deliver them at least once.
        codec: How to compress batches that brokers keep whole; None for not at all.
    """

    def __init__(self, link: Link, sender: Sender, name: WriteName | None, codec: Codec | None = None) -> None:
        self._link = link
        self._sender = sender
        self._name = name
        self._codec = codec
        self._under_way: deque[Future[None]] = deque()
        self._turns: dict[MessageQueue, asyncio.Event] = {}  # Set once a queue has all rows that were begun so far.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._under_way:
            each.cancel()

    def deliver(self, rows: Mapping[MessageQueue, Messages], queue_count: int = 0) -> None:
        """Bring all *rows* to their queues, and return when all are stored.

        Raises:
            SinkRefused: they are not the rows that were written before under this name.
            Unavailable: a broker was away for too long.
        """
        self.begin(rows, queue_count)
        self.finish()

    def begin(self, rows: Mapping[MessageQueue, Messages], queue_count: int = 0) -> None:
        """Begin to do that, in each queue behind what was begun before: the caller makes the next rows meanwhile.

        Raises:
            SinkRefused, Unavailable: what was begun before could not be done.
        """
        self._finish_all_but(_BEGUN_MAX - 1)
        self._under_way.append(self._link.begin(self._deliver_all(rows, queue_count)))

    def finish(self) -> None:
        """Return when all is stored.

        Raises:
            SinkRefused, Unavailable: it could not be done.
        """
        self._finish_all_but(0)

    def _finish_all_but(self, count: int) -> None:
        while len(self._under_way) > count:
            self._under_way[0].result()
            self._under_way.popleft()

    async def _deliver_all(self, rows: Mapping[MessageQueue, Messages], queue_count: int) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for queue, mine in rows.items():
                    before, self._turns[queue] = self._turns.get(queue), asyncio.Event()
                    tasks.create_task(self._deliver_behind(before, self._turns[queue], queue, mine, queue_count))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _deliver_behind(
        self, before: asyncio.Event | None, done: asyncio.Event, queue: MessageQueue, rows: Messages, queue_count: int
    ) -> None:
        """Bring rows to one queue in their turn. It never comes if those before could not be brought there."""
        if before is not None:
            await before.wait()
        if self._name is None:
            await self._deliver(queue, rows)
        else:
            await self._deliver_once(queue, rows, self._name, queue_count)
        done.set()

    async def _deliver(self, queue: MessageQueue, rows: Messages) -> None:
        requests = RowRequests(rows, self._codec)
        at = 0
        while at < len(rows):
            at, _ = await self._insist(queue, requests, at)

    async def _deliver_once(self, queue: MessageQueue, rows: Messages, name: WriteName, queue_count: int) -> None:
        # The number of queues is a part of it: with another number keys go elsewhere, and these are other rows.
        checksums = run_checksums(rows, queue_count)
        requests = RowRequests(rows, self._codec, Stamps(name, checksums))
        at = 0
        while at < len(rows):
            end, state = await self._insist(queue, requests, at)
            if state is None:
                at = end
            elif state.count and checksums[state.count : state.count + 1] != [state.checksum]:
                raise SinkRefused(_differs(queue, name, f"it took {state.count} rows that are not among these"))
            elif state.is_over and state.count != len(rows):
                raise SinkRefused(_differs(queue, name, f"it took all of {state.count} rows, now they are {len(rows)}"))
            else:
                at = state.count

    async def _insist(self, queue: MessageQueue, requests: RowRequests, at: int) -> tuple[int, SinkState | None]:
        """Send a request with rows from *at* on until it is answered.

        Return the row behind its last, and how far the broker is, if it did not want it.
        """
        deadline_s = time.monotonic() + self._link.patience_s
        failures = 0
        may_be_whole = True
        while True:
            request = None
            if may_be_whole and await self._link.keeps_whole(queue):
                request = requests.whole(at, self._link.next_id())
            request = request or requests.apart(at)
            try:
                await self._sender.send(request.to_parcel(queue), _SEND_TIMEOUT_S)
            except SendFailed as error:
                if error.code == ResponseCode.SINK_BEHIND:
                    return request.end, _read_state(error)
                if request.is_whole and error.code in _ILLEGAL:
                    may_be_whole = False  # Whatever is wrong with that, there is a form that every broker takes.
                    continue
                if error.code in _NEVER:
                    raise SinkRefused(f"{queue.topic}/{queue.queue_id}: {error.cause}") from error
                if time.monotonic() > deadline_s:
                    raise Unavailable(
                        f"{queue.topic}/{queue.queue_id} took nothing for {self._link.patience_s:g} s "
                        f"(option 'brokerTimeout'): {error}"
                    ) from error
                failures += 1
                await self._link.mend(queue.topic, error.cause, failures)
            else:
                return request.end, None


def _read_state(error: SendFailed) -> SinkState:
    remark = getattr(error.cause, "remark", "")
    try:
        return msgspec.json.decode(remark, type=SinkState)
    except msgspec.MsgspecError:
        raise SinkRefused(f"a broker does not say how far it is: {error}") from error


def _differs(queue: MessageQueue, name: WriteName, how: str) -> str:
    return (
        f"{queue.topic}/{queue.queue_id}: partition {name.partition} of batch {name.batch} of query {name.query} was "
        f"written before with other rows: {how}. Exactly once needs a query that computes the same rows when it is run "
        "again, and a topic that was not grown meanwhile"
    )
