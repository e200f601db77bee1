"""The timeline and the proof as one SVG picture: uptime, clicks per broker, progress of Spark, events.

    title
    lanes      broker-a ▬▬▬▬▬▬▬▬        when it was up; queries with a mark for every batch
    stored     clicks per second, stacked, by the broker that stored them
    totals     clicks sent, and clicks counted
    events     numbered, as marked by the lines above        proof

Pure: a timeline in, text out. Every number is rounded, so that equal timelines give equal pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from holdfast.demo.proof import Proof
from holdfast.demo.timeline import Sample, Timeline

WIDTH: Final = 1300
_LEFT: Final = 124
_RIGHT: Final = WIDTH - 24
_LANE: Final = 22
_PANEL: Final = 130
_LINE: Final = 17
_BIN_S: Final = 1.0
_TEXT: Final = "#222"
_FAINT: Final = "#bbb"
_DOWN: Final = "#d55e00"
# Readers with a colour vision deficiency can distinguish these.
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
_QUERY: Final = "#555"


def draw(timeline: Timeline, proof: Proof) -> str:
    """Return the picture."""
    return _Picture(timeline, proof).draw()


class _Picture:
    """One drawing that grows downward."""

    def __init__(self, timeline: Timeline, proof: Proof) -> None:
        self._timeline = timeline
        self._proof = proof
        # Leave out the setup before the first message: it would fill half of the picture.
        self._start_s = timeline.samples[0].at_s - _BIN_S if timeline.samples else 0.0
        self._end_s = max(timeline.end_s, self._start_s + 1.0)
        self._brokers = sorted(name for name in timeline.lanes if not name.startswith("query "))
        self._parts: list[str] = []
        self._y = 0

    def draw(self) -> str:
        self._title()
        top = self._y
        self._lanes()
        self._stored()
        self._totals()
        self._axis()
        self._marks(top, self._y)
        self._y += 40
        self._tables()
        size = f'viewBox="0 0 {WIDTH} {self._y}" width="{WIDTH}" height="{self._y}"'
        style = "font-family:system-ui,sans-serif;font-size:12px"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">'
        return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *self._parts, "</svg>\n"])

    def _x(self, at_s: float) -> float:
        at_s = min(max(at_s, self._start_s), self._end_s)
        return _LEFT + (_RIGHT - _LEFT) * (at_s - self._start_s) / (self._end_s - self._start_s)

    def _colour(self, name: str) -> str:
        return _COLOURS[self._brokers.index(name) % len(_COLOURS)] if name in self._brokers else _QUERY

    def _title(self) -> None:
        self._text(
            _LEFT, 30, "2 brokers, 4, 1, and that one killed: a click count in Spark that never restarts", size=18
        )
        verdict = "the proof holds" if self._proof.is_good else "THE PROOF DOES NOT HOLD"
        clicks = f"{self._proof.clicks.acknowledged:,} clicks in {self._end_s - self._start_s:.0f} s; {verdict}"
        self._text(_LEFT, 50, clicks, colour=_TEXT if self._proof.is_good else _DOWN)
        self._y = 96

    def _lanes(self) -> None:
        for name in [*self._brokers, *(lane for lane in self._timeline.lanes if lane not in self._brokers)]:
            spans = self._timeline.lanes[name]
            self._text(_LEFT - 8, self._y + 15, name, anchor="end")
            for span, next_span in zip(spans, [*spans[1:], None], strict=True):
                self._bar(span.start_s, span.end_s or self._end_s, self._colour(name))
                if next_span is not None:
                    self._bar(span.end_s or self._end_s, next_span.start_s, _DOWN)
            for at_s in self._timeline.batches.get(name, ()):
                self._line(self._x(at_s), self._y + 5, self._x(at_s), self._y + 17, "white")
            self._y += _LANE
        self._y += 26

    def _bar(self, start_s: float, end_s: float, colour: str) -> None:
        x, width = self._x(start_s), max(2.0, self._x(end_s) - self._x(start_s))
        self._parts.append(f'<rect x="{x:.1f}" y="{self._y + 3}" width="{width:.1f}" height="16" fill="{colour}"/>')

    def _stored(self) -> None:
        """Draw the clicks per second that each broker stored, stacked."""
        bins = _rates(self._timeline.samples, self._brokers)
        maximum = max((sum(rates.values()) for _, rates in bins), default=0.0) or 1.0
        self._panel("clicks/s, by", "storing broker", f"{maximum:,.0f}")
        base = [0.0] * len(bins)
        for name in self._brokers:
            top = [low + rates.get(name, 0.0) for low, (_, rates) in zip(base, bins, strict=True)]
            edge = [(at_s, high) for (at_s, _), high in zip(bins, top, strict=True)]
            back = [(at_s, low) for (at_s, _), low in zip(bins, base, strict=True)]
            points = self._points([*edge, *reversed(back)], maximum)
            self._parts.append(f'<polygon points="{points}" fill="{self._colour(name)}" fill-opacity="0.85"/>')
            base = top
        self._y += _PANEL + 26

    def _totals(self) -> None:
        samples = self._timeline.samples
        maximum = max((max(sample.sent, sample.arrived) for sample in samples), default=0) or 1
        self._panel("clicks sent", "and counted", f"{maximum:,}")
        for colour, width, numbers in (
            (_FAINT, 5, [(sample.at_s, float(sample.sent)) for sample in samples]),
            (_QUERY, 2, [(sample.at_s, float(sample.arrived)) for sample in samples]),
        ):
            points = self._points(numbers, maximum)
            self._parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        self._y += _PANEL

    def _panel(self, name: str, second_line: str, maximum: str) -> None:
        self._text(_LEFT - 8, self._y + 12, maximum, anchor="end", colour="#777")
        self._text(_LEFT - 8, self._y + _PANEL // 2, name, anchor="end")
        self._text(_LEFT - 8, self._y + _PANEL // 2 + 15, second_line, anchor="end")
        self._line(_LEFT, self._y + _PANEL, _RIGHT, self._y + _PANEL, _FAINT)

    def _points(self, numbers: Sequence[tuple[float, float]], maximum: float) -> str:
        floor = self._y + _PANEL
        return " ".join(f"{self._x(at_s):.1f},{floor - _PANEL * number / maximum:.1f}" for at_s, number in numbers)

    def _axis(self) -> None:
        for at_s in range(-(-int(self._start_s) // 10) * 10, int(self._end_s) + 1, 10):
            self._text(self._x(at_s), self._y + 16, f"{at_s} s", anchor="middle", colour="#777")

    def _marks(self, top: int, bottom: int) -> None:
        """Draw a numbered line for every event; numbers that would overlap are drawn above each other."""
        last_x, row = -100.0, 0
        for number, event in enumerate(self._timeline.events, 1):
            if event.at_s < self._start_s:
                continue
            x = self._x(event.at_s)
            row = (row + 1) % 3 if x - last_x < 14 else 0
            last_x = x
            self._line(x, top - 6, x, bottom, _FAINT, dash="2 3")
            self._text(x, top - 8 - 11 * row, str(number), anchor="middle", size=10)

    def _tables(self) -> None:
        top = self._y
        for number, event in enumerate(self._timeline.events, 1):
            text = f"{event.text[:87]}…" if len(event.text) > 88 else event.text
            self._text(44, self._y, str(number), anchor="end")
            self._text(100, self._y, f"{event.at_s:.1f} s", anchor="end", colour="#777")
            self._text(114, self._y, text)
            self._y += _LINE
        y = top
        for name, count, text, is_right in self._proof.lines:
            colour = _TEXT if is_right else _DOWN
            self._text(840, y, name, anchor="end", colour=colour)
            self._text(898, y, f"{count:,}", anchor="end", colour=colour)
            self._text(908, y, text if is_right else f"WRONG: {text}", colour=colour, size=11)
            y += _LINE
        self._y = max(self._y, y) + 8

    def _text(
        self, x: float, y: float, text: str, *, anchor: str = "start", colour: str = _TEXT, size: int = 12
    ) -> None:
        attributes = f'x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="{size}"'
        self._parts.append(f"<text {attributes}>{escape(text)}</text>")

    def _line(self, x1: float, y1: float, x2: float, y2: float, colour: str, dash: str = "") -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        attributes = f'x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}"'
        self._parts.append(f'<line {attributes} stroke="{colour}"{dashes}/>')


def _rates(samples: Sequence[Sample], brokers: Sequence[str]) -> list[tuple[float, dict[str, float]]]:
    """Return the messages per second that each broker stored, with about one entry per second."""
    found: list[tuple[float, dict[str, float]]] = []
    before = samples[0] if samples else None
    for sample in samples[1:]:
        assert before is not None
        took_s = sample.at_s - before.at_s
        if took_s >= _BIN_S:
            rates = {name: (sample.stored.get(name, 0) - before.stored.get(name, 0)) / took_s for name in brokers}
            found.append((sample.at_s, rates))
            before = sample
    return found
