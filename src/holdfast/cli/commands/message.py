"""`holdfast message`: query."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from holdfast.admin.messages import FoundMessage, Origin
from holdfast.admin.operations import Admin
from holdfast.admin.tables import Facts, Printable, Table, left, right, size_text, spare, time_text, truncated, whole
from holdfast.cli.arguments import TopicArgument
from holdfast.cli.message_text import body_text, origin_text, to_object
from holdfast.cli.queue_position_text import local_now, parse_time
from holdfast.cli.session import Session, cluster_command
from holdfast.model.errors import ConfigError
from holdfast.model.scope import to_shown_broker

_BODY_MAX: Final = 60

app = typer.Typer(no_args_is_help=True, help="Find stored messages.")


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="message")


@app.callback()
def _keep_verb() -> None:
    """Make Typer keep `query` as a verb although it is the only one."""


@cluster_command(app, "query")
def query(
    session: Session,
    *,
    topic: TopicArgument,
    key: Annotated[str | None, typer.Option(help="A key of the message.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Its id: the producer's or the broker's.")] = None,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Stored at this time or later.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Stored at this time or before.")] = None,
    count: Annotated[int, typer.Option("--max", "-n", min=1, help="At most this many.")] = 64,
) -> None:
    """Find messages by key or by id.

    Example: holdfast message query orders --key customer-17
    """
    if (key is None) == (message_id is None):
        raise ConfigError("give --key KEY or --id ID")
    now = local_now()
    start_ms = parse_time(since, now) if since is not None else 0
    end_ms = parse_time(until, now) if until is not None else 0x7FFFFFFFFFFFFFFF

    async def find(admin: Admin) -> tuple[list[FoundMessage], list[Origin | None]]:
        if message_id is not None:
            found = await admin.messages.by_id(topic, message_id)
        else:
            assert key is not None
            found = await admin.messages.by_key(topic, key, start_ms=start_ms, end_ms=end_ms, count_max=count)
        return found, [await admin.messages.find_origin(each.message) for each in found]

    found, origins = session.execute(find)
    objects = [
        to_object(each.message, origin) | {"broker": to_shown_broker(each.queue_broker), "stored_on": each.broker}
        for each, origin in zip(found, origins, strict=True)
    ]
    empty = f"no message in {topic} has the key {key!r}"
    session.show({"topic": topic, "messages": objects}, *_printed(found, origins, empty))


def _printed(found: list[FoundMessage], origins: list[Origin | None], empty: str) -> list[Printable]:
    if len(found) == 1:
        return [_facts(found[0], origins[0])]
    has_origin = any(origins)
    rows = [
        (
            each.message.message_id,
            to_shown_broker(each.queue_broker),
            each.message.queue.queue_id,
            each.message.offset,
            time_text(each.message.stored_ms),
            each.message.tags,
            size_text(len(each.message.body)),
            *([None if origin is None else origin_text(origin)] if has_origin else []),
            body_text(each.message)[:_BODY_MAX],
        )
        for each, origin in zip(found, origins, strict=True)
    ]
    columns = [
        *whole("ID"),
        *left("BROKER"),
        *right("QUEUE", "OFFSET"),
        *spare(1, whole("STORED")),
        *spare(2, left("TAG")),
        *spare(3, right("SIZE")),
        *([*left("FROM"), *spare(4, truncated("BODY"))] if has_origin else truncated("BODY")),
    ]
    return [Table(columns, rows, empty=empty)]


def _facts(found: FoundMessage, origin: Origin | None) -> Printable:
    message = found.message
    return Facts(
        [
            ("id", message.message_id),
            ("offset id", message.offset_id),
            ("topic", message.topic),
            ("queue", f"{to_shown_broker(found.queue_broker)} {message.queue.queue_id}"),
            *([] if origin is None else [("from", origin_text(origin))]),
            ("stored on", found.broker),
            ("offset", message.offset),
            ("stored", time_text(message.stored_ms)),
            ("sent", time_text(message.born_ms)),
            ("tag", message.tags),
            ("keys", " ".join(message.keys) or None),
            ("retries", message.reconsume_times),
            *((f"property {name}", value) for name, value in sorted(message.user_properties.items())),
            ("size", size_text(len(message.body))),
            ("body", body_text(message)),
        ]
    )
