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

from holdfast.bulk.cluster_session import Link, link_to
from holdfast.bulk.pull_socket import a_line
from holdfast.bulk.queue_pulls import Question
from holdfast.bulk.queue_selection import Queues, find_queues, resolve
from holdfast.bulk.read_options import DEFAULT_GROUP, Queue
from holdfast.bulk.task_reader import DataLost
from holdfast.model.errors import HoldfastError
from holdfast.spark.batch_reader import parts_of, read_share, to_shares
from holdfast.spark.offsets import Position, begins_of, nest, read_position
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
_BELIEVE_S: Final = 30.0


class HoldfastStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of one streaming query."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._initial: Position | None = None
        self._target: dict[Queue, int] | None = None
        self._queues: Queues = {}
        self._discovered_s = 0.0
        self._latest: dict[Queue, int] = {}
        self._reached: dict[Queue, int] = {}  # the end of the batch last returned to Spark
        self._batch_s = time.monotonic()
        self._shrunk_s: dict[Queue, float] = {}
        self._published: dict[Queue, int] = {}
        self._published_s = 0.0
        self._publishing: Future[None] | None = None
        self._has_contact = False

    # Planning, on the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the first position of a new query."""
        if self._initial is None:
            options = self._options
            queues = self._discover(self._link, is_due=True)
            starts = resolve(self._link, queues, options.start, which="starting", is_strict_time=options.is_strict_time)
            self._initial = Position(starts, is_initial=True)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit: Spark supports only one, so this reader applies its own limits."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the end of the query to the current end of every queue."""
        queues = self._discover(self._link, is_due=True)
        self._target = {name: high for name, (_, high) in self._link.bounds(queues).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """Return the end of the next batch; wait a moment if there is nothing new."""
        before = read_position(start)
        self._publish(before)
        deadline_s = time.monotonic() + _IDLE_S
        while True:
            after = self._advance(before)
            if after is not None:
                self._batch_s = time.monotonic()
                self._reached = after.ends
                return after.to_json()
            if self._target is not None or time.monotonic() > deadline_s:
                self._reached = before.ends
                return start
            time.sleep(_POLL_S)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last known ends of all queues, and per topic the lag: the messages left after the batch.

        The difference between ends and positions is not the lag: a forced move leaves a gap without messages.
        """
        if not self._latest:
            return None
        lag: Counter[str] = Counter()
        for name, offset in self._reached.items():
            end = self._latest.get(name, offset)
            lag[name[0]] += sum(high - low for low, high in self._link.held(name, offset, end, skips_unknown=True))
        return {"v": 1, "q": nest(self._latest), "lag": dict(sorted(lag.items()))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide the batch between two positions among tasks."""
        before, after = read_position(start), read_position(end)
        for topic in {name[0] for name in after.ends if "/" not in name[1]}:
            self._link.find_queue((topic, "0"))  # loads the gaps of its queues
        return to_shares(self._link, self._options, begins_of(before, after), after.ends, after.parts)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark commits a batch only after planning the next, which may never happen. See `_publish`."""

    # Reading, in tasks.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task."""
        return read_share(self._options, self._columns, partition)

    # Choosing the next batch.

    def _publish(self, done: Position) -> None:
        """Commit the position of the query as offsets of its group, if it has one.

        *done* is complete: Spark asks for the end after a position only once that position is in its checkpoint.
        """
        if self._options.group is None or done.is_initial:
            return
        if self._publishing is not None and not self._publishing.done():
            return  # Otherwise the older position could arrive after the newer one.
        now_s = time.monotonic()
        if done.ends != self._published or now_s - self._published_s >= _PUBLISH_S:
            link = self._link
            self._discover(link)
            closed = self._closed(link, done)
            self._publishing = link.commit({name: end for name, end in done.ends.items() if name not in closed})
            self._published, self._published_s = done.ends, now_s

    @property
    def _link(self) -> Link:
        options = self._options
        link = link_to(options.namesrv, options.group or DEFAULT_GROUP, options.patience_s, options.unit)
        if not self._has_contact:
            link.require_name_server()  # Check only once: a running query waits for unavailable name servers.
            self._has_contact = True
        return link

    def _discover(self, link: Link, *, is_due: bool = False) -> Queues:
        """Return the queues to read; discover new ones every `_DISCOVER_S`, or now if *is_due*."""
        if is_due or time.monotonic() - self._discovered_s > _DISCOVER_S:
            try:
                found = find_queues(link, self._options)
                kept = {name: queue for name, queue in self._queues.items() if not _may_close(link, name)}
                self._queues = {**kept, **found}
            except HoldfastError:
                if not self._queues:
                    raise  # A running query continues with the known queues.
            self._discovered_s = time.monotonic()
        return self._queues

    def _closed(self, link: Link, position: Position) -> set[Queue]:
        """Return the queues of units that have been closed: their positions stay unchanged until the units open."""
        return {name for name in position.ends if name not in self._queues and _may_close(link, name)}

    def _advance(self, before: Position) -> Position | None:
        """Return the end of the next batch, or None if no batch is due."""
        link = self._link
        queues = self._discover(link)
        closed = self._closed(link, before)
        known = {name: queues.get(name) or link.find_queue(name) for name in before.ends.keys() - closed}
        new = {} if before.is_initial else {name: queue for name, queue in queues.items() if name not in before.ends}
        seen = {name: end for name, end in self._latest.items() if name not in closed}
        self._latest = {**seen, **link.ends({**known, **new})}
        ends = self._latest if self._target is None else self._target
        begins = dict(before.ends) if before.is_initial else {}
        begins |= {name: low for name, (low, _) in link.known_bounds(new).items()} if new else {}
        begins |= self._reset(link, before, ends)
        starts = {**before.ends, **begins}
        available = {
            name: sum(high - low for low, high in self._held(link, name, start, ends)) for name, start in starts.items()
        }
        if not (before.is_initial or begins) and not self._is_due(sum(available.values())):
            return None
        admitted = admit(available, self._rows_max(link, starts, available))
        reached = {
            name: _walk(self._held(link, name, start, ends), start, admitted[name]) for name, start in starts.items()
        }
        if reached == before.ends and not begins:
            return None
        return Position(reached, begins, parts_of(self._options))

    def _held(self, link: Link, name: Queue, start: int, ends: dict[Queue, int]) -> list[tuple[int, int]]:
        """Return the available ranges of a queue; stop at a part that only a dead broker has, unless it may be lost."""
        skips = not self._options.fails_on_data_loss
        return link.held(name, start, ends.get(name, start), skips_unknown=skips)

    def _reset(self, link: Link, before: Position, ends: dict[Queue, int]) -> dict[Queue, int]:
        """Return new starts for queues that end before the position of the query: their topics were recreated.

        A queue must stay shorter for a while: the broker that answers now may lag the one that answered before.
        """
        if self._target is not None:
            return {}  # An earlier run may simply have read past the target.
        now_s = time.monotonic()
        shrunk = [name for name, offset in before.ends.items() if ends.get(name, offset) < offset]
        self._shrunk_s = {name: self._shrunk_s.get(name, now_s) for name in shrunk}
        lasting = [name for name in shrunk if now_s - self._shrunk_s[name] >= min(_BELIEVE_S, link.patience_s)]
        if lasting and self._options.fails_on_data_loss:
            name = lasting[0]
            raise DataLost(
                f"{name[0]}/{name[1]} was read up to {before.ends[name]} and ends at {ends[name]} now: the topic was "
                "recreated, or a broker lost its end. With failOnDataLoss=false the query reads it from its beginning"
            )
        return {name: low for name, (low, _) in link.known_bounds({n: link.find_queue(n) for n in lasting}).items()}

    def _is_due(self, available: int) -> bool:
        """Return whether to begin a batch of *available* rows now."""
        if not available:
            return False
        least = self._options.rows_per_trigger_min
        if least is None or self._target is not None or available >= least:
            return True
        return time.monotonic() - self._batch_s >= self._options.trigger_delay_s

    def _rows_max(self, link: Link, starts: dict[Queue, int], available: dict[Queue, int]) -> int | None:
        """Return the most rows for the batch; None for no limit. Convert a byte limit by sampling the fullest queue."""
        most, bytes_max = self._options.rows_per_trigger_max, self._options.bytes_per_trigger_max
        if bytes_max is None or not any(available.values()):
            return most
        fullest = max(available, key=lambda name: available[name])
        try:
            with a_line() as line:
                queue = link.find_queue(fullest)
                pulled = link.pull(line, Question(queue, starts[fullest], size_max=_SAMPLE_BYTES))
        except HoldfastError:
            return most  # The broker is unavailable, so its rows cannot be read now either.
        count = pulled.next_offset - starts[fullest]
        if not pulled.block or count <= 0:
            return most
        by_size = max(1, bytes_max * count // len(pulled.block))
        return by_size if most is None else min(most, by_size)


def _may_close(link: Link, name: Queue) -> bool:
    """Return whether a queue belongs to a unit that may close and open. Own logical queues have bare numbers."""
    return link.has_unit and "/" in name[1]


def _walk(held: Iterable[tuple[int, int]], start: int, count: int) -> int:
    """Return the offset *count* messages after *start*, not counting gaps."""
    at = start
    for low, high in held:
        if count <= 0:
            break
        at = min(high, low + count)
        count -= at - low
    return at
