"""The promises of the demo with Spark, checked by counting sent, archived and counted clicks.

Pure: takes rows and totals, returns a verdict. The caller must get each number from the component that knows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.demo.ledger import Ledger, Verdict


class Row(msgspec.Struct, frozen=True):
    """A message as archived in Parquet."""

    key: str
    number: int
    queue: int
    offset: int


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The totals at the end.

    Attributes:
        clicks: The record of clicks, from their sender to Parquet.
        counted: Clicks, by the last count of every page in Parquet.
        shown: Clicks, by the last counts that the dashboard consumed.
        miscounted: Pages whose last count is not the number of their clicks, and counts that were written again.
        restarts: Runs of queries beyond the first.
        stored: Different messages in the logs of all brokers together.
        rows: Messages of both topics in Parquet.
        copied: Bytes of messages that are in these logs a second time.
        left: Remains of removed brokers: processes, names, segments.
    """

    clicks: Verdict
    counted: int
    shown: int
    miscounted: int
    restarts: int
    stored: int
    rows: int
    copied: int
    left: int

    @property
    def lines(self) -> Sequence[tuple[str, int, str, bool]]:
        """Each promise: its name, the number, the explanation, and whether the number is right."""
        verdict = self.clicks
        zero_lines = [
            ("lost", verdict.lost, "acknowledged and not in Parquet"),
            ("repeated", verdict.repeated, "in Parquet again"),
            ("unexpected", verdict.unexpected, "in Parquet and never sent"),
            ("out of order", verdict.out_of_order, "after a later click of the same page"),
            ("holes", verdict.holes, "offsets of a queue without a click"),
            ("miscounted", self.miscounted, "pages with a wrong count, counts written twice"),
            ("query restarts", self.restarts, "runs of the two queries beyond their first"),
            ("bytes copied", self.copied, "of messages that are in the logs of brokers twice"),
            ("left over", self.left, "processes, names and segments of removed brokers"),
        ]
        return [
            ("clicks", verdict.acknowledged, "acknowledged", verdict.acknowledged > 0),
            ("in doubt", verdict.in_doubt, "in flight when the broker was killed: stored or not", True),
            ("archived", verdict.arrived, "clicks in Parquet", verdict.arrived >= verdict.acknowledged),
            ("counted", self.counted, "by Spark, exactly once: must be the same", self.counted == verdict.arrived),
            ("shown", self.shown, "by the dashboard: must be the same", self.shown == verdict.arrived),
            ("stored", self.stored, f"clicks and counts in logs: must be the {self.rows:,} rows", self.is_all_stored),
            *((name, count, f"{explanation}: must be 0", not count) for name, count, explanation in zero_lines),
        ]

    @property
    def is_all_stored(self) -> bool:
        """Whether the logs hold exactly the archived messages."""
        return self.stored == self.rows

    @property
    def is_good(self) -> bool:
        """Whether every number is right."""
        return all(is_right for *_, is_right in self.lines)


def compare_clicks(sent: Ledger, clicks: Iterable[Row]) -> Verdict:
    """Compare the sent clicks with the archived rows, in the order of their offsets."""
    for row in sorted(clicks, key=lambda row: (row.queue, row.offset)):
        sent.record_arrival(row.key, row.number, row.queue, row.offset)
    return sent.close()


def check_counts(clicks: Iterable[Row], counts: Iterable[Row]) -> tuple[int, int]:
    """Return the sum of the last counts, and how many counts are wrong: they must rise to the number of clicks."""
    pages = Counter(row.key for row in clicks)
    latest: dict[str, int] = {}
    repeated = 0
    for row in sorted(counts, key=lambda row: (row.queue, row.offset)):
        repeated += row.number <= latest.get(row.key, 0)
        latest[row.key] = row.number
    return sum(latest.values()), repeated + _differences(pages, latest)


def _differences(pages: Mapping[str, int], latest: Mapping[str, int]) -> int:
    return sum(pages.get(page) != latest.get(page) for page in pages.keys() | latest.keys())
