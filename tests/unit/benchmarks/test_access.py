"""The figures of TLS, logins and signatures, the sums they come from, and their report."""

from pathlib import Path

import msgspec
import pytest
from benchmarks.access import NO_OPENSSL, AccessBench
from benchmarks.access_findings import (
    PROTECTIONS,
    WORKS,
    AccessFigures,
    AccessFindings,
    AccessReading,
    Protection,
)
from benchmarks.load import SECRET, USER, Load, LoadResult
from benchmarks.programs import Programs
from benchmarks.report import markdown
from benchmarks.results import Machine, Results, load, save
from benchmarks.servers import Kind

# Requests per second, and processor time of the broker per request in us, round by round. The machine is half as fast
# in the second round, so that only readings of one round can be compared.
SPEEDS = (1.0, 0.5, 1.0)
ROWS: dict[tuple[Kind, Protection], tuple[float, float]] = {
    ("holdfast", "plain"): (100_000, 10.0),
    ("holdfast", "again"): (101_000, 10.0),
    ("holdfast", "login"): (98_000, 10.2),
    ("holdfast", "signed"): (60_000, 17.0),
    ("holdfast", "tls"): (80_000, 14.0),
    ("java", "plain"): (40_000, 40.0),
    ("java", "signed"): (30_000, 60.0),
    ("java", "tls"): (30_000, 55.0),
}


def a_reading(rate: float, cost_us: float) -> AccessReading:
    """10 000 requests, of which 100 were not answered."""
    result = LoadResult(
        seconds=1.0, requests=1, requests_per_s=rate, messages_per_s=rate, up_mb_per_s=1, down_mb_per_s=0, p50_us=500,
        p99_us=2000, p999_us=1, max_us=1, client_cpu=0.25, total_requests=10_000, unanswered=100, wrong=0,
        refused={"2": 3} if cost_us == 55.0 else {},
    )  # fmt: skip
    return AccessReading(load=result, broker_s=cost_us * 9_900 / 1e6, foreign_cores=0.1)


def findings(changed: dict[tuple[Kind, Protection], tuple[float, float]] | None = None) -> AccessFindings:
    """Return the figures of three rounds: *changed* rows differ from the good ones."""
    rows = ROWS | (changed or {})
    figures = [
        AccessFigures(
            kind=kind,
            protection=protection,
            work=work,
            readings=[
                a_reading(rows[kind, protection][0] * speed, rows[kind, protection][1] / speed) for speed in SPEEDS
            ],
        )
        for work in WORKS
        for kind, protections in PROTECTIONS.items()
        for protection in protections
    ]
    return AccessFindings(figures=figures, seconds=5, load=0.5)


def test_a_request_costs_the_processor_time_of_its_broker_over_the_answered_requests() -> None:
    """A request without an answer is not counted."""
    assert a_reading(1000, 12.5).cost_us == pytest.approx(12.5)


def test_protections_are_compared_with_plain_traffic_of_the_same_round() -> None:
    """A round on a slow machine does not change shares; each added cost is that of its round."""
    fast, slow = a_reading(100, 10), a_reading(50, 20)
    signed = (a_reading(80, 15), a_reading(40, 30), a_reading(45, 26))
    rows = [("plain", (fast, slow, slow)), ("signed", signed)]
    found = AccessFindings(
        figures=[
            AccessFigures(kind="holdfast", protection=protection, work="send", readings=list(readings))  # type: ignore[arg-type]
            for protection, readings in rows
        ],
        seconds=1,
        load=0,
    )

    assert found.rate_share("holdfast", "signed", "send") == pytest.approx(0.8)
    assert found.cost_share("holdfast", "signed", "send") == pytest.approx(1.5)
    assert found.added_us("holdfast", "signed", "send") == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("row", "figures", "missed"),
    [
        (("holdfast", "plain"), ROWS["holdfast", "plain"], []),
        (("holdfast", "login"), (96_000, 10.2), ["rate with a login, as a share of plain"]),
        (("holdfast", "login"), (98_000, 10.4), ["processor time with a login, as a share of plain"]),
        (("holdfast", "signed"), (60_000, 18.5), ["processor time of a signature"]),
        (("holdfast", "tls"), (70_000, 14.0), ["ours / Java with TLS, as a share of ours / Java plain"]),
        (("java", "tls"), (39_000, 41.0), ["ours / Java with TLS, as a share of ours / Java plain"]),
    ],
)
def test_a_target_is_missed_only_by_its_own_figure(
    row: tuple[Kind, Protection], figures: tuple[float, float], missed: list[str]
) -> None:
    """3 % for a login, 8 us for a signature, and with TLS the ratio to Java that plain traffic has."""
    targets = findings({row: figures}).targets

    assert len(targets) == 8
    assert [each.what for each in targets if not each.reached] == [
        f"{work}: {text}" for work in WORKS for text in missed
    ]


def test_findings_are_kept_and_reported(tmp_path: Path) -> None:
    """They survive the file, and the report has every table."""
    machine = Machine(
        processor="", cores=2, memory_gb=1, kernel="", congestion_control="", python="", libraries={}, java=""
    )
    results = Results(seconds=1, rounds=1, machine=machine, access=findings())

    save(results, tmp_path / "results.json")
    kept = load(tmp_path / "results.json")
    text = markdown(kept)

    assert msgspec.to_builtins(kept) == msgspec.to_builtins(results)
    assert "Medians of 3 rounds of 5 s" in text
    assert "| send 1 KiB, 16x16, login | 98.0 k ±25% |  |  | 0.980 |  | 500 us |  | 2.0 ms |  |" in text
    assert "| pull of 32, 16x4, TLS | 80.0 k ±25% | 30.0 k ±25% | 2.67 | 0.800 | 0.750 |" in text
    assert "| send 1 KiB, 16x16, plain, a second broker (A/A) | 101.0 k ±25% |  |  | 1.010 |  |" in text
    assert "| send 1 KiB, 16x16, signature, ours | 17.0 | +7.0 us | 1.700 | 0.25 | 0.10 |  |" in text
    assert "| pull of 32, 16x4, TLS, Java | 55.0 | +15.0 us | 1.375 | 0.25 | 0.10 | 6 x code 2 |" in text
    assert "| send: processor time of a signature | 7.00 us | at most 8 us | reached |" in text


class _NoFleet:
    """Starts nothing: any use of it is an error."""


def test_a_generator_without_openssl_skips_the_part_with_one_line(tmp_path: Path) -> None:
    """The line names the package to install; no server is started."""
    lines: list[str] = []
    nothing = tmp_path / "nothing"
    programs = Programs(loadgen=nothing, sink=nothing, limits=nothing, has_openssl=False)
    bench = AccessBench(_NoFleet(), programs, tmp_path / "access", lines.append)  # type: ignore[arg-type]

    assert bench.measure() is None
    assert lines == [f"   {NO_OPENSSL}"]
    assert "libssl-dev" in NO_OPENSSL


def test_only_loads_with_access_control_name_a_user() -> None:
    """The generator gets its user and its secret with how to use them."""
    user = {f"user={USER}", f"secret={SECRET}"}

    assert user.isdisjoint(Load(mode="send", tls=1).arguments(1))
    assert user | {"auth=sign"} <= set(Load(mode="send", auth="sign").arguments(1))
