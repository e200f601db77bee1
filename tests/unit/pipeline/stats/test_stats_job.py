"""Everything that is stored is counted once, whatever ranges the log is cut into."""

from pathlib import Path

import msgspec
import pytest
from tests.support.store_folders import PREPARED, StoreFolderBuilder
from tests.support.stores import NOW_MS
from tests.unit.pipeline.reports.test_report_page import ORIGIN

from holdfast.pipeline.reports.report_page import to_page
from holdfast.pipeline.scan.tasks import InProcess
from holdfast.pipeline.stats import counts
from holdfast.pipeline.stats.histogram import quantile
from holdfast.pipeline.stats.stats_job import HotText, Stats, stats, to_report


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolderBuilder:
    found = StoreFolderBuilder(tmp_path / "broker-a")
    for number in range(40):
        key = f"KEYS\x01k{number % 4 if number % 2 else 0}\x02"
        now_ms = NOW_MS + 1000 * number
        found.append(
            b"x" * (10 + number), tags=f"t{number % 3}", extra_properties=key, now_ms=now_ms, born_ms=now_ms - 7
        )
    found.append(b"half", flag=PREPARED)
    found.append_batch([b"one", b"three", b"eleven"], now_ms=NOW_MS + 40_000)
    found.append(b"click", topic="clicks", queue=3, now_ms=NOW_MS + 41_000, born_ms=NOW_MS + 42_000)
    found.close()
    return found


def count(folder: StoreFolderBuilder, range_size: int = 1 << 20) -> Stats:
    return stats(InProcess(), [str(folder)], range_size=range_size)


def test_messages_sizes_and_times_are_those_that_were_sent(folder: StoreFolderBuilder):
    """By queue; those of a batch each for itself, prepared ones not at all."""
    found = count(folder)

    orders, clicks, batched = (
        next(each for each in found.queues if each.topic == topic) for topic in ("orders", "clicks", "batched")
    )
    assert (orders.broker, orders.topic, orders.queue) == ("broker-a", "orders", 0)
    assert (orders.messages, orders.records) == (40, 40)
    assert orders.body_size == sum(range(10, 50))
    assert (orders.first_ms, orders.last_ms) == (NOW_MS, NOW_MS + 39_000)
    assert orders.late == {7: 40}
    assert quantile(orders.sizes, 0.5) in range(29, 32)
    assert (batched.messages, batched.records, batched.body_size) == (3, 1, 14)
    assert (clicks.queue, clicks.messages, clicks.skewed, clicks.late) == (3, 1, 1, {0: 1})
    assert sum(each.size for each in found.queues) <= found.size


def test_time_goes_in_steps(folder: StoreFolderBuilder):
    """Half a minute and some seconds: a step is a second, and each has its messages and bytes."""
    found = count(folder)

    assert found.step_ms == 1000
    assert [messages for messages, _ in found.times["orders"].values()] == [1] * 40
    assert found.times["batched"][NOW_MS + 40_000][0] == 3
    assert sum(size for _, size in found.times["orders"].values()) == next(
        each.size for each in found.queues if each.topic == "orders"
    )


def test_frequent_keys_and_tags_come_first(folder: StoreFolderBuilder):
    """With how often they are there; inner messages have keys of their own."""
    found = count(folder)

    assert found.keys[0] == HotText("orders", "k0", 20, 0)
    assert {(hot.topic, hot.text) for hot in found.keys} >= {("batched", "k2")}
    assert [(hot.text, hot.count) for hot in found.tags] == [("t0", 14), ("t1", 13), ("t2", 13)]


@pytest.mark.parametrize("range_size", [4000, 700, 91])
def test_ranges_do_not_matter(folder: StoreFolderBuilder, range_size: int):
    """What tasks return adds up to the same."""
    one, many = count(folder), count(folder, range_size)

    assert msgspec.structs.replace(many, seconds=0) == msgspec.structs.replace(one, seconds=0)


def test_what_was_dropped_is_told(folder: StoreFolderBuilder, monkeypatch: pytest.MonkeyPatch):
    """A task that sees more keys than it keeps says how many messages of one it may have missed."""
    monkeypatch.setattr(counts, "HOT_MAX", 2)

    found = count(folder)

    assert found.keys[0] == HotText("orders", "k0", 20, 10)
    assert {hot.missed_max for hot in found.keys if hot.topic == "batched"} == {1}


def test_the_report_has_tables_and_plots(folder: StoreFolderBuilder):
    """And the page draws them."""
    report = to_report(count(folder))

    page = to_page(report, ORIGIN)

    assert [table.title for table in report.tables][:1] == ["Topics"]
    assert page.count("<svg") == 5
    assert "orders" in page
    assert any("born after" in note for note in report.notes)
