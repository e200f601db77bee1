"""The cost of replicas and the time until a lost unit is read, as Markdown tables."""

from __future__ import annotations

from benchmarks.replica_findings import REPLICATIONS, PairFigures, ReplicaFindings, Replication
from benchmarks.servers import Kind
from benchmarks.tables import microseconds, number, table
from benchmarks.targets import target_table

KINDS: tuple[Kind, ...] = ("holdfast", "java")
NAMES = {"holdfast": "ours", "java": "Java"}
WORDS: dict[Replication, str] = {"none": "no replica", "async": "asynchronous", "sync": "synchronous"}
READERS = {"master": "its broker", "replica": "the replica of its broker, which is gone"}


def replica_sections(findings: ReplicaFindings) -> list[str]:
    """Return the note and the tables, in order."""
    return [
        _note(findings),
        _rates(findings),
        _costs(findings),
        _openings(findings),
        target_table("wanted of consumers that read an opened unit", findings.targets),
    ]


def _note(findings: ReplicaFindings) -> str:
    return (
        "Single sends of 1 KiB with asynchronous flush to a master without a replica, with one that it does not wait "
        "for, and with one that every acknowledgement waits for; the replica is a process of the same kind on the same "
        "machine, so that it takes its processor time from its master and the generator. Java: `ASYNC_MASTER` and "
        "`SYNC_MASTER` with a `SLAVE`, and `inSyncReplicas=2`, without which a `SYNC_MASTER` of 5.5.0 waits for "
        f"no replica. Load average before the run: {findings.load:.1f}."
    )


def _rates(findings: ReplicaFindings) -> str:
    rows = []
    for shape in findings.shapes:
        for replication in REPLICATIONS:
            ours, java = (findings.find(kind, replication, shape) for kind in KINDS)
            rows.append(
                [
                    f"{shape}, {WORDS[replication]}",
                    *(f"{number(each.rate)} ±{each.spread / 2:.0%}" for each in (ours, java)),
                    f"{ours.rate / java.rate:.2f}" if java.rate else "",
                    *(
                        f"{findings.rate_share(kind, replication, shape):.2f}" if replication != "none" else ""
                        for kind in KINDS
                    ),
                    *(microseconds(value) for value in (ours.p50_us, java.p50_us, ours.p99_us, java.p99_us)),
                ]
            )
    head = [
        "messages/s", "ours", "Java", "ours / Java", "/ no replica", "/ no replica, Java", "p50", "p50 Java", "p99",
        "p99 Java",
    ]  # fmt: skip
    return table(head, rows)


def _costs(findings: ReplicaFindings) -> str:
    rows = [
        _cost_row(findings.find(kind, replication, shape))
        for shape in findings.shapes
        for replication in REPLICATIONS
        for kind in KINDS
    ]
    head = [
        "cost", "cores of the master", "of the replica", "master, us / message", "replica, us / message",
        "replica lacks at most", "at the end", "caught up after", "foreign cores", "refused",
    ]  # fmt: skip
    return table(head, rows)


def _cost_row(each: PairFigures) -> list[str]:
    has_replica = each.replication != "none"
    return [
        f"{each.shape}, {WORDS[each.replication]}, {NAMES[each.kind]}",
        f"{each.master_cores:.2f}",
        f"{each.replica_cores:.2f}" if has_replica else "",
        f"{each.master_cores / each.rate * 1e6:.1f}" if each.rate else "",
        f"{each.replica_cores / each.rate * 1e6:.1f}" if each.rate and has_replica else "",
        *(f"{value / 1e6:.2f} MB" if has_replica else "" for value in (each.most_behind_bytes, each.behind_bytes)),
        f"{each.caught_up_s * 1000:.0f} ms" if has_replica else "",
        f"{each.foreign_cores:.2f}",
        ", ".join(f"{count} x code {code}" for code, count in each.refused.items()),
    ]


def _openings(findings: ReplicaFindings) -> str:
    rows = [
        [
            f"{READERS[each.reader]}, {each.queues} queues",
            f"{len(each.openings)}",
            f"{each.first_s:.2f} s",
            f"{min(opening.first_s for opening in each.openings):.2f} s",
            f"{max(opening.first_s for opening in each.openings):.2f} s",
            f"{each.ended_s:.2f} s",
        ]
        for each in findings.openings
    ]
    head = [
        "from the start of `dr open` to the first message read in the other unit, from", "openings", "median",
        "shortest", "longest", "the command alone",
    ]  # fmt: skip
    return table(head, rows)
