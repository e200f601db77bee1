"""Parse times and places in a queue that users type.

    earliest  latest  2026-11-15  2026-11-15T17:50  17:50:23  10m  2h  1d  @1763229023123

A time without a zone is local; a span (`10m`) means that long ago; `@` precedes milliseconds since 1970.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from holdfast.admin.offsets import OffsetTarget
from holdfast.model.errors import ConfigError

_SPAN: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_SPAN_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")
EXAMPLES: Final = "2026-11-15T17:50, 17:50 (today), 10m (ago) or @MILLISECONDS"


def parse_time(text: str, now: datetime) -> int:
    """Return the milliseconds since 1970 that *text* means at the time *now*, which has a zone.

    Raises:
        ConfigError: *text* is not a time; the message shows how to write one.
    """
    if text.startswith("@") and text[1:].isdecimal():
        return int(text[1:])
    if span := _SPAN.fullmatch(text):
        return _to_ms(now - timedelta(milliseconds=int(span[1]) * _SPAN_MS[span[2]]))
    if _CLOCK.fullmatch(text):
        text = f"{now:%Y-%m-%d}T{text:0>5}" if text.count(":") == 1 else f"{now:%Y-%m-%d}T{text:0>8}"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time; examples: {EXAMPLES}") from None
    return _to_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo))


def parse_target(text: str, now: datetime) -> OffsetTarget:
    """Return the place that *text* means: an end, a time, or a bare number for an offset.

    Raises:
        ConfigError: *text* is none of these.
    """
    if text == "earliest":
        return OffsetTarget("earliest")
    if text == "latest":
        return OffsetTarget("latest")
    if text.isdecimal():
        return OffsetTarget("offset", int(text))
    try:
        return OffsetTarget("time", parse_time(text, now))
    except ConfigError:
        raise ConfigError(f"{text!r} is not a place; give earliest, latest, an offset, or a time: {EXAMPLES}") from None


def local_now() -> datetime:
    """Return the local time, with its zone."""
    return datetime.now().astimezone()


def _to_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
