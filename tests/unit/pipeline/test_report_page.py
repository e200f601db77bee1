"""Pages of reports: what they say of themselves, and that their plots have every label."""

from datetime import UTC, datetime
from html import unescape

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: make install-spark")

from holdfast.pipeline.report import Plot, Report
from holdfast.pipeline.report_page import Origin, to_page
from holdfast.pipeline.report_plot import to_svg

ORIGIN = Origin(made=datetime(2026, 11, 18, 6, 30, tzinfo=UTC), version="1.2.3", folders=["/data/a", "b=/data/<b>"])


def test_a_page_says_when_by_which_version_and_of_what_it_was_made():
    """It is kept, and found again a year later."""
    page = to_page(Report("Audit", [("result", "right")]), ORIGIN)

    assert "2026-11-18 06:30:00 UTC" in page
    assert "Holdfast 1.2.3" in page
    assert "/data/a<br>b=/data/&lt;b&gt;" in page


@pytest.mark.parametrize(
    "labels",
    [["16 B", "32 B"], ["customer-4711-with-a-name", "<b>&amp;</b> and some more"], ["$a$_{1}", "$b"], ["ключ", "键"]],
)
def test_a_plot_has_every_label(labels: list[str]):
    """Names are text, whatever they look like."""
    svg = to_svg(Plot("Keys", labels, {"messages": [3, 1]}, "B"))

    for label in labels:
        assert f">{label}<" in unescape(svg.replace(">", ">\0").replace("<", "\0<")).replace("\0", "")


def test_of_many_times_some_are_labelled_and_every_line_is_named():
    """More would lie on each other."""
    labels = [f"{hour:02}:00" for hour in range(100)]
    svg = to_svg(Plot("Messages", labels, {"orders": range(100), "others": range(100)}, kind="lines"))

    assert 8 <= sum(f">{label}<" in svg for label in labels) <= 14
    assert ">orders<" in svg
    assert ">others<" in svg


def test_a_plot_of_nothing_is_drawn():
    """An empty store has a report, too."""
    assert to_svg(Plot("Messages", [], {}, kind="lines")).startswith("<svg")


def test_drawings_of_one_page_share_no_ids():
    """One would be cut out by the clip path of another."""
    page = to_page(
        Report("Stats", [], plots=[Plot(title, ["a"], {"n": [1]}) for title in ("one", "two")]),
        ORIGIN,
    )
    clips = [part.split('"')[0] for part in page.split('<clipPath id="')[1:]]

    assert len(clips) == len(set(clips))
