"""The cost of TLS, logins and signatures, as Markdown tables."""

from __future__ import annotations

from benchmarks.access_findings import PROTECTIONS, WORKS, AccessFindings, Protection, Work
from benchmarks.tables import Row, microseconds, number, table
from benchmarks.targets import target_table

WORDS: dict[Protection, str] = {
    "plain": "plain",
    "again": "plain, a second broker (A/A)",
    "login": "login",
    "signed": "signature",
    "tls": "TLS",
}
LABELS: dict[Work, str] = {"send": "send 1 KiB, 16x16", "pull": "pull of 32, 16x4"}


def access_sections(findings: AccessFindings) -> list[str]:
    """Return the note and the tables, in order."""
    return [_note(findings), _rates(findings), _costs(findings), target_table("wanted of access", findings.targets)]


def _note(findings: AccessFindings) -> str:
    rounds = len(findings.figures[0].readings)
    return (
        f"Medians of {rounds} rounds of {findings.seconds:g} s; ratios and differences are taken within each round. "
        "Login and signature: access control is on, and the user has rules, not all rights. Java knows no login. "
        "TLS: 1.3, `TLS_AES_256_GCM_SHA384`, the same certificate for both. "
        f"Load average before the run: {findings.load:.1f}."
    )


def _rates(findings: AccessFindings) -> str:
    head = [
        "requests/s", "ours", "Java", "ours / Java", "/ plain", "/ plain, Java", "p50", "p50 Java", "p99", "p99 Java",
    ]  # fmt: skip
    return table(head, [_rate_row(findings, work, each) for work in WORKS for each in WORDS])


def _rate_row(findings: AccessFindings, work: Work, protection: Protection) -> Row:
    ours = findings.find("holdfast", protection, work)
    java = findings.find("java", protection, work) if protection in PROTECTIONS["java"] else None
    latencies = [
        microseconds(each.median(lambda reading, name=name: getattr(reading.load, name))) if each else ""  # type: ignore[misc]
        for name in ("p50_us", "p99_us")
        for each in (ours, java)
    ]
    return [
        f"{LABELS[work]}, {WORDS[protection]}",
        *(f"{number(each.rate)} ±{each.spread / 2:.0%}" if each else "" for each in (ours, java)),
        f"{ours.rate / java.rate:.2f}" if java else "",
        f"{findings.rate_share('holdfast', protection, work):.3f}",
        f"{findings.rate_share('java', protection, work):.3f}" if java else "",
        *latencies,
    ]


def _costs(findings: AccessFindings) -> str:
    head = [
        "processor time of the broker per request, user and system", "us", "more than plain", "/ plain",
        "cores of the generator", "foreign cores", "refused",
    ]  # fmt: skip
    rows = []
    for each in findings.figures:
        added = findings.added_us(each.kind, each.protection, each.work)
        rows.append(
            [
                f"{LABELS[each.work]}, {WORDS[each.protection]}, {'ours' if each.kind == 'holdfast' else 'Java'}",
                f"{each.cost_us:.1f}",
                f"{added:+.1f} us",
                f"{findings.cost_share(each.kind, each.protection, each.work):.3f}",
                f"{each.median(lambda reading: reading.load.client_cpu):.2f}",
                f"{each.median(lambda reading: reading.foreign_cores):.2f}",
                ", ".join(f"{count} x code {code}" for code, count in each.refused.items()),
            ]
        )
    return table(head, rows)
