"""Log lines for the operator: one event, one line, on standard error.

    2026-11-15 17:50:23.123 [info     ] broker registered     broker=broker-a topics=12
    {"broker":"broker-a","event":"broker registered","level":"info","timestamp":"2026-11-15T17:50:23.12Z","topics":12}

Roles do no I/O: they return `Log` effects, and the shell passes them to `emit`. Records of libraries that use `logging`
join the same stream, so that there is one format. Standard output stays free for answers.

Untrusted peers can cause many events. A repeated event is written a limited number of times, then counted, so that no
peer can fill the operator's disk with log lines. Changes by administrators are all written. Long fields are cut.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

import structlog

from holdfast.machine.effects import Log

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

WINDOW_S: Final = 10.0
LINES_MAX: Final = 50  # per event and window
TEXT_SIZE_MAX: Final = 1000
_EVENTS_MAX: Final = 1000
_TRACEBACK: Final = "exception"  # the only field that is kept whole, and takes more than one line

Emit = Callable[[Log], None]


def start_logging(
    *,
    level: str = "info",
    json: bool = False,
    stream: TextIO | None = None,
    bound_fields: Mapping[str, object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Emit:
    """Return the function that writes one line per event, and capture the log records of libraries.

    Args:
        level: The lowest level that is written.
        json: Write JSON lines instead of text.
        stream: The output; by default standard error.
        bound_fields: Fields of every line, such as the role's name.
        clock: Measures the windows.
    """
    stream = stream or sys.stderr
    logger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=_processors(json=json, colors=not json and stream.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    ).bind(**(bound_fields or {}))

    def write(effect: Log) -> None:
        fields = {name: value if name == _TRACEBACK else _tidy(value) for name, value in effect.fields.items()}
        logger.bind(**fields).log(LEVELS.get(effect.level, 20), effect.event)

    emit = _Throttle(write, clock).emit
    logging.basicConfig(handlers=[_LibraryHandler(emit)], level=LEVELS[level], force=True)
    return emit


def _processors(*, json: bool, colors: bool) -> list[Any]:
    if json:
        return [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(default=str, sort_keys=True, separators=(",", ":")),
        ]
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S.%f", utc=False),
        _shorten_time,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
    ]


def _shorten_time(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event["timestamp"] = event["timestamp"][:-3]  # milliseconds are precise enough
    return event


def _tidy(value: object) -> object:
    """Cut a long text, and escape what a terminal would obey: texts may come from a peer."""
    if not isinstance(value, str):
        return value
    if len(value) > TEXT_SIZE_MAX:
        value = f"{value[:TEXT_SIZE_MAX]}... ({len(value)} characters)"
    return value if value.isprintable() else "".join(map(_escape, value))


def _escape(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


class _Throttle:
    """Writes each event up to `LINES_MAX` times per window, then reports how many more there were."""

    def __init__(self, write: Emit, clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # event -> (begin, count since then)

    def emit(self, effect: Log) -> None:
        """Write *effect*, or count it."""
        if effect.audit == "change":
            self._write(effect)
            return
        now = self._clock()
        begin, count = self._windows.get(effect.event, (now, 0))
        if now - begin >= WINDOW_S:
            if count > LINES_MAX:
                self._write(Log(effect.level, "not logged", {"what": effect.event, "times": count - LINES_MAX}))
            begin, count = now, 0
        if len(self._windows) > _EVENTS_MAX:
            self._windows.clear()  # Libraries create an unlimited number of distinct events.
        self._windows[effect.event] = begin, count + 1
        if count < LINES_MAX:
            self._write(effect)
        elif count == LINES_MAX:
            self._write(Log("warning", "too many of these, counted from here on", {"what": effect.event}))


class _LibraryHandler(logging.Handler):
    """Writes a library's log record to our stream."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= 40 else "warning" if record.levelno >= 30 else "info"
        fields: dict[str, object] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            fields[_TRACEBACK] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        self._emit(Log(level, record.getMessage(), fields))
