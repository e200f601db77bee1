"""`holdfast broker`: list, describe, drain, spread, evacuate, remove."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from holdfast.admin.cluster import BrokerStatus
from holdfast.admin.draining import Hold, Home, hold_text, latest
from holdfast.admin.moves import MovePlan
from holdfast.admin.operations import Admin
from holdfast.admin.reach import NotAllowed
from holdfast.admin.tables import Facts, Printable, Table, left, right, time_text
from holdfast.cli.completion import complete_broker
from holdfast.cli.moving import (
    EvenIfAliveOption,
    ForceOption,
    NoWaitOption,
    carry_out,
    count_text,
    follow,
    show_outcome,
    show_plan,
    split_names,
)
from holdfast.cli.session import DryRunOption, Session, YesOption, cluster_command

# Figures that only mean something for a broker with thread pools, or that the first table has already.
_NOISE: Final = re.compile("ThreadPool|Transient|^timer|^brokerVersion|^dispatchMaxBuffer|LockTime|EntireTimeMax")

BrokerArgument = Annotated[str, typer.Argument(metavar="BROKER", help="Its name.", autocompletion=complete_broker)]

app = typer.Typer(no_args_is_help=True, help="Look at brokers; let them come and go under logical queues.")


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


@cluster_command(app, "drain")
def drain(
    session: Session,
    *,
    broker: BrokerArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return only when it can be removed.")] = False,
    discard_consumed: Annotated[
        str | None, typer.Option(metavar="GROUP,...", help="Drop old messages that all these groups have consumed.")
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Move every logical queue off a broker, and say what still holds it. Its old messages stay readable meanwhile.

    Example: holdfast broker drain broker-a --wait
    """
    groups = split_names(discard_consumed)
    plan = session.ask(lambda admin: admin.moves.plan_drain(broker))
    if dry_run:
        dropped = [] if not groups else session.ask(lambda admin: _discard(admin, broker, groups, dry_run=True))
        show_plan(session, plan, what=f"{broker} leads nothing", dry_run=True)
        if groups:
            session.note(f"old messages in {count_text(len(dropped), 'home')} would be dropped")
        return
    session.ask(lambda admin: admin.draining.mark(broker, draining=True))
    made = follow(session, session.ask(lambda admin: admin.moves.start(plan)))
    failed = [move for move in made if move.state != "done"]
    if failed:
        show_outcome(session, plan, made)
    dropped = session.ask(lambda admin: _discard(admin, broker, groups)) if groups else []
    if wait:
        _wait(session, broker)
    holds = session.ask(lambda admin: admin.draining.holds(broker))
    moved = sum(len(move.queues) for move in made)
    text = f"{broker} leads nothing; {count_text(moved, 'logical queue')} moved, bytes copied: 0"
    if dropped:
        text += f"; old messages in {count_text(len(dropped), 'home')} dropped"
    session.show(
        {
            "broker": broker,
            "moves": made,
            "discarded": dropped,
            "holds": holds,
            "removable": not holds,
            "bytes_copied": 0,
        },
        text,
        f"it gets no new ones until `holdfast broker spread {broker}` gives it its share again",
        *hold_parts(broker, holds),
    )


@cluster_command(app, "spread")
def spread(
    session: Session, *, broker: BrokerArgument, no_wait: NoWaitOption = False, dry_run: DryRunOption = False
) -> None:
    """Give a new broker, or one that was drained, its share of every static topic. No queue moves between the others.

    Example: holdfast broker spread broker-c --dry-run
    """

    async def plan(admin: Admin) -> MovePlan:
        planned = await admin.moves.plan_spread(broker)
        if not dry_run:
            await admin.draining.mark(broker, draining=False)
        return planned

    carry_out(
        session,
        plan,
        what=f"{broker} leads its share",
        dry_run=dry_run,
        no_wait=no_wait,
    )


@cluster_command(app, "evacuate")
def evacuate(
    session: Session,
    *,
    broker: BrokerArgument,
    force: ForceOption = False,
    even_if_alive: EvenIfAliveOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Open every queue of a dead broker elsewhere, behind a gap of offsets. When it returns it serves what it had.

    Example: holdfast broker evacuate broker-a --force
    """
    if not force:
        raise NotAllowed(
            f"evacuating says that {broker} is dead for good: add --force to say so. If it is alive, `holdfast broker"
            f" drain {broker}` moves its queues and skips no offset"
        )
    carry_out(
        session,
        lambda admin: admin.forcing.plan_evacuation(broker, even_if_alive=even_if_alive),
        what=f"{broker} leads nothing",
        dry_run=dry_run,
        forced=True,
        yes=yes,
    )


@cluster_command(app, "remove")
def remove(
    session: Session,
    *,
    broker: BrokerArgument,
    force: Annotated[bool, typer.Option("--force", help="Though it does not answer.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Let everybody forget a broker that nothing needs any more. Asks first, when it runs at a terminal.

    Example: holdfast broker remove broker-a
    """
    if dry_run:
        holds = session.ask(lambda admin: admin.draining.holds(broker))
        value = {"broker": broker, "dry_run": True, "removable": not holds, "holds": holds}
        session.show(value, *hold_parts(broker, holds))
        return
    session.confirm(f"Let everybody forget {broker}?", yes=yes)
    forgot = session.ask(lambda admin: admin.draining.remove(broker, force=force))
    session.show(
        {"broker": broker, "dry_run": False, "removed": True, "forgotten_by": forgot},
        f"{broker} is forgotten by {', '.join(forgot)} and the name servers; stop its process now, or it comes back",
    )


async def _discard(admin: Admin, broker: str, groups: list[str], *, dry_run: bool = False) -> list[Home]:
    dropped, _ = await admin.draining.discard_consumed(broker, groups, dry_run=dry_run)
    return dropped


def _wait(session: Session, broker: str) -> None:
    """Wait until nothing holds *broker*; every change is told on standard error."""

    def tell(holds: Sequence[Hold]) -> None:
        if holds:
            until = time_text(latest(holds))
            session.note(f"waiting: {'; '.join(map(hold_text, holds))}{f' (until {until})' if until else ''}")

    try:
        session.ask(lambda admin: admin.draining.wait(broker, tell))
    except KeyboardInterrupt:
        session.note(f"{broker} stays drained; ask again with `holdfast broker drain {broker} --wait`")
        raise


def hold_parts(broker: str, holds: Sequence[Hold]) -> list[Printable]:
    """Return what still holds a broker, and what ends it."""
    if not holds:
        return [f"nothing holds {broker}: it can be removed with `holdfast broker remove {broker}`"]
    rows = [(hold_text(hold), time_text(hold.until_ms), hold.remedy) for hold in holds]
    return [Table(left("STILL NEEDED", "UNTIL", "WHAT ENDS IT"), rows, title=f"What still holds {broker}")]


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
