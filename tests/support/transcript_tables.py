"""The output of transcript commands: tables, runs of messages, refusals. What changes from run to run is blanked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeGuard

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.wire.cluster.mapping import WireSegment
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command

_UNKNOWN = "-"
# What depends on how many requests were exchanged before: local times, milliseconds since 1970, those in the ids of
# moves, and the ports of connections.
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?"), "(time)"),
    (re.compile(r"(?<!\d)17\d{11}(?!\d)"), "(time)"),
    (re.compile(r"(?<=\.)18[0-9a-f]{9}(?=\.)"), "(time)"),
    (re.compile(r"(?<=:)4\d{4}\b"), "(port)"),
)
# A log position depends on how many records of its own a broker has written.
_LARGE_NUMBER = re.compile(r"(?<==)\d{3,}(?!\S)")


class Stored(msgspec.Struct, frozen=True):
    """A message as a client sees it."""

    key: str
    queue: int
    offset: int
    broker: str


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows in columns as wide as their longest cell."""
    cells = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def _cell(value: object) -> str:
    is_unknown = value is None or value == "" or (isinstance(value, int) and value < 0)
    return _UNKNOWN if is_unknown else str(value)


def blank(text: str) -> str:
    """Return *text* with fixed words in place of times and ports."""
    for pattern, word in _VARYING:
        text = pattern.sub(lambda found, word=word: word.ljust(len(found[0]), "."), text)
    return text


def blank_numbers(line: str) -> str:
    """Return a line of a log with a fixed word in place of positions, sizes and spans of time."""
    return _LARGE_NUMBER.sub("(number)", line)


def segment_row(segment: WireSegment) -> list[object]:
    """Return a segment: generation, broker, physical queue, logical start, start, end, and what else it is."""
    marks = {"expired": segment.expired, "forced": segment.forced, "detached": segment.is_detached}
    return [
        segment.generation,
        segment.broker,
        segment.queue_id,
        segment.first,
        segment.start,
        segment.end,
        " ".join(word for word, applies in marks.items() if applies),
    ]


def is_success(answer: Command | HoldfastError) -> TypeGuard[Command]:
    """Return whether a request was carried out."""
    return isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS


def refusal(answer: Command | HoldfastError) -> str:
    """Return why a request failed: the code and text of the answer, or why there is none."""
    if isinstance(answer, HoldfastError):
        return f"no answer: {answer}"
    return f"refused {code_name(answer.code)}: {answer.remark or 'without a reason'}"


def code_name(code: int) -> str:
    """Return a response code with its name."""
    known = {each.value: each.name for each in ResponseCode}
    return f"{code} {known[code]}" if code in known else str(code)


def runs(messages: Iterable[Stored], verb: str) -> list[str]:
    """Return one line for each run of messages with contiguous offsets on one broker."""
    found: list[list[Stored]] = []
    for message in messages:
        last = found[-1][-1] if found else None
        if last and (last.queue, last.offset + 1, last.broker) == (message.queue, message.offset, message.broker):
            found[-1].append(message)
        else:
            found.append([message])
    return [
        f"queue {run[0].queue}, offsets {run[0].offset}-{run[-1].offset}: {len(run)} {verb} {run[0].broker}"
        f" ({run[0].key}{f' to {run[-1].key}' if len(run) > 1 else ''})"
        for run in found
    ]
