"""The sink: batch and streaming writes.

Each task sends its rows to their queues and ends when all are stored; nothing is left to commit. The default is at
least once. With exactlyOnce=true, rows are identified by query, batch and partition (`delivery`): a batch that runs
again, in a retried task or a restarted query, adds only the missing rows. The rows of a partition are sorted first,
because a shuffle may change their order; inputOrdered=true skips the sort.

A batch write has no persistent name: repeating it writes the rows again, but its retried tasks do not. txnAppId and
txnVersion give it a persistent name, like a batch of a stream: so `foreachBatch` can write exactly once, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from holdfast.model.errors import ConfigError
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.spark.delivery import Delivery
from holdfast.spark.sink_options import SinkOptions
from holdfast.spark.sink_requests import WriteName
from holdfast.spark.sink_rows import MessageColumns, Numbers, QueueChoice, join_rows, to_rows
from holdfast.spark.sink_session import SinkSession, sink_session_for

# At-least-once rows are sent in groups of this many bytes: enough to fill requests to many queues.
_GATHERED_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass
class WrittenRows(WriterCommitMessage):
    """The number of rows that a task stored."""

    count: int


class HoldfastBatchWriter(DataSourceArrowWriter):
    """Writes the partitions of a batch write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._name, self._version = options.write_name or (f"job-{uuid.uuid4()}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition."""
        return write_rows(self._options, iterator, self._name, self._version)


class HoldfastStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of a batch."""
        task = TaskContext.get()
        assert task is not None, "rows are written by tasks"
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if self._options.is_exactly_once and (query is None or batch is None):
            raise ConfigError("Spark does not report the query and batch of this task: exactlyOnce=true cannot work")
        return write_rows(self._options, iterator, query or "", int(batch or 0))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: all written rows are stored already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: written rows stay, and an exactly-once write does not write them again."""


def write_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch], query: str, batch: int) -> WrittenRows:
    """Write the rows of one task."""
    if options.is_exactly_once:
        return _write_once(options, batches, query, batch)
    session, partition = _open_session(options), _partition()
    known: dict[str, tuple[MessageQueue, ...]] = {}
    choice = QueueChoice(known, partition)
    count = 0
    with Delivery(session, session.sender(), None, options.codec) as delivery:
        for arrow in _gather(batches):
            for topic, rows in to_rows(arrow, options.topic).items():
                if topic not in known:
                    known[topic] = _queues(session, topic)
                delivery.begin(dict(choice.distribute(topic, rows, rows.arrival_order())))
            count += arrow.num_rows
        delivery.finish()
    return WrittenRows(count)


def deliver_once(options: SinkOptions, rows: MessageColumns, order: Numbers, query: str, batch: int) -> None:
    """Write the rows of one task in *order*, each exactly once even if the task is repeated."""
    assert options.topic is not None, "validated before"
    session, partition = _open_session(options), _partition()
    queues = _queues(session, options.topic, must_be_static=True)
    choice = QueueChoice({options.topic: queues}, partition)
    name = WriteName(query, batch, partition, options.accepts_unknown)
    with Delivery(session, session.sender(), name, options.codec) as delivery:
        delivery.deliver(dict(choice.distribute(options.topic, rows, order)), len(queues))


def _open_session(options: SinkOptions) -> SinkSession:
    return sink_session_for(options.namesrv, options.patience_s, options.unit, options.tls, options.credentials)


def _partition() -> int:
    task = TaskContext.get()
    return 0 if task is None else task.partitionId()


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in fewer batches, by concatenating small ones."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= _GATHERED_BYTES_MAX:
            yield pa.concat_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.concat_batches(gathered)


def _write_once(options: SinkOptions, batches: Iterable[pa.RecordBatch], query: str, batch: int) -> WrittenRows:
    # The option determines the topic. Drop a column `topic`, which may name the topic that the rows were read from.
    without_topic = [arrow.drop_columns(["topic"]) if "topic" in arrow.schema.names else arrow for arrow in batches]
    parts = [rows for arrow in without_topic for rows in to_rows(arrow, options.topic).values()]
    if not parts:
        return WrittenRows(0)
    rows = join_rows(parts)
    deliver_once(options, rows, rows.arrival_order() if options.is_ordered else rows.content_order(), query, batch)
    return WrittenRows(len(rows))


def _queues(session: SinkSession, topic: str, *, must_be_static: bool = False) -> tuple[MessageQueue, ...]:
    queues = session.publishable(topic)
    if must_be_static and not all(is_mock_broker(queue.broker_name) for queue in queues):
        raise ConfigError(
            f"{topic!r} is not a static topic, and only these support exactly once: make it static, or leave "
            "exactlyOnce out"
        )
    return queues
