"""What is wanted of route push, the sums behind it, and how it is told."""

from collections import Counter
from pathlib import Path

import msgspec
from benchmarks.judgement import find_verdicts
from benchmarks.load import LoadResult
from benchmarks.measure import CellResult, Reading, summarize
from benchmarks.push_findings import (
    BrokerDeath,
    MissingLoop,
    PushFindings,
    QueryFigures,
    WaitTimes,
    WatchFigures,
    most_within,
    summarize_times,
)
from benchmarks.report import markdown
from benchmarks.results import Machine, Results, load, save
from benchmarks.route_push import WATCHED_GROUP, push_cells
from benchmarks.servers import Kind
from benchmarks.watchers import COMMON_TOPIC, TICK_TOPIC, topics_of

QUICK = WaitTimes(count=10, p50_ms=500.0, p99_ms=1000.0, max_ms=1100.0)
CALM = QueryFigures(per_s=10_000.0, p50_us=50.0, p99_us=100.0, max_us=1000.0)
DEATH = BrokerDeath(
    topics=10_000,
    clients=1_000,
    topics_each=100,
    spread_ms=5_000,
    rate_max=20_000,
    told=QUICK,
    pulled=QUICK,
    pulls=100_000,
    untold=0,
    frames_per_s=300,
    before=CALM,
    meanwhile=CALM,
)
LOOP = MissingLoop(
    seconds=65.0, poll_s=30.0, tasks=16, calls=1000, lookups_s=[0.1, 30.2, 60.3], template_lookups_s=[0.2]
)


def a_reading(figure: float) -> Reading:
    result = LoadResult(
        seconds=1.0, requests=1, requests_per_s=figure, messages_per_s=0, up_mb_per_s=0, down_mb_per_s=0, p50_us=1,
        p99_us=1, p999_us=1, max_us=1, client_cpu=0.1, total_requests=1, unanswered=0, wrong=0, refused={},
    )  # fmt: skip
    return Reading(
        figure=figure, load=result, server_cores=1, foreign_cores=0, stolen_cores=0, owed_cpu=0, rss_mb=1,
        anonymous_mb=1,
    )  # fmt: skip


def the_cells(*, ours: float = 200.0, ours_watched: float = 200.0) -> list[CellResult]:
    def result(kind: Kind, group: str) -> float:
        return 100.0 if kind == "java" else ours_watched if group == WATCHED_GROUP else ours

    return [
        CellResult(
            cell=cell,
            summaries={kind: summarize(kind, [a_reading(result(kind, cell.group))]) for kind in cell.kinds},
        )
        for cell in push_cells(1.0)
    ]


def a_watching(
    clients: int = 10_000, *, p99_ms: float = 1000.0, anonymous_mb: float = 80.0, untold: int = 0
) -> WatchFigures:
    return WatchFigures(
        clients=clients,
        topics_each=10,
        changes=12,
        told=msgspec.structs.replace(QUICK, p99_ms=p99_ms),
        pulled=QUICK,
        rested=QUICK,
        untold=untold,
        anonymous_before_mb=30.0,
        anonymous_mb=anonymous_mb,
    )


def findings(
    *watching: WatchFigures,
    own_topics_mb: float = 90.0,
    death: BrokerDeath = DEATH,
    missing: MissingLoop = LOOP,
    cells: list[CellResult] | None = None,
) -> PushFindings:
    return PushFindings(
        watching=list(watching or [a_watching()]),
        own_topics_mb=own_topics_mb,
        deaths=[death],
        missing=missing,
        cells=the_cells() if cells is None else cells,
        load=0.1,
    )


def missed(found: PushFindings) -> list[str]:
    return [target.what for target in found.targets if not target.reached]


def test_the_most_within_a_window_slides():
    """It is not the count of one full second after the other; two exactly one window apart are in two."""
    assert most_within([], 1.0) == 0
    assert most_within([3.4, 0.9, 1.1, 0.95, 1.8], 1.0) == 4
    assert most_within([0.0, 30.0, 60.0], 30.0) == 1
    assert most_within([0.0, 29.9, 60.0], 30.0) == 2


