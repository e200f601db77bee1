"""Pages of reports: what they say of themselves, and that their plots have every label."""

import re
from datetime import UTC, datetime
from html import unescape

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: make install-spark")

from matplotlib.figure import Figure

from holdfast.pipeline.reports import report_plot
from holdfast.pipeline.reports.report import JobReport, Plot
from holdfast.pipeline.reports.report_page import PageOrigin, to_page
from holdfast.pipeline.reports.report_plot import to_svg

ORIGIN = PageOrigin(made=datetime(2026, 11, 18, 6, 30, tzinfo=UTC), version="1.2.3", folders=["/data/a", "b=/data/<b>"])


def test_a_page_says_when_by_which_version_and_of_what_it_was_made():
    """It is kept, and found again a year later."""
    page = to_page(JobReport("Audit", [("result", "right")]), ORIGIN)

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


def test_every_bar_that_has_a_name_shows_it():
    """The most frequent keys are 20, unless more are asked for."""
    names = [f"k{number}" for number in range(20)]
    svg = to_svg(Plot("Most frequent keys", names, {"messages": range(20)}))

    assert [name for name in names if f">{name}<" not in svg] == []


def test_a_histogram_labels_some_of_many_bars():
    """Days in order need not be named one by one, and a year of them fits."""
    days = [f"2026-{1 + day // 28:02}-{1 + day % 28:02}" for day in range(336)]
    svg = to_svg(Plot("Messages by day", days, {"messages": range(336)}, kind="histogram"))

    assert 8 <= sum(f">{day}<" in svg for day in days) <= 14


@pytest.mark.parametrize("size", [10, 56, 127])
def test_the_legend_stays_on_the_page(size: int):
    """Names of topics have up to 127 characters, and may begin with an underscore."""
    topics = [*(f"_{number}{'x' * (size - 2)}" for number in range(6)), "others"]
    svg = to_svg(Plot("Messages", ["1", "2"], {topic: [1, 2] for topic in topics}, kind="lines"))

    width = float(re.findall(r'viewBox="0 0 ([\d.]+)', svg)[0])
    shown = re.findall(r'<text [^>]*text-anchor: start" x="([-\d.]+)"[^>]*>([^<]+)</text>', svg)
    assert [text[:100] for _, text in shown] == [topic[:100] for topic in topics]
    assert [text for x, text in shown if not 0 <= float(x) <= width - 4 * len(text)] == []


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
        JobReport("Stats", [], plots=[Plot(title, ["a"], {"n": [1]}) for title in ("one", "two")]),
        ORIGIN,
    )
    clips = [part.split('"')[0] for part in page.split('<clipPath id="')[1:]]

    assert len(clips) == len(set(clips))


def test_a_label_is_shortened_only_if_it_has_more_than_forty_characters():
    """The rest of a longer one is an ellipsis."""
    svg = to_svg(Plot("Keys", ["a" * 40, "b" * 41], {"messages": [1, 2]}))

    assert f">{'a' * 40}<" in svg
    assert f">{'b' * 39}…<" in svg


def test_horizontal_bars_lie_side_by_side_around_their_label():
    """The bars of one label fill the 0.8 around it, and those of two labels never meet."""
    axes = Figure().subplots()
    plot = Plot("Keys", ["first", "second"], {"one": [1, 2], "other": [3, 4]})

    one, other = report_plot._draw_horizontal_bars(axes, plot)

    assert [bar.get_y() for bar in one] == pytest.approx([-0.4, 0.6])
    assert [bar.get_y() for bar in other] == pytest.approx([0.0, 1.0])
    assert [bar.get_height() for bar in (*one, *other)] == pytest.approx([0.4] * 4)
