"""Streaming queries: read batch after batch, even while brokers fail and queues move.

    initialOffset ─> latestOffset ─> partitions ─> read (tasks) ─> commit ...
                     choose the end  the same end always gives the same batch

The reader lives in one process of the driver for as long as the query. Positions of static topics name logical queues
only, so they stay valid when queues move. If a broker does not answer, its queues do not advance in this batch, and the
query continues with the others. The queues of a closed unit do not advance until it is opened again. See `offsets` for
how the first position is kept.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from holdfast.bulk.cluster_session import ClusterSession, session_for
from holdfast.bulk.pull_socket import borrow_pull_socket
from holdfast.bulk.queue_pulls import PullRequest
from holdfast.bulk.queue_selection import QueuesByKey, find_queues, resolve
from holdfast.bulk.read_options import QueueKey
from holdfast.bulk.task_reader import DataLost
from holdfast.model.errors import HoldfastError
from holdfast.model.queue import LogicalOffset
from holdfast.spark.batch_reader import read_task_input, tasks_max, to_task_inputs
from holdfast.spark.offsets import StreamPosition, begins_of, nest, read_position
from holdfast.spark.options import SourceOptions
from holdfast.spark.plan import admit

# Spark asks for the next end as soon as it has an answer, so an idle stream waits here.
_IDLE_S: Final = 0.2
_POLL_S: Final = 0.04
# How often to discover new topics and queues.
_DISCOVER_S: Final = 5.0
_SAMPLE_BYTES: Final = 64 * 1024
# How often to publish the position even without progress: a broker may have missed or lost it.
_PUBLISH_S: Final = 5.0
# How long a queue must appear shorter before its topic is considered recreated.
_SHRINK_CONFIRM_S: Final = 30.0


class HoldfastStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of one streaming query."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._initial: StreamPosition | None = None
        self._target_ends: dict[QueueKey, int] | None = None
        self._queues: QueuesByKey = {}
        self._discovered_s = 0.0
        self._latest_ends: dict[QueueKey, int] = {}
        self._batch_ends: dict[QueueKey, int] = {}  # the end of the batch last returned to Spark
        self._last_batch_s = time.monotonic()
        self._shrunk_since_s: dict[QueueKey, float] = {}
        self._published: dict[QueueKey, int] = {}
        self._published_s = 0.0
        self._publishing: Future[None] | None = None
        self._has_name_server = False

    # Planning, on the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the first position of a new query."""
        if self._initial is None:
            options = self._options
            queues = self._discover(self._session, is_due=True)
            starts = resolve(
                self._session, queues, options.start, side="starting", is_strict_time=options.is_strict_time
            )
            self._initial = StreamPosition(starts, is_initial=True)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit: Spark supports only one, so this reader applies its own limits."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the end of the query to the current end of every queue."""
        queues = self._discover(self._session, is_due=True)
        self._target_ends = {name: high for name, (_, high) in self._session.offsets.bounds(queues).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """Return the end of the next batch; wait a moment if there is nothing new."""
        before = read_position(start)
        self._publish(before)
        deadline_s = time.monotonic() + _IDLE_S
        while True:
            after = self._advance(before)
            if after is not None:
                self._last_batch_s = time.monotonic()
                self._batch_ends = after.ends
                return after.to_json()
            if self._target_ends is not None or time.monotonic() > deadline_s:
                self._batch_ends = before.ends
                return start
            time.sleep(_POLL_S)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last known ends of all queues, and per topic the lag: the messages left after the batch.

        The difference between ends and positions is not the lag: a forced move leaves a gap without messages.
        """
        if not self._latest_ends:
            return None
        lag: Counter[str] = Counter()
        for name, offset in self._batch_ends.items():
            end = self._latest_ends.get(name, offset)
            lag[name[0]] += sum(
                high - low for low, high in self._session.readable_ranges(name, offset, end, skips_unknown=True)
            )
        return {"v": 1, "q": nest(self._latest_ends), "lag": dict(sorted(lag.items()))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide the batch between two positions among tasks."""
        before, after = read_position(start), read_position(end)
        for topic in {name[0] for name in after.ends if "/" not in name[1]}:
            self._session.find_queue((topic, "0"))  # loads the gaps of its queues
        return to_task_inputs(self._session, self._options, begins_of(before, after), after.ends, after.parts)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark commits a batch only after planning the next, which may never happen. See `_publish`."""

    # Reading, in tasks.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task."""
        return read_task_input(self._options, self._columns, partition)

    # Choosing the next batch.

    def _publish(self, done: StreamPosition) -> None:
        """Commit the position of the query as offsets of its group, if it has one.

        *done* is complete: Spark asks for the end after a position only once that position is in its checkpoint.
        """
        if self._options.group is None or done.is_initial:
            return
        if self._publishing is not None and not self._publishing.done():
            return  # Otherwise the older position could arrive after the newer one.
        now_s = time.monotonic()
        if done.ends != self._published or now_s - self._published_s >= _PUBLISH_S:
            session = self._session
            self._discover(session)
            closed = self._closed(session, done)
            self._publishing = session.offsets.commit(
                {session.find_queue(name): end for name, end in done.ends.items() if name not in closed}
            )
            self._published, self._published_s = done.ends, now_s

    @property
    def _session(self) -> ClusterSession:
        session = session_for(self._options)
        if not self._has_name_server:
            # Check only once: a running query waits for unavailable name servers.
            session.connection.require_name_server()
            self._has_name_server = True
        return session

    def _discover(self, session: ClusterSession, *, is_due: bool = False) -> QueuesByKey:
        """Return the queues to read; discover new ones every `_DISCOVER_S`, or now if *is_due*."""
        if is_due or time.monotonic() - self._discovered_s > _DISCOVER_S:
            try:
                found = find_queues(session, self._options)
                kept = {name: queue for name, queue in self._queues.items() if not _may_close(session, name)}
                self._queues = {**kept, **found}
            except HoldfastError:
                if not self._queues:
                    raise  # A running query continues with the known queues.
            self._discovered_s = time.monotonic()
        return self._queues

    def _closed(self, session: ClusterSession, position: StreamPosition) -> set[QueueKey]:
        """Return the queues of units that have been closed: their positions stay unchanged until the units open."""
        return {name for name in position.ends if name not in self._queues and _may_close(session, name)}

    def _advance(self, before: StreamPosition) -> StreamPosition | None:
        """Return the end of the next batch, or None if no batch is due."""
        session = self._session
        queues = self._discover(session)
        closed = self._closed(session, before)
        known_queues = {name: queues.get(name) or session.find_queue(name) for name in before.ends.keys() - closed}
        new_queues = (
            {} if before.is_initial else {name: queue for name, queue in queues.items() if name not in before.ends}
        )
        known_ends = {name: end for name, end in self._latest_ends.items() if name not in closed}
        self._latest_ends = {**known_ends, **session.offsets.ends({**known_queues, **new_queues})}
        ends = self._latest_ends if self._target_ends is None else self._target_ends
        begins = dict(before.ends) if before.is_initial else {}
        if new_queues:
            begins |= _lowest(session, new_queues)
        begins |= self._find_recreated(session, before, ends)
        starts = {**before.ends, **begins}
        available = {
            name: sum(high - low for low, high in self._available_ranges(session, name, start, ends))
            for name, start in starts.items()
        }
        if not (before.is_initial or begins) and not self._is_due(sum(available.values())):
            return None
        admitted = admit(available, self._rows_max(session, starts, available))
        batch_ends = {
            name: _skip_messages(self._available_ranges(session, name, start, ends), start, admitted[name])
            for name, start in starts.items()
        }
        if batch_ends == before.ends and not begins:
            return None
        return StreamPosition(batch_ends, begins, tasks_max(self._options))

    def _available_ranges(
        self, session: ClusterSession, name: QueueKey, start: int, ends: dict[QueueKey, int]
    ) -> list[tuple[int, int]]:
        """Return the available ranges of a queue; stop at a part that only a dead broker has, unless it may be lost."""
        skips_unknown = not self._options.fails_on_data_loss
        return session.readable_ranges(name, start, ends.get(name, start), skips_unknown=skips_unknown)

    def _find_recreated(
        self, session: ClusterSession, before: StreamPosition, ends: dict[QueueKey, int]
    ) -> dict[QueueKey, int]:
        """Return new starts for queues that end before the position of the query: their topics were recreated.

        A queue must stay shorter for a while: the broker that answers now may lag the one that answered before.
        """
        if self._target_ends is not None:
            return {}  # An earlier run may simply have read past the target.
        now_s = time.monotonic()
        shrunk = [name for name, offset in before.ends.items() if ends.get(name, offset) < offset]
        self._shrunk_since_s = {name: self._shrunk_since_s.get(name, now_s) for name in shrunk}
        confirm_s = min(_SHRINK_CONFIRM_S, session.connection.patience_s)
        lasting = [name for name in shrunk if now_s - self._shrunk_since_s[name] >= confirm_s]
        if lasting and self._options.fails_on_data_loss:
            name = lasting[0]
            raise DataLost(
                f"{name[0]}/{name[1]} was read up to {before.ends[name]} and ends at {ends[name]} now: the topic was "
                "recreated, or a broker lost its end. With failOnDataLoss=false the query reads it from its beginning"
            )
        return _lowest(session, {name: session.find_queue(name) for name in lasting})

    def _is_due(self, available: int) -> bool:
        """Return whether to begin a batch of *available* rows now."""
        if not available:
            return False
        rows_min = self._options.rows_per_trigger_min
        if rows_min is None or self._target_ends is not None or available >= rows_min:
            return True
        return time.monotonic() - self._last_batch_s >= self._options.trigger_delay_s

    def _rows_max(
        self, session: ClusterSession, starts: dict[QueueKey, int], available: dict[QueueKey, int]
    ) -> int | None:
        """Return the most rows for the batch; None for no limit. Convert a byte limit by sampling the fullest queue."""
        rows_max, bytes_max = self._options.rows_per_trigger_max, self._options.bytes_per_trigger_max
        if bytes_max is None or not any(available.values()):
            return rows_max
        fullest = max(available, key=lambda name: available[name])
        try:
            with borrow_pull_socket(session.connection.client.tls, self._options.credentials) as pull_socket:
                queue = session.find_queue(fullest)
                request = PullRequest(queue, LogicalOffset(starts[fullest]), size_max=_SAMPLE_BYTES)
                pulled = session.pulls.pull(pull_socket, request)
        except HoldfastError:
            return rows_max  # The broker is unavailable, so its rows cannot be read now either.
        count = pulled.next_offset - starts[fullest]
        if not pulled.block or count <= 0:
            return rows_max
        by_size = max(1, bytes_max * count // len(pulled.block))
        return by_size if rows_max is None else min(rows_max, by_size)


def _lowest(session: ClusterSession, queues: QueuesByKey) -> dict[QueueKey, int]:
    """Return the lowest offset of each queue whose broker answers now."""
    return {name: low for name, (low, _) in session.offsets.available_bounds(queues).items()}


def _may_close(session: ClusterSession, name: QueueKey) -> bool:
    """Return whether a queue belongs to a unit that may close and open. Own logical queues have bare numbers."""
    return session.unit is not None and "/" in name[1]


def _skip_messages(ranges: Iterable[tuple[int, int]], start: int, count: int) -> int:
    """Return the offset *count* messages after *start*, not counting gaps."""
    offset = start
    for low, high in ranges:
        if count <= 0:
            break
        offset = min(high, low + count)
        count -= offset - low
    return offset
