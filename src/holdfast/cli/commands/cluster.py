"""`holdfast cluster`: describe, rebalance."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.admin.route_push import RoutePushStatus
from holdfast.admin.tables import Cell, Facts, Table, left, right, spare, whole
from holdfast.cli.commands.broker import status_table
from holdfast.cli.completion import complete_topic
from holdfast.cli.move_output import NoWaitOption, carry_out
from holdfast.cli.session import DryRunOption, Session, cluster_command
from holdfast.wire.cluster.push_state import UNKNOWN, Percent, ReportedLinkCapacity, ReportedReadings

app = typer.Typer(no_args_is_help=True, help="Inspect the whole cluster, and rebalance its logical queues.")


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="cluster")


@cluster_command(app, "describe")
def describe(session: Session) -> None:
    """Show name servers, clusters, brokers and their totals.

    Example: holdfast cluster describe
    """
    found = session.execute(lambda admin: admin.cluster.describe())
    facts: list[tuple[str, str | int | float | None]] = [
        ("name servers", ", ".join(found.name_servers)),
        *((f"cluster {name}", ", ".join(brokers)) for name, brokers in found.clusters.items()),
        ("topics", found.topics),
        ("puts per second", found.puts_per_second),
        ("gets per second", found.gets_per_second),
        *link_facts(found.route_push),
        *(
            (f"trusted by {broker.name}", ", ".join(broker.trusted_brokers))
            for broker in found.brokers
            if broker.trusted_brokers
        ),
    ]
    session.show(found, Facts(facts), status_table(found.brokers), push_table(found.route_push))


def link_facts(statuses: list[RoutePushStatus]) -> list[tuple[str, str]]:
    """Return the link capacity of every name server that pushes routes, with its source."""
    return [(f"link of {each.address}", _capacity_text(each.link_capacity)) for each in statuses if each.link_capacity]


def _capacity_text(capacity: ReportedLinkCapacity) -> str:
    if capacity.mbit == UNKNOWN:
        return "unknown: the back-off ignores the network; set link_capacity_mbit"
    return f"{capacity.mbit} Mbit/s ({capacity.source})"


def push_table(statuses: list[RoutePushStatus]) -> Table:
    """Return the route push status of name servers as a table."""
    columns = [
        *whole("NAME SERVER"),
        *right("CLIENTS", "TOPICS", "PENDING"),
        *left("NOTICES"),
        *spare(1, right("MEMORY", "LOAD", "NETWORK")),
    ]
    return Table(columns, [_push_row(status) for status in statuses], title="Route push")


def _push_row(status: RoutePushStatus) -> tuple[Cell, ...]:
    if not status.pushes:
        push_text = "does not push" if status.fault is None else f"unknown: {status.fault}"
        return (status.address, None, None, None, push_text, None, None, None)
    readings = status.readings or ReportedReadings()
    return (
        status.address,
        status.watching_clients,
        status.watched_topics,
        status.pending_clients,
        f"{status.pace}: {status.reason}" if status.reason else status.pace,
        *(_percent(reading) for reading in (readings.memory, readings.load, readings.network)),
    )


def _percent(reading: Percent) -> str:
    return reading if isinstance(reading, str) else f"{reading:g} %"


@cluster_command(app, "rebalance")
def rebalance(
    session: Session,
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="This static topic only.", autocompletion=complete_topic)
    ] = None,
    no_wait: NoWaitOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Distribute the logical queues of all static topics evenly over the brokers, with the fewest moves.

    Example: holdfast cluster rebalance --dry-run
    """
    carry_out(
        session,
        lambda admin: admin.moves.plan_rebalance(topic),
        goal="every broker leads its share",
        dry_run=dry_run,
        no_wait=no_wait,
    )
