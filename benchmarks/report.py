"""The results as Markdown tables, beside their targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks import idle, recovery
from benchmarks.access_report import access_sections
from benchmarks.batch_report import batch_sections
from benchmarks.judgement import Baseline, Verdict, best_java_pull
from benchmarks.measure import OWED_MIN, CellResult, Summary
from benchmarks.moves import MANY, MoveFindings, Trial
from benchmarks.pipeline_report import pipeline_sections
from benchmarks.push_report import push_sections
from benchmarks.replica_report import replica_sections
from benchmarks.results import Growth, Results
from benchmarks.spark_report import spark_sections
from benchmarks.tables import Row, microseconds, number, table

LIMITS = {
    "round_trips_one_core_per_s": ("round trips, 1400 B and back 200 B, both ends on one core", "/s"),
    "round_trips_two_cores_per_s": ("the same on two cores", "/s"),
    "loopback_1mib_mb_per_s": ("loopback, writes of 1 MiB", "MB/s"),
    "loopback_64kib_mb_per_s": ("loopback, writes of 64 KiB", "MB/s"),
    "write_1mib_mb_per_s": ("file, writes of 1 MiB, page cache", "MB/s"),
    "write_1mib_synced_mb_per_s": ("the same 1 GiB, synced at the end", "MB/s"),
    "write_110kib_mb_per_s": ("file, writes of 110 KiB, page cache", "MB/s"),
    "write_1200b_mb_per_s": ("file, writes of 1.2 KB, page cache", "MB/s"),
    "fdatasync_per_s": ("appends of 4 KiB, each with fdatasync", "/s"),
    "fdatasync_p50_us": ("one of them, p50", "us"),
    "fdatasync_p99_us": ("one of them, p99", "us"),
}


def markdown(results: Results) -> str:
    """Return the whole report."""
    parts = ["# Benchmark results", _head(results)]
    if results.cells:
        parts += ["## Ours beside Java 5.5.0 and the bare path", _cells(results)]
        parts += ["## Targets", _verdicts(results)]
        parts += ["## What the servers cost", _costs(results.cells)]
        parts += ["## Is the load generator the limit?", _generator(results)]
    if results.limits:
        parts += ["## Limits of the machine", _limits(results)]
    if results.cold:
        parts += ["## First burst at a cold broker (4x256)", _cold(results)]
    if results.growth:
        parts += ["## Growth", _growth_head(results), *(_growth(growth) for growth in results.growth)]
    if results.idle or results.recovery:
        parts += ["## Idle and recovery", _idle(results), _recovery(results)]
    parts += _features(results)
    if results.pipeline:
        parts += ["## Jobs over stored logs", *pipeline_sections(results.pipeline)]
    if results.profile:
        parts += ["## Where the time of a send goes", _profile(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _features(results: Results) -> list[str]:
    """Return the sections on single features."""
    parts = []
    if results.moves:
        parts += ["## Moving queues under load", *_moves(results.moves)]
    if results.push:
        parts += ["## Route push", *push_sections(results.push)]
    if results.batches:
        parts += ["## Batches", *batch_sections(results.batches)]
    if results.replicas:
        parts += ["## Replicas", *replica_sections(results.replicas)]
    if results.access:
        parts += ["## TLS, logins and signatures", *access_sections(results.access)]
    if results.spark:
        parts += ["## Spark", *spark_sections(results.spark)]
    return parts


def _head(results: Results) -> str:
    machine = results.machine
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    taken = results.taken.get("cells") or next(iter(results.taken.values()), "")
    return (
        f"{taken}, {machine.processor}, {machine.cores} cores, {machine.memory_gb:.0f} GB, Linux "
        f"{machine.kernel}, TCP {machine.congestion_control}; Python {machine.python}, {libraries}; {machine.java}.\n"
        f"Readings of {results.seconds:g} s, medians of {results.rounds} rounds, interleaved; spread is "
        "(max - min) / median. How it is measured and how far to trust it: [performance.md](../performance.md)."
    )


def _cells(results: Results) -> str:
    rows = []
    for result in results.cells:
        ours, java, bare = (result.summaries.get(kind) for kind in ("holdfast", "java", "bare"))
        rows.append(
            [
                result.cell.name,
                *(_figure(summary) for summary in (ours, java, bare)),
                result.cell.unit,
                _ratio(ours, java),
                _ratio(ours, bare),
                *(microseconds(summary.p50_us) if summary else "" for summary in (ours, java)),
                *(microseconds(summary.p99_us) if summary else "" for summary in (ours, java)),
            ]
        )
    head = ["work", "ours", "Java", "bare", "", "ours / Java", "ours / bare", "p50", "p50 Java", "p99", "p99 Java"]
    return table(head, rows)


def _figure(summary: Summary | None) -> str:
    return f"{number(summary.figure)} ±{summary.spread / 2:.0%}" if summary else ""


def _ratio(ours: Summary | None, other: Summary | None) -> str:
    return f"{ours.figure / other.figure:.2f}" if ours and other and other.figure else ""


def _verdicts(results: Results) -> str:
    wording: dict[Baseline, str] = {
        "Java": "ours / Java",
        "Java's best pull": f"ours / Java's best pull ({best_java_pull(results.cells):,.0f} MB/s)",
        "bare": "ours / bare path",
        "Java's p99": "p99 / Java's p99",
    }

    def row(verdict: Verdict) -> Row:
        bound = "at most" if verdict.baseline == "Java's p99" else "at least"
        return [
            verdict.cell,
            wording[verdict.baseline],
            f"{verdict.ratio:.2f}",
            f"{bound} {verdict.wanted:g}",
            "reached" if verdict.reached else "**missed**",
        ]

    reached = sum(verdict.reached for verdict in results.verdicts)
    rows = table(["work", "", "measured", "wanted", ""], map(row, results.verdicts))
    return f"{reached} of {len(results.verdicts)} reached.\n\n{rows}"


def _costs(cells: Sequence[CellResult]) -> str:
    rows = []
    for result in cells:
        for summary in result.summaries.values():
            owed = f"{summary.owed_cpu:.2f}" if summary.owed_cpu >= OWED_MIN else ""
            refused = ", ".join(f"{count} x code {code}" for code, count in summary.refused.items())
            rows.append(
                [
                    result.cell.name,
                    summary.kind,
                    f"{summary.server_cores:.2f}",
                    number(summary.figure / summary.server_cores) if summary.server_cores else "",
                    owed,
                    f"{summary.rss_mb:,.0f}",
                    f"{summary.anonymous_mb:,.0f}",
                    f"{summary.foreign_cores:.2f}",
                    refused,
                ]
            )
    head = ["work", "server", "cores", "rate / core", "owed", "RSS MB", "RssAnon MB", "foreign cores", "refused"]
    note = (
        "Rate / core: the rate per core of the server's processor time. Owed: processor seconds that the server used "
        "after the load had ended, per second of load, for deferred work (indexes, checkpoints and the like). RSS "
        "counts mapped log files; RssAnon is the server's private memory."
    )
    return f"{note}\n\n{table(head, rows)}"


def _generator(results: Results) -> str:
    rows = []
    for result in results.cells:
        ceiling = results.ceilings.get(result.cell.name)
        best = max(summary.figure for summary in result.summaries.values())
        rows.append(
            [
                result.cell.name,
                f"{max(summary.client_cores for summary in result.summaries.values()):.2f}",
                number(best),
                number(result.cell.figure(ceiling)) if ceiling else "",
                f"{result.cell.figure(ceiling) / best:.1f}" if ceiling and best else "",
            ]
        )
    note = (
        "The ceiling is the rate of the same generator, in the same run, against a C server that does nothing. Where "
        "the ceiling is well above the best server, and the generator used well below one core, the server was the "
        "limit. At 1x1 both wait for each other's wake-ups, and the ceiling shows the cost of a wake-up."
    )
    head = ["work", "generator's cores, most", "best server", "ceiling", "ceiling / best"]
    return f"{note}\n\n{table(head, rows)}"


def _limits(results: Results) -> str:
    rows = [
        [label, number(results.limits[name]), unit] for name, (label, unit) in LIMITS.items() if name in results.limits
    ]
    return table(["limit", "", ""], rows)


def _cold(results: Results) -> str:
    rows = [
        [
            kind,
            number(cold.messages_per_s),
            microseconds(cold.p99_us),
            microseconds(cold.max_us),
            f"{cold.sent:,}",
            ", ".join(f"{count} x code {code}" for code, count in cold.refused.items()) or "none",
        ]
        for kind, cold in results.cold.items()
    ]
    return table(["server", "messages/s, first 5 s", "p99", "max", "sent", "refused"], rows)


def _growth_head(results: Results) -> str:
    """Return how these were measured: often on another day than the cells, and in shorter readings."""
    first = results.growth[0].results[0]
    rounds = max(len(summary.readings) for summary in first.summaries.values())
    return (
        f"{results.taken.get('growth', '')}. Readings of {first.cell.load.seconds:g} s, medians of {rounds} rounds, "
        "interleaved, one axis at a time; in brackets connections x requests in flight. Refused: in all rounds "
        "together; rates do not count these."
    )


def _growth(growth: Growth) -> str:
    rows = []
    for point, result in zip(growth.axis.points, growth.results, strict=True):
        load = point.cell.load
        ours, java = result.summaries.get("holdfast"), result.summaries.get("java")
        rows.append(
            [
                f"{point.label} ({load.shape})",
                *(_figure(summary) for summary in (ours, java)),
                *(number(summary.figure * load.size / 1e6) if summary else "" for summary in (ours, java)),
                _ratio(ours, java),
                *(microseconds(summary.p99_us) if summary else "" for summary in (ours, java)),
                *(f"{summary.anonymous_mb:,.0f}" if summary else "" for summary in (ours, java)),
                *(f"{sum(summary.refused.values()):,}" if summary else "" for summary in (ours, java)),
            ]
        )
    head = [
        f"sends by {growth.axis.name}", "ours /s", "Java /s", "ours MB/s", "Java MB/s", "ratio", "p99", "p99 Java",
        "RssAnon MB", "Java's", "refused", "Java's",
    ]  # fmt: skip
    return table(head, rows)


def _idle(results: Results) -> str:
    if not results.idle:
        return ""
    rows = [
        [
            kind,
            f"{each.anonymous_mb:,.0f}",
            f"{each.rss_mb:,.0f}",
            f"{each.cores:.2%}",
            f"{max(each.watched):.2%}",
            f"{len(each.settling)} s",
            f"{each.owed_cpu:.2f} s",
            ("reached" if each.reached else "**missed**") if kind == "holdfast" else "",
        ]
        for kind, each in results.idle.items()
    ]
    target_text = f"< {idle.ANONYMOUS_MB_MAX:.0f} MB RssAnon, < {idle.CORES_MAX:.0%} of a core"
    head = [
        f"idle, {idle.QUEUES:,} queues, for {idle.WATCHED_S} s", "RssAnon MB", "RSS MB", "of a core", "busiest second",
        "after the last message", "processor time until then", f"wanted {target_text}",
    ]  # fmt: skip
    return table(head, rows)


def _recovery(results: Results) -> str:
    if not results.recovery:
        return ""
    rows = [
        [
            kind,
            f"{each.acknowledged:,}",
            f"{each.log_mb:,.0f}",
            f"{each.seconds:.1f} s",
            f"{each.seconds_rebuilding:.1f} s",
            ("reached" if each.reached else "**missed**") if kind == "holdfast" else "",
        ]
        for kind, each in results.recovery.items()
    ]
    head = ["kill -9, then", "messages", "log MB", "ready", "ready, indexes and checkpoint gone"]
    return table([*head, f"wanted < {recovery.SECONDS_MAX:.0f} s"], rows)


def _profile(results: Results) -> str:
    rows = [
        [stage, f"{ours:,.0f}" if ours else "", "" if bare is None else f"{bare:,.0f}"]
        for stage, ours, bare in results.profile
    ]
    return table(["ns a message, 64 messages a read", "ours", "bare"], rows)


def _moves(moves: MoveFindings) -> list[str]:
    trials = [*moves.trials, moves.drain]
    targets = [
        [
            target.what,
            f"{number(target.measured) if target.measured else 0} {target.unit}",
            f"at most {target.wanted:g} {target.unit}",
            "reached" if target.reached else "**missed**",
        ]
        for target in moves.targets
    ]
    costs = [
        [cost.work, f"{cost.normal_ns:,.0f}", f"{cost.static_ns:,.0f}", f"{cost.ratio:.3f}", f"ns a {cost.unit}"]
        for cost in moves.costs
    ]
    note = (
        f"Two brokers, 8 ordered producers with one send of 1 KiB in flight each, one ordered consumer. A move takes 4 "
        f"of 8 queues from one broker to the other, or back; the last column drains {MANY:,} queues off a broker. "
        "Seconds are the operator's: the start of the command's process counts. A Java client that is refused waits "
        "for its next route poll, every 30 s, so its waiting time is random."
    )
    return [
        note,
        table(["", *map(_trial_name, trials[:-1]), f"drain, {MANY:,} queues"], _trial_rows(trials)),
        table(["wanted of our servers", "measured", "wanted", ""], targets),
        table(["when nothing moves", "normal topic", "static topic", "ratio", ""], costs),
    ]


def _trial_name(trial: Trial) -> str:
    names = {"holdfast": "our", "java": "Java"}
    return f"{names[trial.servers]} servers, {names[trial.client]} client"


def _trial_rows(trials: Sequence[Trial]) -> list[Row]:
    def row(what: str, figure: Callable[[Trial], str]) -> Row:
        return [what, *map(figure, trials)]

    def phase(name: str) -> list[Row]:
        phases = [trial.account.phases[name] for trial in trials]
        return [
            [f"sends/s {name}", *(number(each.messages_per_s) for each in phases)],
            [f"p50 {name}", *(microseconds(each.p50_us) for each in phases)],
            [f"p99 {name}", *(microseconds(each.p99_us) for each in phases)],
            [f"longest pause {name}", *(f"{each.longest_pause_ms:,.0f} ms" for each in phases)],
        ]

    return [
        *phase("before"),
        *phase("during"),
        *phase("after"),
        row("moves, queues of producers", lambda trial: f"{len(trial.account.commands_s)}, {trial.account.moved}"),
        row("pause of a moved queue, p99", lambda trial: f"{trial.pause_p99_ms:,.0f} ms"),
        row("the same, largest", lambda trial: f"{max(trial.account.pauses_ms, default=0):,.0f} ms"),
        row("command", lambda trial: _seconds(trial.account.commands_s)),
        row("to the first message there", lambda trial: _seconds(trial.account.first_s)),
        row("to the last queue's first", lambda trial: _seconds(trial.account.last_s)),
        row("acknowledged", lambda trial: f"{trial.account.acknowledged:,}"),
        row("failed sends", lambda trial: _failed(trial.account.reasons)),
        row("lost", lambda trial: f"{trial.account.lost:,}"),
        row("repeated", lambda trial: f"{trial.account.repeated:,}"),
        row("out of order", lambda trial: f"{trial.account.out_of_order:,}"),
        row("offset holes", lambda trial: f"{trial.account.holes:,}"),
    ]


def _seconds(readings: Sequence[float]) -> str:
    """Return the median, and the range if there are several readings."""
    if len(readings) <= 1:
        return "".join(f"{each:.1f} s" for each in readings)
    return f"{statistics.median(readings):.1f} s ({min(readings):.1f}-{max(readings):.1f})"


def _failed(reasons: Mapping[str, int]) -> str:
    each = ", ".join(f"{count:,} x {reason}" for reason, count in reasons.items())
    return f"{sum(reasons.values()):,} ({each})" if reasons else "0"