def test_times_are_told_by_their_percentiles():
    """In whatever order they come; of none there is nothing to tell."""
    times = summarize_times([float(number) for number in range(1000, 0, -1)])

    assert (times.count, times.p50_ms, times.p99_ms, times.max_ms) == (1000, 501.0, 991.0, 1000.0)
    assert summarize_times([]) == WaitTimes(count=0, p50_ms=0.0, p99_ms=0.0, max_ms=0.0)


def test_what_is_quick_and_small_enough_misses_nothing():
    """The figures of these tests are such."""
    assert missed(findings()) == []


def test_changes_must_be_told_soon_to_the_most_clients():
    """Fewer clients are there to be compared with."""
    assert missed(findings(a_watching(1, p99_ms=1501.0), a_watching(p99_ms=1499.0))) == []
    assert missed(findings(a_watching(p99_ms=1501.0))) == ["change to client, p99, 10,000 clients"]


def test_watchers_must_not_cost_much_memory():
    """All of the name server's own memory counts."""
    assert missed(findings(a_watching(anonymous_mb=100.5))) == ["RssAnon, 10,000 clients x 10 topics"]
    assert missed(findings(own_topics_mb=100.5)) == ["the same, no topic in common"]


def test_nobody_may_be_left_untold():
    """In any of the measurements: who never hears is in none of the percentiles."""
    assert missed(findings(a_watching(1, untold=1), a_watching())) == ["notices that never came"]
    assert missed(findings(death=msgspec.structs.replace(DEATH, untold=1))) == ["notices that never came"]


def test_a_dying_broker_is_told_within_the_spread_and_the_rate():
    """The longest wait counts, not a percentile of it."""
    late = msgspec.structs.replace(DEATH, told=msgspec.structs.replace(QUICK, max_ms=5001.0))
    assert missed(findings(death=late)) == ["a broker dies, 100 topics a client: longest wait"]

    burst = msgspec.structs.replace(DEATH, frames_per_s=20_001)
    assert missed(findings(death=burst)) == ["a broker dies, 100 topics a client: notices within a second"]


def test_a_missing_topic_is_asked_for_once_in_a_poll_interval():
    """Twice within any thirty seconds is too often."""
    eager = msgspec.structs.replace(LOOP, lookups_s=[0.1, 20.0, 60.0])

    assert missed(findings(missing=eager)) == ["lookups of a missing topic in a poll interval"]


def test_queries_are_compared_with_java_without_and_with_watchers():
    """Both shapes of both must be faster."""
    assert len(find_verdicts(the_cells())) == 4
    assert missed(findings(cells=the_cells(ours_watched=119.0))) == [
        f"{WATCHED_GROUP} 16x1, ours / Java",
        f"{WATCHED_GROUP} 16x16, ours / Java",
    ]
    assert len(missed(findings(cells=the_cells(ours=119.0)))) == 2


def test_every_topic_of_the_pool_is_watched_by_as_many():
    """And the common ones by all, so that a change of them concerns everybody."""
    watched = [topics_of(client, 10, 1_000) for client in range(1_000)]

    counts = Counter(topic for topics in watched for topic in topics)

    assert all(len(set(topics)) == 10 for topics in watched)
    assert counts.pop(COMMON_TOPIC) == counts.pop(TICK_TOPIC) == 1_000
    assert len(counts) == 1_000
    assert set(counts.values()) == {8}


def test_findings_are_kept_and_told(tmp_path: Path):
    """They survive the file, and the report has a row for every number of clients and a verdict for each target."""
    machine = Machine(
        processor="", cores=2, memory_gb=1, kernel="", congestion_control="", python="", libraries={}, java=""
    )
    found = findings(a_watching(1), a_watching(p99_ms=1600.0))
    results = Results(seconds=1, rounds=1, machine=machine, push=found)

    save(results, tmp_path / "results.json")
    kept = load(tmp_path / "results.json")
    text = markdown(kept)

    assert msgspec.to_builtins(kept) == msgspec.to_builtins(results)
    assert "| 10,000 | 12 | 500 ms | 1,600 ms |" in text
    assert "| change to client, p99, 10,000 clients | 1,600 ms | at most 1,500 ms | **missed** |" in text
    assert "| route query 16x16, ours / Java | 2.00 | at least 1.2 | reached |" in text
    assert "| lookups of a missing topic in a poll interval | 1 | at most 1 | reached |" in text
    assert "0.1, 30.2, 60.3 s" in text
