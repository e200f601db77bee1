"""`stats`: counts the stored messages by topic, queue and time, with sizes, latencies, and the hot keys and tags.

    range ─ `counts.count_range` ─ sums by queue, by topic and time, the most frequent keys and tags
    driver ─ adds them up

A task drops keys and tags that are not among its most frequent. So the count of a hot key or tag may be too low, by at
most the error bound reported with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from holdfast.admin.tables import Cell, Table, left, right, size_text, spare, time_text, whole
from holdfast.pipeline.reports.report import JobReport, Plot
from holdfast.pipeline.scan.log_ranges import LogRange, choose_size, split_log
from holdfast.pipeline.scan.store_folder import StoreFolder, inspect_stores
from holdfast.pipeline.scan.tasks import ShowProgress, Tasks, no_progress, run_ranges
from holdfast.pipeline.stats.counts import Count, RangeStats, count_range
from holdfast.pipeline.stats.histogram import Histogram, add, by_power, quantile

_STEPS_MAX: Final = 96
_STEPS_MS: Final = tuple(
    1000 * seconds for seconds in (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400)
)
_PLOTTED_MAX: Final = 6
_SHOWN_MAX: Final = 50


class QueueStats(msgspec.Struct, kw_only=True):
    """The totals of one physical queue. Times are in milliseconds, sizes in bytes.

    Attributes:
        size: Bytes of log.
        body_size: Bytes of bodies, as stored.
        late: Histogram of the times from born to stored.
        sizes: Histogram of body sizes.
        skewed: Messages with a born time after their store time, because the clocks of two machines differ.
    """

    broker: str
    topic: str
    queue: int
    messages: int = 0
    records: int = 0
    size: int = 0
    body_size: int = 0
    first_ms: int = 0
    last_ms: int = 0
    skewed: int = 0
    late: Histogram = {}
    sizes: Histogram = {}


class HotText(msgspec.Struct, frozen=True):
    """A frequent key or tag; its real count is at most *missed_max* higher."""

    topic: str
    text: str
    count: int
    missed_max: int


class Stats(msgspec.Struct, kw_only=True):
    """The result of a run.

    Attributes:
        step_ms: The length of a time step.
        times: Messages and bytes of log, by topic and start of a time step.
        bad: Bytes of log that are not a record.
    """

    queues: list[QueueStats]
    step_ms: int
    times: dict[str, dict[int, Count]]
    keys: list[HotText]
    tags: list[HotText]
    bad: int
    size: int
    seconds: float


def stats(
    tasks: Tasks,
    stores: Sequence[str],
    *,
    range_size: int | None = None,
    hot_max: int = 20,
    show: ShowProgress = no_progress,
) -> Stats:
    """Count the messages in the stores of one broker, or of all brokers of a cluster.

    Args:
        tasks: Runs the tasks; its workers must see the folders under the same paths.
        stores: Folders, or `name=folder`.
        range_size: Bytes of log per task; by default chosen from the number of cores.
        hot_max: The number of keys, and of tags, to report.
        show: Shows the progress.

    Raises:
        ConfigError: a folder is not a store, or two folders belong to the same broker name.
        TaskFailed: a task failed.
    """
    began_s = time.monotonic()
    folders = inspect_stores(stores)
    step_ms = _choose_step(folders)

    def work(log_range: LogRange) -> RangeStats:
        return count_range(folders[log_range.store], log_range, step_ms)

    size = range_size or choose_size(folders, tasks.cores)
    ranges = [each for number, folder in enumerate(folders) for each in split_log(folder, number, size=size)]
    results = run_ranges(tasks, work, ranges, RangeStats, size=size, show=show)
    return Stats(
        queues=_add_queues(folders, results),
        step_ms=step_ms,
        times=_add_times(results),
        keys=_add_hot(((each.keys, each.keys_missed) for each in results), hot_max),
        tags=_add_hot(((each.tags, each.tags_missed) for each in results), hot_max),
        bad=sum(each.bad for each in results),
        size=sum(each.size for each in results),
        seconds=time.monotonic() - began_s,
    )


def _choose_step(folders: list[StoreFolder]) -> int:
    """Return the shortest time step with fewer than `_STEPS_MAX` steps between the first record and the last."""
    first = min((folder.first_ms for folder in folders if folder.first_ms), default=0)
    span = max((folder.last_ms for folder in folders), default=0) - first
    return next((step for step in _STEPS_MS if span // step < _STEPS_MAX), _STEPS_MS[-1])


def _add_queues(folders: list[StoreFolder], results: list[RangeStats]) -> list[QueueStats]:
    found: dict[tuple[int, str, int], QueueStats] = {}
    for part in results:
        for each in part.queues:
            key = (part.range.store, each.topic, each.queue_id)
            if key not in found:
                broker = folders[part.range.store].broker
                found[key] = QueueStats(
                    broker=broker, topic=each.topic, queue=each.queue_id, first_ms=each.first_ms, last_ms=each.last_ms
                )
            sums = found[key]
            sums.messages += each.messages
            sums.records += each.records
            sums.size += each.size
            sums.body_size += each.body_size
            sums.skewed += each.skewed
            sums.first_ms, sums.last_ms = min(sums.first_ms, each.first_ms), max(sums.last_ms, each.last_ms)
            add(sums.late, each.late)
            add(sums.sizes, each.sizes)
    return [found[key] for key in sorted(found)]


def _add_times(results: list[RangeStats]) -> dict[str, dict[int, Count]]:
    found: dict[str, dict[int, Count]] = {}
    for part in results:
        for topic, steps in part.times.items():
            sums = found.setdefault(topic, {})
            for step, (messages, size) in steps.items():
                known = sums.get(step, (0, 0))
                sums[step] = (known[0] + messages, known[1] + size)
    return {topic: dict(sorted(steps.items())) for topic, steps in sorted(found.items())}


def _add_hot(parts: Iterable[tuple[dict[str, dict[str, int]], dict[str, int]]], limit: int) -> list[HotText]:
    counts: dict[tuple[str, str], int] = {}
    missed: dict[str, int] = {}
    for part, part_missed in parts:
        for topic, texts in part.items():
            for text, occurrences in texts.items():
                counts[topic, text] = counts.get((topic, text), 0) + occurrences
        for topic, occurrences in part_missed.items():
            missed[topic] = missed.get(topic, 0) + occurrences
    first = sorted(counts.items(), key=lambda found: (-found[1], found[0]))[:limit]
    return [HotText(topic, text, occurrences, missed.get(topic, 0)) for (topic, text), occurrences in first]


def to_report(result: Stats) -> JobReport:
    """Return the human-readable report of a run."""
    topics = _by_topic(result.queues)
    facts: list[tuple[str, Cell]] = [
        ("messages", sum(each.messages for each in result.queues)),
        ("records", sum(each.records for each in result.queues)),
        ("log", size_text(result.size)),
        ("topics", len(topics)),
        ("queues", len(result.queues)),
        ("seconds", round(result.seconds, 1)),
    ]
    columns = [
        *right("MESSAGES"),
        *spare(4, right("RECORDS")),
        *right("LOG"),
        *spare(2, right("BODY P50", "BODY P99")),
        *spare(3, right("LATE P50", "LATE P99")),
        *spare(5, whole("FIRST", "LAST")),
    ]
    tables = [
        Table([*left("TOPIC"), *columns], [(each.topic, *_cells(each)) for each in topics], title="Topics"),
        Table(
            [*left("BROKER", "TOPIC"), *right("QUEUE"), *columns],
            [(each.broker, each.topic, each.queue, *_cells(each)) for each in _largest(result.queues)],
            title="Queues, the largest first",
        ),
        _hot_table("Keys", result.keys),
        _hot_table("Tags", result.tags),
    ]
    notes = [f"{size_text(result.bad)} of log are not records: run an audit"] if result.bad else []
    skewed = sum(each.skewed for each in result.queues)
    if skewed:
        notes.append(
            f"{skewed} messages were born after they were stored, by their senders' clocks: they count as 0 ms late"
        )
    return JobReport("Stored messages", facts, tables, _plots(result, topics), notes)


def _by_topic(queues: list[QueueStats]) -> list[QueueStats]:
    found: dict[str, QueueStats] = {}
    for each in queues:
        sums = found.get(each.topic)
        if sums is None:
            sums = found[each.topic] = QueueStats(
                broker="", topic=each.topic, queue=-1, first_ms=each.first_ms, last_ms=each.last_ms
            )
        sums.messages += each.messages
        sums.records += each.records
        sums.size += each.size
        sums.first_ms, sums.last_ms = min(sums.first_ms, each.first_ms), max(sums.last_ms, each.last_ms)
        add(sums.late, each.late)
        add(sums.sizes, each.sizes)
    return _largest(list(found.values()))


def _largest(queues: list[QueueStats]) -> list[QueueStats]:
    return sorted(queues, key=lambda each: (-each.size, each.broker, each.topic, each.queue))[:_SHOWN_MAX]


def _cells(each: QueueStats) -> tuple[Cell, ...]:
    sizes = (quantile(each.sizes, share) for share in (0.5, 0.99))
    late = (quantile(each.late, share) for share in (0.5, 0.99))
    return (
        each.messages,
        each.records,
        size_text(each.size),
        *(None if size is None else size_text(size) for size in sizes),
        *(None if ms is None else f"{ms} ms" for ms in late),
        time_text(each.first_ms),
        time_text(each.last_ms),
    )


def _hot_table(title: str, hot: list[HotText]) -> Table:
    rows = [(each.topic, each.text, each.count, each.missed_max or None) for each in hot]
    columns = [*left("TOPIC", title.upper().removesuffix("S")), *right("MESSAGES", "OR MORE BY")]
    return Table(columns, rows, title=f"{title}, the most frequent", empty="no message has one")


def _plots(result: Stats, topics: list[QueueStats]) -> list[Plot]:
    shown = [each.topic for each in topics[:_PLOTTED_MAX]]
    known_steps = sorted({step for steps in result.times.values() for step in steps})
    steps = list(range(known_steps[0], known_steps[-1] + 1, result.step_ms)) if known_steps else []
    labels = [_label(step, result.step_ms) for step in steps]
    late, sizes = _total(topics, "late"), _total(topics, "sizes")
    plots = [
        Plot(f"Messages in {_step_text(result.step_ms)}", labels, _series(result, shown, steps, 0), kind="lines"),
        Plot(f"Log in {_step_text(result.step_ms)}", labels, _series(result, shown, steps, 1), "B", kind="lines"),
        _histogram("From born to stored, ms or more", [str(low) for low, _ in late], [n for _, n in late]),
        _histogram("Sizes of bodies, or more", [size_text(low) for low, _ in sizes], [n for _, n in sizes]),
    ]
    if result.keys:
        names = [each.text for each in result.keys]
        plots.append(Plot("Most frequent keys", names, {"messages": [each.count for each in result.keys]}))
    return plots


def _histogram(title: str, lows: list[str], counts: list[int]) -> Plot:
    return Plot(title, lows, {"messages": counts}, kind="histogram")


def _series(result: Stats, shown: list[str], steps: list[int], column: int) -> dict[str, Sequence[float]]:
    series: dict[str, Sequence[float]] = {
        topic: [result.times.get(topic, {}).get(step, (0, 0))[column] for step in steps] for topic in shown
    }
    other_topics = [topic for topic in result.times if topic not in shown]
    if other_topics:
        series["others"] = [
            sum(result.times[topic].get(step, (0, 0))[column] for topic in other_topics) for step in steps
        ]
    return series


def _total(topics: list[QueueStats], name: str) -> list[tuple[int, int]]:
    total: Histogram = {}
    for each in topics:
        add(total, getattr(each, name))
    return by_power(total)


def _label(step_ms: int, width_ms: int) -> str:
    shown = datetime.fromtimestamp(step_ms / 1000, UTC)
    return shown.strftime("%m-%d %H:%M" if width_ms >= 60_000 else "%H:%M:%S")


def _step_text(step_ms: int) -> str:
    seconds = step_ms // 1000
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"
