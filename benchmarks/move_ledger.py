"""The totals of a load under which queues were moved, computed from its rows and the times of the commands.

    since ── before ──┬── during ──┬── (between) ──┬── during ──┬── after ──> until
                   command      everything       command       ...
                    begins      flows again      begins

A move lasts from the start of the command until it has ended and every queue that it moved has been written at its new
broker. A pause is the time between two acknowledgements of one producer. Pure: knows neither processes nor clients.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec


class Ack(NamedTuple):
    """An acknowledged send; times in seconds."""

    key: int
    number: int
    wanted: float
    acked: float
    queue: int
    offset: int
    port: int


class Rows(msgspec.Struct, kw_only=True):
    """The rows that a load program wrote.

    Attributes:
        acks: By key, in order.
        failures: (when, reason).
        seen: (key, number) in the order of delivery.
    """

    acks: dict[int, list[Ack]]
    failures: list[tuple[float, str]]
    seen: list[tuple[int, int]]


class OperatorCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One command of the operator, from the start of its process to its end; times in seconds."""

    began: float
    ended: float


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """The rates and latencies of clients in one part of the run."""

    seconds: float
    messages_per_s: float
    p50_us: float
    p99_us: float
    longest_pause_ms: float


class MoveTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals.

    Attributes:
        pauses_ms: For every queue that moved, the longest pause of its producer around the move; sorted.
        first_s: For every move, seconds from the command to the first message at the new broker.
        last_s: For every move, seconds from the command to the first message of its last queue.
        reasons: The number of failed sends, by reason.
        holes: Offsets below the last one of a queue that no acknowledged message has.
    """

    phases: dict[str, Phase]
    commands_s: list[float]
    moved: int
    pauses_ms: list[float]
    first_s: list[float]
    last_s: list[float]
    acknowledged: int
    reasons: dict[str, int]
    lost: int
    repeated: int
    out_of_order: int
    holes: int

    @property
    def failed(self) -> int:
        """The number of sends that failed for the application."""
        return sum(self.reasons.values())

    @property
    def is_unnoticed(self) -> bool:
        """Whether no send failed, and no message was lost, repeated, reordered or skipped."""
        return not (self.failed or self.lost or self.repeated or self.out_of_order or self.holes)


def read_rows(lines: Iterable[str]) -> Rows:
    """Parse the lines of a load program."""
    acks: dict[int, list[Ack]] = defaultdict(list)
    failures, seen = [], []
    for line in lines:
        kind, key, *rest = line.rstrip("\n").split("\t")
        if kind == "A":
            number, wanted, acked, queue, offset, port = map(int, rest)
            acks[int(key)].append(Ack(int(key), number, wanted / 1e6, acked / 1e6, queue, offset, port))
        elif kind == "F":
            failures.append((int(rest[2]) / 1e6, rest[3]))
        else:
            seen.append((int(key), int(rest[0])))
    return Rows(acks=dict(acks), failures=failures, seen=seen)


def percentile(numbers: Sequence[float], share: float) -> float:
    """Return the smallest number that is at least as large as *share* of all numbers; 0 if there are none."""
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def compute_totals(rows: Rows, commands: Sequence[OperatorCommand], *, since: float, until: float) -> MoveTotals:
    """Return the totals from *since*, when clients were warm, to *until*."""
    nexts = [*(command.began for command in commands[1:]), until]
    moves = [_find_arrivals(rows, command.began, end) for command, end in zip(commands, nexts, strict=True)]
    pairs = list(zip(commands, moves, strict=True))
    windows = [(command.began, max([command.ended, *arrived.values()])) for command, arrived in pairs]
    everything = [ack for acks in rows.acks.values() for ack in acks]
    spans = {"before": [(since, windows[0][0])], "during": windows, "after": [(windows[-1][1], until)]}
    pauses = [
        _longest_pause(rows.acks[key], began, ended)
        for (began, ended), arrived in zip(windows, moves, strict=True)
        for key in arrived
    ]
    seen = Counter(rows.seen)
    return MoveTotals(
        phases={name: _phase(rows, everything, parts) for name, parts in spans.items()},
        commands_s=[command.ended - command.began for command in commands],
        moved=sum(map(len, moves)),
        pauses_ms=sorted(1000 * pause for pause in pauses),
        first_s=[min(arrived.values()) - command.began for command, arrived in pairs if arrived],
        last_s=[max(arrived.values()) - command.began for command, arrived in pairs if arrived],
        acknowledged=len(everything),
        reasons=dict(Counter(reason for when, reason in rows.failures if when >= since)),
        lost=sum((ack.key, ack.number) not in seen for ack in everything),
        repeated=seen.total() - len(seen),
        out_of_order=_count_late(rows.seen),
        holes=_count_holes(ack for ack in everything if ack.acked >= since),
    )


def _find_arrivals(rows: Rows, began: float, ended: float) -> dict[int, float]:
    """Return when the new broker first acknowledged each key whose broker changed between *began* and *ended*."""
    arrived: dict[int, float] = {}
    for key, acks in rows.acks.items():
        before = [ack.port for ack in acks if ack.acked < began]
        during = (ack for ack in acks if began <= ack.acked < ended)
        first = next((ack for ack in during if before and ack.port != before[-1]), None)
        if first is not None:
            arrived[key] = first.acked
    return arrived


def _longest_pause(acks: Sequence[Ack], began: float, ended: float) -> float:
    """Return the longest time between two acknowledgements that overlaps the time from *began* to *ended*."""
    gaps = [later.acked - ack.acked for ack, later in pairwise(acks) if later.acked > began and ack.acked < ended]
    return max(gaps, default=ended - began)


def _phase(rows: Rows, acks: Sequence[Ack], spans: Sequence[tuple[float, float]]) -> Phase:
    seconds = sum(ended - began for began, ended in spans)
    selected = [ack for ack in acks if any(began <= ack.acked < ended for began, ended in spans)]
    times = [1e6 * (ack.acked - ack.wanted) for ack in selected]
    pauses = [_longest_pause(each, began, ended) for each in rows.acks.values() for began, ended in spans]
    return Phase(
        seconds=seconds,
        messages_per_s=len(selected) / seconds if seconds else 0.0,
        p50_us=percentile(times, 0.5),
        p99_us=percentile(times, 0.99),
        longest_pause_ms=1000 * max(pauses, default=0.0),
    )


def _count_late(seen: Iterable[tuple[int, int]]) -> int:
    """Return how many messages arrived for the first time after a later one of their key."""
    latest: dict[int, int] = {}
    known: set[tuple[int, int]] = set()
    count = 0
    for key, number in seen:
        count += (key, number) not in known and number < latest.get(key, -1)
        known.add((key, number))
        latest[key] = max(number, latest.get(key, -1))
    return count


def _count_holes(acks: Iterable[Ack]) -> int:
    offsets: dict[int, set[int]] = defaultdict(set)
    for ack in acks:
        offsets[ack.queue].add(ack.offset)
    return sum(max(found) - min(found) + 1 - len(found) for found in offsets.values())
