"""The results of route push as Markdown tables."""

from __future__ import annotations

from benchmarks.push_findings import BrokerDeath, PushFindings, QueryFigures, WaitTimes
from benchmarks.tables import microseconds, number, table
from benchmarks.targets import target_table


def push_sections(findings: PushFindings) -> list[str]:
    """Return the note and the tables, in order."""
    return [
        _note(findings),
        target_table("wanted of our name server", findings.targets),
        _watching(findings),
        *map(_death, findings.deaths),
        _missing(findings),
        _cells(findings),
    ]


def _note(findings: PushFindings) -> str:
    most = findings.watching[-1]
    return (
        "The name server alone: brokers are connections that register, clients are sockets of one other process on the "
        f"same machine, each watching {most.topics_each} topics, two of which all have in common. A change of one of "
        "these is timed from its registration (103) to each client's notice (328), and to the answer with the new "
        "route, which all request at once. These changes are spread evenly over the second after a tick, in which all "
        "clients are notified of the other topic and request its route; changes after a rest find no such traffic. "
        "Name servers are started with `notify_back_off=false`, because the measurement itself loads the machine so "
        "much that they would slow down notices. Death: a broker's connection closes, and each notified client "
        "requests all routes that it watches; others continue to query another broker's topic, with 4 connections and "
        "one query in flight on each. Load average before the "
        f"run: {findings.load:.1f}."
    )


def _watching(findings: PushFindings) -> str:
    rows = [
        [
            f"{each.clients:,}",
            f"{each.changes}",
            *_times(each.told),
            *_times(each.pulled),
            f"{each.rested.p99_ms:,.0f} ms",
            f"{each.anonymous_before_mb:.0f}",
            f"{each.anonymous_mb:.0f}",
        ]
        for each in findings.watching
    ]
    head = [
        "clients", "changes", "notice p50", "p99", "longest", "new route p50", "p99", "longest",
        "after a rest: notice p99", "RssAnon MB before", "with clients",
    ]  # fmt: skip
    return table(head, rows)


def _times(times: WaitTimes) -> list[str]:
    return [f"{value:,.0f} ms" for value in (times.p50_ms, times.p99_ms, times.max_ms)]


def _death(death: BrokerDeath) -> str:
    what = f"a broker with {death.topics:,} topics dies, {death.clients:,} clients x {death.topics_each} topics"
    waits = table(
        [what, "p50", "p99", "longest"],
        [
            ["until a client is notified", *_times(death.told)],
            [f"until it has all its routes ({death.pulls:,} queries)", *_times(death.pulled)],
        ],
    )
    queries = table(
        ["route queries of others", "/s", "p50", "p99", "longest"],
        [["before", *_queries(death.before)], ["meanwhile", *_queries(death.meanwhile)]],
    )
    return f"{waits}\n\n{queries}"


def _queries(queries: QueryFigures) -> list[str]:
    return [number(queries.per_s), *map(microseconds, (queries.p50_us, queries.p99_us, queries.max_us))]


def _missing(findings: PushFindings) -> str:
    missing = findings.missing
    rows = [
        [
            f"{missing.tasks} tasks, {missing.seconds:.0f} s",
            number(missing.calls / missing.seconds),
            _moments(missing.lookups_s),
            _moments(missing.template_lookups_s),
            f"{missing.lookups_per_poll}",
        ]
    ]
    head = [
        "sends to a missing topic", "sends refused /s", "the topic is queried after", "the template topic after",
        f"lookups in {missing.poll_s:g} s",
    ]  # fmt: skip
    return table(head, rows)


def _moments(moments: list[float]) -> str:
    return ", ".join(f"{moment:.1f}" for moment in moments) + " s"


def _cells(findings: PushFindings) -> str:
    rows = []
    for result in findings.cells:
        ours, java = result.summaries["holdfast"], result.summaries["java"]
        rows.append(
            [
                result.cell.name,
                *(f"{number(each.figure)} ±{each.spread / 2:.0%}" for each in (ours, java)),
                f"{ours.figure / java.figure:.2f}",
                *(microseconds(each.p99_us) for each in (ours, java)),
            ]
        )
    return table(["", "ours /s", "Java /s", "ours / Java", "p99", "p99 Java"], rows)
