"""`holdfast index`: convert the index of a topic in the store folder of a stopped broker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.admin import tables
from holdfast.cli.progress import show_progress
from holdfast.model.errors import ConfigError
from holdfast.runtime.folder_lock import lock_store
from holdfast.store.base.options import StoreOptions
from holdfast.store.conversion.index_conversion import IndexConversion
from holdfast.store.recovery.conversion_plan import ConvertedKind, QueueFigures

app = typer.Typer(no_args_is_help=True, help="Work on the indexes of a stopped broker.")


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="index")


@app.callback()
def _keep_verb() -> None:
    """Make Typer keep `convert` as a verb although it is the only one."""


class ConversionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    Attributes:
        switched: Whether the topic has the new index now; False if the user asked for only one queue.
        resumed: Whether an earlier run had begun the conversion.
        converted: Entries that this run converted.
    """

    topic: str
    to: str
    store: str
    switched: bool
    resumed: bool = False
    converted: int = 0
    seconds: float = 0.0
    queues: list[QueueFigures] = []


@app.command("convert")
def convert(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    *,
    to: Annotated[ConvertedKind, typer.Option(help="`batch`: by record, 46 bytes; `simple`: by message, 20 bytes.")],
    store: Annotated[Path, typer.Option(metavar="DIR", help="The store folder of a stopped broker.")],
    queue: Annotated[
        int | None,
        typer.Option(min=0, help="Prepare this queue only, and do not switch.", show_default="all, and switch"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """Convert the index of a topic to the other kind, in the folder of a stopped broker or in a copy of it.

    May be interrupted at any time: run it again to continue. To `simple` only if every record is one message.

    Example: holdfast index convert orders --to batch --store holdfast-data/broker-a
    """
    del debug  # `main` reads it.
    started_s = time.monotonic()
    with lock_store(store) as disk:
        conversion = IndexConversion(disk, topic, to, options=StoreOptions())
        report = ConversionReport(topic=topic, to=to, store=str(store), switched=True, resumed=conversion.is_resumed)
        if conversion.plan is not None:
            if queue is not None and queue not in conversion.plan.spans:
                conversion.remove_if_unstarted()
                raise ConfigError(f"queue {queue} of {topic} has no message, only {sorted(conversion.plan.spans)} have")
            remaining = conversion.remaining_pieces(queue)
            total = sum(piece.end - piece.start for piece in remaining)
            with show_progress("converting, entries", total, quiet=as_json) as advance:
                for piece in remaining:
                    conversion.convert(piece)
                    advance(piece.end - piece.start)
            if queue is None:
                conversion.switch(time.time_ns() // 1_000_000)
            report = msgspec.structs.replace(
                report,
                switched=queue is None,
                converted=total,
                seconds=round(time.monotonic() - started_s, 3),
                queues=[each for each in conversion.plan.figures() if queue in {None, each.queue}],
            )
    show_report(report, as_json=as_json)


def show_report(report: ConversionReport, *, as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        tables.print_json(report)
        return
    columns = tables.right("QUEUE", "ENTRIES", "NEW ENTRIES", "BYTES", "NEW BYTES")
    rows = [(queue.queue, queue.entries, queue.new_entries, queue.bytes, queue.new_bytes) for queue in report.queues]
    kind = "by record (batch)" if report.to == "batch" else "by message (simple)"
    if not report.queues and not report.converted:
        tables.print_all([f"{report.topic} has an index {kind}"])
        return
    next_command = f"`holdfast index convert {report.topic} --to {report.to} --store {report.store}`"
    result = (
        f"{report.topic} has an index {kind} now"
        if report.switched
        else f"ready, but not yet in use: {next_command} converts the other queues and switches"
    )
    rate = report.converted / report.seconds if report.seconds else 0.0
    summary = (
        f"{report.converted:,} entries in {report.seconds:,.1f} s, {rate:,.0f} a second, each compared with its record"
    )
    tables.print_all([result, summary, tables.Table(columns, rows)])
