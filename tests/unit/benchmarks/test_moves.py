"""What is wanted of moves, and how it is told."""

from pathlib import Path

import msgspec
import pytest
from benchmarks.move_ledger import MoveTotals, Phase
from benchmarks.moves import Client, MoveFindings, Trial
from benchmarks.report import markdown
from benchmarks.results import Machine, Results, load, save
from benchmarks.servers import Kind
from benchmarks.static_cost import Cost

CALM = Phase(seconds=1.0, messages_per_s=1000.0, p50_us=100.0, p99_us=200.0, longest_pause_ms=1.0)


def a_trial(
    servers: Kind = "holdfast",
    client: Client = "holdfast",
    *,
    pause_ms: float = 10.0,
    command_s: float = 1.0,
    lost: int = 0,
) -> Trial:
    account = MoveTotals(
        phases=dict.fromkeys(("before", "during", "after"), CALM),
        commands_s=[command_s],
        moved=4,
        pauses_ms=[pause_ms],
        first_s=[0.5],
        last_s=[0.6],
        acknowledged=1000,
        reasons={},
        lost=lost,
        repeated=0,
        out_of_order=0,
        holes=0,
    )  # fmt: skip
    return Trial(servers=servers, client=client, account=account)


def findings(*trials: Trial, drain: Trial | None = None, static_ns: float = 1000.0) -> MoveFindings:
    cost = Cost(work="send", unit="message", normal_ns=1000.0, static_ns=static_ns, ratio=static_ns / 1000)
    return MoveFindings(trials=list(trials), drain=drain or a_trial(), costs=[cost])


def missed(found: MoveFindings) -> list[str]:
    return [target.what for target in found.targets if not target.reached]


@pytest.mark.parametrize(("client", "pause_ms"), [("holdfast", 101.0), ("java", 1001.0)])
def test_each_client_has_a_longest_pause(client: Client, pause_ms: float) -> None:
    """A Java client may be stopped for longer than ours, and neither for longer than that."""
    assert missed(findings(a_trial(client=client, pause_ms=pause_ms - 2))) == []
    assert missed(findings(a_trial(client=client, pause_ms=pause_ms))) == [f"pause p99, {client} client"]


def test_nothing_is_wanted_of_java_servers() -> None:
    """They are there to be compared with."""
    assert missed(findings(a_trial("java", "java", pause_ms=15_000, lost=9))) == []


def test_whatever_goes_wrong_misses_a_target() -> None:
    """A lost message, a slow drain and a static topic that costs too much are each told."""
    assert missed(findings(a_trial(lost=1))) == ["failed, lost, repeated, late, holes: holdfast client"]
    assert missed(findings(drain=a_trial(command_s=31.0))) == ["1,000 queues off a broker"]
    assert missed(findings(static_ns=1051.0)) == ["static / normal, send"]


def test_findings_are_kept_and_told(tmp_path: Path) -> None:
    """They survive the file, and the report has a column for every cluster and client."""
    machine = Machine(
        processor="", cores=2, memory_gb=1, kernel="", congestion_control="", python="", libraries={}, java=""
    )
    results = Results(seconds=1, rounds=1, machine=machine, moves=findings(a_trial(), a_trial("java", "java")))

    save(results, tmp_path / "results.json")
    kept = load(tmp_path / "results.json")

    assert msgspec.to_builtins(kept) == msgspec.to_builtins(results)
    assert "| our servers, our client | Java servers, Java client | drain, 1,000 queues |" in markdown(kept)
