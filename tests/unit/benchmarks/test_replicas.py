"""What is kept of loads with replicas, the sums behind it, and how it is told."""

from pathlib import Path

import msgspec
from benchmarks.load import LoadResult
from benchmarks.replica_findings import (
    REPLICATIONS,
    OpeningStats,
    OpeningTimes,
    PairFigures,
    PairReading,
    Reader,
    ReplicaFindings,
    Replication,
)
from benchmarks.report import markdown
from benchmarks.results import Machine, Results, load, save
from benchmarks.servers import Kind

RATES: dict[tuple[Kind, Replication], tuple[float, ...]] = {
    ("holdfast", "none"): (90_000.0, 100_000.0, 110_000.0),
    ("holdfast", "async"): (80_000.0,),
    ("holdfast", "sync"): (50_000.0,),
    ("java", "none"): (40_000.0,),
    ("java", "async"): (36_000.0,),
    ("java", "sync"): (10_000.0,),
}


def a_reading(rate: float, *, has_replica: bool) -> PairReading:
    result = LoadResult(
        seconds=1.0, requests=1, requests_per_s=rate, messages_per_s=rate, up_mb_per_s=1, down_mb_per_s=0, p50_us=500,
        p99_us=2000, p999_us=1, max_us=1, client_cpu=0.1, total_requests=1, unanswered=0, wrong=0,
        refused={"12": 3} if rate == 10_000.0 else {},
    )  # fmt: skip
    return PairReading(
        load=result,
        master_cores=0.8,
        replica_cores=0.4 if has_replica else 0.0,
        foreign_cores=0.1,
        most_behind_bytes=3_000_000 if has_replica else 0,
        behind_bytes=1_500_000 if has_replica else 0,
        caught_up_s=0.02 if has_replica else 0.0,
    )


def openings(reader: Reader, *firsts: float) -> OpeningStats:
    return OpeningStats(
        reader=reader, queues=50, openings=[OpeningTimes(ended_s=0.7, first_s=first) for first in firsts]
    )  # fmt: skip


def findings(replica_first_s: float = 1.0) -> ReplicaFindings:
    figures = [
        PairFigures(
            kind=kind,
            replication=replication,
            shape="16x16",
            readings=[a_reading(rate, has_replica=replication != "none") for rate in RATES[kind, replication]],
        )
        for kind in ("holdfast", "java")
        for replication in REPLICATIONS
    ]
    return ReplicaFindings(
        figures=figures,
        openings=[openings("master", 0.6, 0.9, 5.0), openings("replica", replica_first_s)],
        load=0.1,
    )


def test_a_replica_costs_what_its_master_loses_of_its_rate():
    """Beside the same broker without one; medians of the readings."""
    found = findings()

    assert found.rate_share("holdfast", "async", "16x16") == 0.8
    assert found.rate_share("java", "sync", "16x16") == 0.25
    assert found.find("holdfast", "none", "16x16").spread == 0.2


def test_consumers_are_to_be_told_of_an_opening_within_a_second():
    """From the end of the command, which has to be started first; a message that came sooner counts as none."""
    assert [target.reached for target in findings().targets] == [True, True]
    assert [target.reached for target in findings(replica_first_s=1.8).targets] == [True, False]
    assert openings("master", 0.2).delay_after_command_s < 0
    assert ReplicaFindings(figures=[], openings=[openings("master", 0.2)], load=0).targets[0].measured == 0


def test_findings_are_kept_and_told(tmp_path: Path):
    """They survive the file, and the report has every table."""
    machine = Machine(
        processor="", cores=2, memory_gb=1, kernel="", congestion_control="", python="", libraries={}, java=""
    )
    results = Results(seconds=1, rounds=1, machine=machine, replicas=findings())

    save(results, tmp_path / "results.json")
    kept = load(tmp_path / "results.json")
    text = markdown(kept)

    assert msgspec.to_builtins(kept) == msgspec.to_builtins(results)
    assert "| 16x16, no replica | 100.0 k ±10% | 40.0 k ±0% | 2.50 |  |  | 500 us | 500 us | 2.0 ms | 2.0 ms |" in text
    assert "| 16x16, asynchronous | 80.0 k ±0% | 36.0 k ±0% | 2.22 | 0.80 | 0.90 |" in text
    assert "| 16x16, no replica, ours | 0.80 |  | 8.0 |  |  |  |  | 0.10 |  |" in text
    assert "| 0.80 | 0.40 | 80.0 | 40.0 | 3.00 MB | 1.50 MB | 20 ms | 0.10 | 3 x code 12 |" in text
    assert "| its broker, 50 queues | 3 | 0.90 s | 0.60 s | 5.00 s | 0.70 s |" in text
