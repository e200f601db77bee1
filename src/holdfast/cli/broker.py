"""`holdfast broker`: list, describe."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from holdfast.admin.cluster import BrokerStatus
from holdfast.admin.tables import Facts, Printable, Table, left, right, time_text
from holdfast.cli.completion import complete_broker
from holdfast.cli.session import Session, cluster_command

# Figures that only mean something for a broker with thread pools, or that the first table has already.
_NOISE: Final = re.compile("ThreadPool|Transient|^timer|^brokerVersion|^dispatchMaxBuffer|LockTime|EntireTimeMax")

app = typer.Typer(no_args_is_help=True, help="Look at brokers.")


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="broker")


@cluster_command(app, "list")
def list_brokers(session: Session) -> None:
    """List brokers and how busy they are.

    Example: holdfast broker list
    """
    statuses = session.ask(lambda admin: admin.cluster.statuses())
    session.show({"brokers": statuses}, status_table(statuses))


@cluster_command(app, "describe")
def describe(
    session: Session,
    *,
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Name or address.", autocompletion=complete_broker)],
) -> None:
    """Show everything that a broker tells about itself: figures and settings.

    Example: holdfast broker describe broker-a
    """
    found = session.ask(lambda admin: admin.cluster.describe_broker(broker))
    parts: list[Printable] = []
    for each in found:
        parts.append(status_table([each.status]))
        parts.append(Facts([pair for pair in each.runtime.items() if not _NOISE.search(pair[0])], title="Figures"))
        parts.append(Facts(list(each.config.items()), title="Settings"))
    session.show({"brokers": found}, *parts)


def status_table(statuses: list[BrokerStatus]) -> Printable:
    """Return brokers as a table; one that does not answer has its reason in the last column."""
    rows = [
        (
            status.name,
            status.cluster,
            status.id,
            status.address,
            status.version,
            status.puts_per_second,
            status.gets_per_second,
            status.puts_today,
            None if status.disk_used_percent is None else f"{status.disk_used_percent:.0f} %",
            time_text(status.up_since_ms),
            *([] if all(each.fault is None for each in statuses) else [status.fault]),
        )
        for status in statuses
    ]
    columns = [
        *left("BROKER", "CLUSTER"),
        *right("ID"),
        *left("ADDRESS", "VERSION"),
        *right("PUT/S", "GET/S", "PUT TODAY", "DISK"),
        *left("UP SINCE"),
        *([] if all(each.fault is None for each in statuses) else left("FAULT")),
    ]
    return Table(columns, rows, empty="the name server knows no broker")
