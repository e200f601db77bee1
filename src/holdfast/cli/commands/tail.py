"""`holdfast tail`: print messages of a topic, the newest or from a given place on, and optionally those that arrive."""

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
from holdfast.cli.queue_position_text import local_now, parse_target
from holdfast.cli.session import Session, cluster_command
from holdfast.model.errors import ConfigError
from holdfast.model.message import ReceivedMessage
from holdfast.model.scope import to_wire_broker

DEFAULT_LAST: Final = 10
_LAST_N: Final = re.compile(r"-([1-9]\d*)")


def register(root: typer.Typer) -> None:
    """Add this command to the tree."""
    cluster_command(root, "tail")(tail)


class _Selection(msgspec.Struct, frozen=True):
    """Selects the messages to print."""

    pattern: re.Pattern[str] | None
    count_max: int | None

    def matches(self, message: ReceivedMessage) -> bool:
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
            help="Begin here: earliest, latest, a time or an offset.",
            show_default="the newest 10",
        ),
    ] = None,
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, help="The newest N over all queues.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then print messages as they arrive, until Ctrl-C.")
    ] = False,
    tag: Annotated[str, typer.Option(metavar="A || B", help="Only messages with one of these tags.")] = "*",
    pattern: Annotated[
        str | None, typer.Option("--filter", metavar="REGEX", help="Only where body, keys or properties match.")
    ] = None,
    count: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Only the queues with this number.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only the queues of this broker.")] = None,
    style: Annotated[
        Format, typer.Option("--format", help="A line, a JSON object, the body and a newline, or the bare body.")
    ] = "text",
) -> None:
    """Print messages of a topic without consuming them: no group's offsets change.

    Without --from it prints the newest 10 messages that --tag and --filter select, or the newest N with -n N; with
    --follow and without -n it prints only those that arrive from now on. A time is 2026-11-15T17:50, 17:50 (today), 10m
    (ago) or @MILLISECONDS.

    Example: holdfast tail orders -n 3

    Example: holdfast tail orders --from 10m --filter 'customer-1[0-9]' --follow
    """
    selection = _Selection(_compile(pattern), count)
    start_text = _resolve_start(start, last, count, follow=follow)

    async def print_all(admin: Admin) -> list[dict[str, Any]]:
        collected = []
        wire_broker = to_wire_broker(broker) if broker else None
        readable = await admin.offsets.find_readable(topic, queue=queue, broker=wire_broker)
        if readable.down:
            session.warn(f"{describe_down(topic, readable.down)}: their messages are not shown")
        for reason in readable.refused:
            session.warn(f"{reason}: its messages are not shown")
        ranges = readable.ranges
        shown = 0
        async with contextlib.aclosing(
            _read_messages(admin, ranges, start_text, selection, tag, follow=follow)
        ) as messages:
            async for message in messages:
                if not selection.matches(message):
                    continue
                origin = await admin.messages.find_origin(message)
                if session.as_json and not follow:
                    collected.append(to_object(message, origin))
                else:
                    write_message(message, "json" if session.as_json else style, origin)
                shown += 1
                if shown == selection.count_max:
                    break
        return collected

    collected = session.execute(print_all)
    if session.as_json and not follow:
        print_json({"topic": topic, "messages": collected})


def _resolve_start(start: str | None, last: int | None, count: int | None, *, follow: bool) -> str:
    """Return the place to begin, in the syntax of `--from`, or `-N` for the newest N.

    Raises:
        ConfigError: the options contradict each other.
    """
    if last is None:
        return start or ("latest" if follow else f"-{count or DEFAULT_LAST}")
    if start is not None:
        raise ConfigError("-n begins at the newest N, --from at a place: give one of them. --max limits the output")
    if count is not None and not follow:
        raise ConfigError("-n and --max both limit the output: give one of them")
    return f"-{last}"


async def _read_messages(
    admin: Admin, ranges: Sequence[QueueRange], start_text: str, selection: _Selection, tag: str, *, follow: bool
) -> AsyncGenerator[ReceivedMessage, None]:
    reader = Reader(admin.access, tag)
    if last := _LAST_N.fullmatch(start_text):
        for message in await reader.newest(ranges, int(last[1]), selection.matches):
            yield message
    else:
        target = parse_target(start_text, local_now())
        starts = [await admin.offsets.find_offset(queue_range, target) for queue_range in ranges]
        history = [
            msgspec.structs.replace(queue_range, start=start) for queue_range, start in zip(ranges, starts, strict=True)
        ]
        async with contextlib.aclosing(reader.history(history)) as messages:
            async for message in messages:
                yield message
    if follow:
        async with contextlib.aclosing(reader.follow(ranges)) as messages:
            async for message in messages:
                yield message


def _compile(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--filter {pattern!r} is not a regular expression: {error}") from error
