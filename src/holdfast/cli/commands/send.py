"""`holdfast send`: one message from the command line, a file as one message, or every line of standard input."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from holdfast.admin.operations import Admin
from holdfast.admin.topics import kind_of
from holdfast.cli.arguments import TopicArgument
from holdfast.cli.progress import show_progress
from holdfast.cli.session import Session, cluster_command, parse_pairs
from holdfast.client.producer import Producer
from holdfast.model.errors import ConfigError, HoldfastError
from holdfast.model.message import Message, SendResult
from holdfast.model.scope import to_shown_broker
from holdfast.model.spelling_hint import closest

GROUP: Final = "holdfast-cli"
IN_FLIGHT_MAX: Final = 256


def register(root: typer.Typer) -> None:
    """Add this command to the tree."""
    cluster_command(root, "send")(send)


def send(
    session: Session,
    *,
    topic: TopicArgument,
    body: Annotated[
        str | None,
        typer.Argument(metavar="BODY", help="The message; '-' or nothing reads lines from standard input."),
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Send the content of this file.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Send every line of the file as a separate message.")] = False,
    key: Annotated[str | None, typer.Option(help="Messages with one key stay in order; keys can be searched.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Each line is KEY, this text, and the message.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="A tag by which consumers select.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Add a property; can be repeated.")
    ] = None,
    delay_level: Annotated[int, typer.Option(min=0, max=18, help="Deliver later: 1 is 1 s, 5 is 1 m, 18 is 2 h.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Send it this many times.")] = 1,
) -> None:
    """Send messages. If the topic does not exist and brokers may create topics, it is created, and a note says so.

    Example: holdfast send orders '{"id": 17}' --key customer-17 --tag paid
    """
    extra = parse_pairs(properties or [], option="--property")
    base = Message(topic, b"", tag, key, (), delay_level, 0, extra)
    messages, total = _messages(base, body, file, lines=lines, separator=key_separator, count=count)
    existed = session.execute(lambda admin: _exists(admin, topic))
    started_s = time.monotonic()
    results = session.run(_send_all(session, messages, total))
    seconds = time.monotonic() - started_s
    if results and not existed:
        session.note(session.execute(lambda admin: _created_text(admin, topic)))
    session.show(
        {
            "topic": topic,
            "created": bool(results) and not existed,
            "sent": len(results),
            "seconds": round(seconds, 3),
            "messages": [_result_fields(result) for result in results],
        },
        _result_text(results, seconds),
    )


async def _exists(admin: Admin, topic: str) -> bool:
    """Return whether the topic exists. If no cluster is reachable, this fails with a clear error before any send."""
    return await admin.access.find_route_and_reports(topic) is not None


async def _created_text(admin: Admin, topic: str) -> str:
    """Return the note about a topic that the first message created: its name may be a typing error."""
    found = await admin.access.find_route_and_reports(topic)  # other brokers may register it a moment later
    queues = (
        ""
        if found is None
        else ", ".join(f"{data.write_queues} on {data.broker_name}" for data in found[0].queue_datas)
    )
    other_topics = {name for name in await admin.topics.names() if name != topic and kind_of(name, set()) == "normal"}
    similar_topic = closest(topic, other_topics)
    hint = (
        "" if similar_topic is None else f". If you meant {similar_topic}: `holdfast topic delete {topic}` removes it"
    )
    return f"topic {topic} did not exist and was created{f', queues so far: {queues}' if queues else ''}{hint}"


def _messages(
    base: Message, body: str | None, file: Path | None, *, lines: bool, separator: str | None, count: int
) -> tuple[Iterator[Message], int | None]:
    """Return the messages to send, and their number if it is known."""
    if body not in {None, "-"} and file is not None:
        raise ConfigError("give either the message or --file, not both")
    if body not in {None, "-"}:
        assert body is not None
        return _repeat(base, body.encode(), count), count
    if file is not None and not lines:
        return _repeat(base, file.read_bytes(), count), count
    if count != 1:
        raise ConfigError("--count repeats one message; it cannot be combined with lines")
    if file is None and sys.stdin.isatty():
        sys.stderr.write("reading lines from the terminal; end with Ctrl-D\n")
    return _from_lines(base, file, separator), None


def _repeat(base: Message, body: bytes, count: int) -> Iterator[Message]:
    if not body:
        raise ConfigError("the message is empty; a message needs a body")
    message = msgspec.structs.replace(base, body=body)
    return (message for _ in range(count))


def _from_lines(base: Message, file: Path | None, separator: str | None) -> Iterator[Message]:
    """Yield a message for every line that is not empty."""
    with sys.stdin.buffer if file is None else file.open("rb") as source:
        for line in source:
            body = line.rstrip(b"\r\n")
            if not body:
                continue
            if separator is None:
                yield msgspec.structs.replace(base, body=body)
                continue
            key, found, body = body.partition(separator.encode())
            if not found:
                excerpt = key[:40].decode("utf-8", "replace")
                raise ConfigError(f"line {excerpt!r} has no {separator!r} between key and message")
            yield msgspec.structs.replace(base, body=body, key=key.decode("utf-8", "replace"))


async def _send_all(session: Session, messages: Iterator[Message], total: int | None) -> list[SendResult]:
    """Send all messages with many in flight; stop sending after the first failure."""
    results: list[SendResult] = []
    failures: list[HoldfastError] = []
    async with Producer(
        session.namesrv,
        GROUP,
        timeout_s=session.timeout_s,
        unit=session.unit,
        tls=session.tls,
        **session.access,
    ) as producer:
        with show_progress("sending", total, quiet=session.as_json or total == 1) as advance:
            window = asyncio.Semaphore(IN_FLIGHT_MAX)

            async def send_one(message: Message) -> None:
                try:
                    results.append(await producer.send(message))
                    advance(1)
                except HoldfastError as error:
                    failures.append(error)
                finally:
                    window.release()

            async with asyncio.TaskGroup() as group:
                try:
                    for message in messages:
                        await window.acquire()
                        if failures:
                            break
                        group.create_task(send_one(message))
                except HoldfastError as error:  # An invalid line; the messages before it are already in flight.
                    failures.append(error)
    if failures and total == 1:
        raise failures[0]
    if failures:
        raise HoldfastError(f"{len(results)} messages sent, then {len(failures)} failed: {failures[0]}")
    return results


def _result_fields(result: SendResult) -> dict[str, str | int]:
    return {
        "id": result.message_id,
        "broker": to_shown_broker(result.queue.broker_name),
        "queue": result.queue.queue_id,
        "offset": result.offset,
        "offset_id": result.offset_id,
        "status": result.status.name,
    }


def _result_text(results: list[SendResult], seconds: float) -> str:
    if len(results) == 1:
        result = results[0]
        destination = (
            f"{to_shown_broker(result.queue.broker_name)} queue {result.queue.queue_id} offset {result.offset}"
        )
        return f"sent {result.message_id} to {destination}"
    return f"sent {len(results):,} messages in {seconds:.2f} s ({len(results) / max(seconds, 1e-9):,.0f}/s)"
