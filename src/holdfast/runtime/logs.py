"""What a role tells its operator: one event, one line, on standard error.

    2026-11-15 17:50:23.123 [info     ] broker registered     broker=broker-a topics=12
    {"broker":"broker-a","event":"broker registered","level":"info","timestamp":"2026-11-15T17:50:23.12Z","topics":12}

Roles never write: they return `Log` effects and the shell hands them to `emit`. What libraries say through `logging`
joins the same stream, so that there is one format to read. Standard output stays free for answers.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

import structlog

from holdfast.machine.effects import Log

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Emit = Callable[[Log], None]


def start_logging(
    *,
    level: str = "info",
    json: bool = False,
    stream: TextIO | None = None,
    bound: Mapping[str, object] | None = None,
) -> Emit:
    """Return the function that writes one line per event, and catch what libraries log.

    Args:
        level: The lowest level that is written.
        json: JSON lines instead of text.
        stream: Where to; standard error unless given.
        bound: Fields that every line carries, such as the role's name.
    """
    stream = stream or sys.stderr
    logger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=_processors(json=json, colors=not json and stream.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    ).bind(**(bound or {}))

    def emit(effect: Log) -> None:
        logger.bind(**effect.fields).log(LEVELS.get(effect.level, 20), effect.event)

    logging.basicConfig(handlers=[_Forward(emit)], level=LEVELS[level], force=True)
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
    event["timestamp"] = event["timestamp"][:-3]  # nobody reads microseconds
    return event


class _Forward(logging.Handler):
    """Brings a library's record into our stream."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= 40 else "warning" if record.levelno >= 30 else "info"
        fields: dict[str, object] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            # An error that nobody expected is the one thing that takes more than a line: its traceback is the news.
            fields["exception"] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        self._emit(Log(level, record.getMessage(), fields))
