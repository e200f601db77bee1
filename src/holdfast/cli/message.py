"""`holdfast message`: query."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.admin.messages import FoundMessage
from holdfast.admin.operations import Admin
from holdfast.admin.tables import Facts, Printable, Table, left, right, size_text, time_text
from holdfast.cli.arguments import TopicArgument
from holdfast.cli.message_text import body_text, to_object
from holdfast.cli.places import local_now, parse_time
from holdfast.cli.session import Session, cluster_command
from holdfast.model.errors import ConfigError
from holdfast.model.scope import to_shown_broker

app = typer.Typer(no_args_is_help=True, help="Find stored messages.")


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="message")


@app.callback()
def _nouns() -> None:
    """Keep `query` a verb of its own while it is the only one."""


@cluster_command(app, "query")
def query(
    session: Session,
    *,
    topic: TopicArgument,
    key: Annotated[str | None, typer.Option(help="A key of the message.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Its id: the sender's or the broker's.")] = None,
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

    async def find(admin: Admin) -> list[FoundMessage]:
        if message_id is not None:
            return await admin.messages.by_id(topic, message_id)
        assert key is not None
        return await admin.messages.by_key(topic, key, start_ms=start_ms, end_ms=end_ms, count_max=count)

    found = session.ask(find)
    objects = [
        to_object(each.message) | {"broker": to_shown_broker(each.queue_broker), "stored_on": each.broker}
        for each in found
    ]
    session.show({"topic": topic, "messages": objects}, *_printed(found, f"no message in {topic} has the key {key!r}"))


def _printed(found: list[FoundMessage], empty: str) -> list[Printable]:
    if len(found) == 1:
        return [_facts(found[0])]
    rows = [
        (
            each.message.message_id,
            to_shown_broker(each.queue_broker),
            each.message.queue.queue_id,
            each.message.offset,
            time_text(each.message.stored_ms),
            each.message.tags,
            size_text(len(each.message.body)),
            body_text(each.message)[:60],
        )
        for each in found
    ]
    columns = [*left("ID", "BROKER"), *right("QUEUE", "OFFSET"), *left("STORED", "TAG"), *right("SIZE"), *left("BODY")]
    return [Table(columns, rows, empty=empty)]


def _facts(found: FoundMessage) -> Printable:
    message = found.message
    return Facts(
        [
            ("id", message.message_id),
            ("offset id", message.offset_id),
            ("topic", message.topic),
            ("queue", f"{to_shown_broker(found.queue_broker)} {message.queue.queue_id}"),
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
