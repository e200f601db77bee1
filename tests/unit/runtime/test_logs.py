"""One event, one line."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from holdfast.machine.effects import Log
from holdfast.runtime.logs import LINES_MAX, TEXT_SIZE_MAX, WINDOW_S, start_logging


@pytest.fixture(autouse=True)
def _keep_root_logger() -> Iterator[None]:
    """Give the root logger back to pytest afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def test_an_event_is_one_readable_line():
    """Level, event and fields, and what every line carries."""
    stream = io.StringIO()
    emit = start_logging(stream=stream, bound_fields={"role": "broker-a"})

    emit(Log("info", "broker registered", {"topics": 12, "where": "two words"}))

    (line,) = stream.getvalue().splitlines()
    assert "[info" in line
    assert "broker registered" in line
    assert "role=broker-a topics=12 where='two words'" in line


def test_an_event_that_comes_again_and_again_is_counted():
    """Others are written meanwhile, and the count is told when it comes in the next window."""
    stream = io.StringIO()
    now = [0.0]
    emit = start_logging(json=True, stream=stream, clock=lambda: now[0])

    for _ in range(10_000):
        emit(Log("warning", "bad header", {}))
    emit(Log("info", "broker ready", {}))
    now[0] += WINDOW_S
    emit(Log("warning", "bad header", {}))

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines[:LINES_MAX]] == ["bad header"] * LINES_MAX
    assert [(line["event"], line.get("times")) for line in lines[LINES_MAX:]] == [
        ("too many of these, counted from here on", None),
        ("broker ready", None),
        ("not logged", 10_000 - LINES_MAX),
        ("bad header", None),
    ]


def test_no_change_by_an_administrator_is_left_out():
    """Refusals, which every stranger can cause, are counted."""
    stream = io.StringIO()
    emit = start_logging(json=True, stream=stream, clock=lambda: 0.0)

    for number in range(2 * LINES_MAX):
        emit(Log("info", "change requested", {"number": number}, "change"))
        emit(Log("warning", "request refused", {}, "refusal"))

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["number"] for line in lines if line["event"] == "change requested"] == list(range(2 * LINES_MAX))
    assert len([line for line in lines if line["event"] == "request refused"]) == LINES_MAX


def test_a_text_without_end_is_cut():
    """A stranger may have written it."""
    stream = io.StringIO()

    start_logging(stream=stream)(Log("info", "settings changed", {"text": "x" * 1_000_000}))

    assert "(1000000 characters)" in stream.getvalue()
    assert len(stream.getvalue()) < 2 * TEXT_SIZE_MAX


def test_json_lines_are_objects():
    """Event, level, time and the fields by name."""
    stream = io.StringIO()
    emit = start_logging(json=True, stream=stream)

    emit(Log("warning", "disk nearly full", {"percent": 88}))

    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["percent"]) == ("disk nearly full", "warning", 88)
    assert line["timestamp"].endswith("Z")


def test_lines_below_the_level_are_left_out():
    """Level warning says nothing of registrations."""
    stream = io.StringIO()
    emit = start_logging(level="warning", stream=stream)

    emit(Log("info", "broker registered", {}))
    emit(Log("error", "disk failed", {}))

    assert len(stream.getvalue().splitlines()) == 1


def test_a_field_cannot_pose_as_the_event():
    """Fields come from peers too: they never replace level and event."""
    stream = io.StringIO()
    emit = start_logging(json=True, stream=stream)

    emit(Log("info", "topic created", {"event": "nothing", "level": "debug"}))

    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"]) == ("topic created", "info")


def test_what_libraries_log_joins_the_stream_with_its_traceback():
    """An error in a callback is not lost."""
    stream = io.StringIO()
    start_logging(json=True, stream=stream)

    try:
        raise ValueError("broken")  # noqa: TRY301 - it must have a traceback
    except ValueError:
        logging.getLogger("asyncio").exception("a callback failed")

    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["logger"]) == ("a callback failed", "error", "asyncio")
    assert "ValueError: broken" in line["exception"]
