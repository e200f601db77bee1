"""`holdfast tail`: print messages of a topic, the last ones or all of them, and go on printing what arrives."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from holdfast.admin.offsets import QueueRange, describe_down
from holdfast.admin.operations import Admin
from holdfast.admin.reading import Reader
from holdfast.admin.tables import print_json
from holdfast.cli.arguments import TopicArgument
from holdfast.cli.message_text import Format, to_object, write_message
from holdfast.cli.places import local_now, parse_target
from holdfast.cli.session import Session, cluster_command
from holdfast.model.errors import ConfigError
from holdfast.model.message import ReceivedMessage
from holdfast.model.scope import to_wire_broker

DEFAULT_LAST: Final = 10
_LAST_N: Final = re.compile(r"-(\d+)")


def register(root: typer.Typer) -> None:
    """Add this command to the tree."""
    cluster_command(root, "tail")(tail)


class _Selection(msgspec.Struct, frozen=True):
    """Which messages are printed."""

    pattern: re.Pattern[str] | None
    count_max: int | None

    def wants(self, message: ReceivedMessage) -> bool:
        if self.pattern is None:
            return True
        texts = (message.body.decode("utf-8", "replace"), *message.keys, *message.user_properties.values())
        return any(self.pattern.search(text) for text in texts)


def tail(
    session: Session,
    *,
    topic: TopicArgument,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, a time, an offset, or -N for the last N.",
            show_default="-10",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what arrives, until Ctrl-C.")] = False,
    tag: Annotated[str, typer.Option(metavar="A || B", help="Only messages with one of these tags.")] = "*",
    pattern: Annotated[
        str | None, typer.Option("--filter", metavar="REGEX", help="Only where body, keys or properties match.")
    ] = None,
    count: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this many.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Only the queues of this number.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only the queues of this broker.")] = None,
    style: Annotated[
        Format, typer.Option("--format", help="A line, a JSON object, the body and a newline, the bare body.")
    ] = "text",
) -> None:
    """Print messages of a topic without consuming them: no group sees them gone.

    Without --from the last 10 are printed, with --follow only what arrives from now on. A time is
    2026-11-15T17:50, 17:50 (today), 10m (ago) or @MILLISECONDS.

    Example: holdfast tail orders --from 10m --filter 'customer-1[0-9]' --follow
    """
    selection = _Selection(_compile(pattern), count)
    place = start or ("latest" if follow else f"-{DEFAULT_LAST}")

    async def print_all(admin: Admin) -> list[dict[str, Any]]:
        collected = []
        wire_broker = to_wire_broker(broker) if broker else None
        readable = await admin.offsets.readable(topic, queue=queue, broker=wire_broker)
        if readable.down:
            session.warn(f"{describe_down(topic, readable.down)}: what they hold is not shown")
        ranges = readable.ranges
        shown = 0
        async with contextlib.aclosing(_read(admin, ranges, place, tag, follow=follow)) as messages:
            async for message in messages:
                if not selection.wants(message):
                    continue
                if session.as_json and not follow:
                    collected.append(to_object(message))
                else:
                    write_message(message, "json" if session.as_json else style)
                shown += 1
                if shown == selection.count_max:
                    break
        return collected

    collected = session.ask(print_all)
    if session.as_json and not follow:
        print_json({"topic": topic, "messages": collected})


async def _read(
    admin: Admin, ranges: Sequence[QueueRange], place: str, tag: str, *, follow: bool
) -> AsyncGenerator[ReceivedMessage, None]:
    reader = Reader(admin.reach, tag)
    if last := _LAST_N.fullmatch(place):
        for message in await _last(reader, ranges, int(last[1])):
            yield message
    else:
        target = parse_target(place, local_now())
        starts = [await admin.offsets.find(held, target) for held in ranges]
        history = [msgspec.structs.replace(held, start=start) for held, start in zip(ranges, starts, strict=True)]
        async with contextlib.aclosing(reader.history(history)) as messages:
            async for message in messages:
                yield message
    if follow:
        async with contextlib.aclosing(reader.follow(ranges)) as messages:
            async for message in messages:
                yield message


async def _last(reader: Reader, ranges: Sequence[QueueRange], count: int) -> list[ReceivedMessage]:
    """Return the last *count* messages over all queues. They are among the last *count* of each."""
    tails = [msgspec.structs.replace(held, start=max(held.start, held.end - count)) for held in ranges]
    found = [message async for message in reader.history(tails)]
    return found[-count:] if count else []


def _compile(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--filter {pattern!r} is no regular expression: {error}") from error
