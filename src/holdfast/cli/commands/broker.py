"""`holdfast broker`: list, describe, drain, spread, evacuate, remove."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from holdfast.admin.cluster import BrokerStatus
from holdfast.admin.cluster_access import NotAllowed
from holdfast.admin.combined import broker_list
from holdfast.admin.combined.move_orders import DrainOrder, start_order
from holdfast.admin.draining import DrainedSegment, RemovalBlocker, blocker_text, latest_end_ms
from holdfast.admin.moves import MovePlan
from holdfast.admin.operations import Admin
from holdfast.admin.tables import Printable, Table, count_text, left, names, right, spare, time_text, whole
from holdfast.cli.broker_keys import figure_rows, setting_rows
from holdfast.cli.completion import complete_broker
from holdfast.cli.move_output import (
    EvenIfAliveOption,
    ForceOption,
    NoWaitOption,
    carry_out,
    copied_text,
    count_copied,
    follow,
    show_outcome,
    show_plan,
    split_names,
)
from holdfast.cli.session import DryRunOption, Session, YesOption, cluster_command
from holdfast.wire.frames.versions import version_name

# Figures that only apply to a broker with thread pools, or that the first table already shows.
_HIDDEN_FIGURES: Final = re.compile(
    "ThreadPool|Transient|^timer|^brokerVersion|^dispatchMaxBuffer|LockTime|EntireTimeMax"
)

_LINES_MAX: Final = 5

BrokerArgument = Annotated[str, typer.Argument(metavar="BROKER", help="Its name.", autocompletion=complete_broker)]

app = typer.Typer(no_args_is_help=True, help="Inspect brokers; add and remove them under logical queues.")


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="broker")


@cluster_command(app, "list")
def list_brokers(session: Session) -> None:
    """List brokers and their load.

    Example: holdfast broker list
    """
    found = session.execute(broker_list.list_brokers)
    session.show(found, status_table(found.brokers), *map(_down_text, found.down, found.down.values()))


@cluster_command(app, "describe")
def describe(
    session: Session,
    *,
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Name or address.", autocompletion=complete_broker)],
) -> None:
    """Show the figures and settings that a broker reports, with the meaning of each.

    Example: holdfast broker describe broker-a
    """
    found = session.execute(lambda admin: admin.cluster.describe_broker(broker))
    parts: list[Printable] = []
    for each in found:
        parts.append(status_table([each.status]))
        figures = {key: value for key, value in each.runtime.items() if not _HIDDEN_FIGURES.search(key)}
        parts.append(Table(left("KEY", "VALUE", "MEANING"), figure_rows(figures), title="Figures"))
        parts.append(Table([*left("KEY", "VALUE"), *names("MEANING")], setting_rows(each.config), title="Settings"))
    session.show({"brokers": found}, *parts)


@cluster_command(app, "drain")
def drain(
    session: Session,
    *,
    broker: BrokerArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it can be removed.")] = False,
    discard_consumed: Annotated[
        str | None, typer.Option(metavar="GROUP,...", help="Discard old messages that all these groups have consumed.")
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Move every logical queue off a broker, and show why it is still needed. Its old messages stay readable meanwhile.

    Example: holdfast broker drain broker-a --wait
    """
    groups = split_names(discard_consumed)

    async def make_plan(admin: Admin) -> MovePlan:
        for group in groups:
            await admin.groups.check_exists(group)
        return await admin.moves.plan_drain(broker)

    plan = session.execute(make_plan)
    if dry_run:
        discarded, kept = session.execute(lambda admin: admin.draining.discard_consumed(broker, groups, dry_run=True))
        show_plan(session, plan, goal=f"{broker} leads nothing", dry_run=True)
        if groups:
            session.note(f"old messages in {count_text(len(discarded), 'segment')} would be discarded")
            _note_kept(session, kept)
        return
    moves = follow(session, session.execute(lambda admin: start_order(admin, DrainOrder(broker=broker), plan)))
    failed = [move for move in moves if move.state != "done"]
    if failed:
        show_outcome(session, plan, moves)
    discarded, kept = session.execute(lambda admin: admin.draining.discard_consumed(broker, groups))
    _note_kept(session, kept)
    if wait:
        discarded += _wait_until_removable(session, broker, groups)
    blockers = session.execute(lambda admin: admin.draining.find_blockers(broker))
    moved = sum(len(move.queues) for move in moves)
    text = f"{broker} leads nothing; {count_text(moved, 'logical queue')} moved{copied_text(moves)}"
    if discarded:
        text += f"; old messages in {count_text(len(discarded), 'segment')} discarded"
    session.show(
        {
            "broker": broker,
            "moves": moves,
            "discarded": discarded,
            "kept": [] if wait else kept,
            "holds": blockers,
            "removable": not blockers,
            "bytes_copied": count_copied(moves),
        },
        text,
        f"it gets no new logical queues until `holdfast broker spread {broker}` gives it its share again",
        *blocker_parts(broker, blockers),
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
            await admin.draining.set_draining(broker, draining=False)
        return planned

    carry_out(
        session,
        plan,
        goal=f"{broker} leads its share",
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
    """Open every queue of a dead broker elsewhere, after a gap of offsets. If it returns, it serves its old messages.

    Example: holdfast broker evacuate broker-a --force
    """
    if not force:
        raise NotAllowed(
            f"evacuate assumes that {broker} is dead for good: add --force to confirm that. If it is alive, `holdfast"
            f" broker drain {broker}` moves its queues and skips no offset"
        )
    carry_out(
        session,
        lambda admin: admin.forced_moves.plan_evacuation(broker, even_if_alive=even_if_alive),
        goal=f"{broker} leads nothing",
        dry_run=dry_run,
        forced=True,
        yes=yes,
    )


@cluster_command(app, "remove")
def remove(
    session: Session,
    *,
    broker: BrokerArgument,
    force: Annotated[bool, typer.Option("--force", help="Remove it even if it does not answer.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Remove a broker that is no longer needed from all other servers. Asks first when run at a terminal.

    Example: holdfast broker remove broker-a
    """
    if dry_run:
        blockers = session.execute(lambda admin: admin.draining.find_blockers(broker))
        value = {"broker": broker, "dry_run": True, "removable": not blockers, "holds": blockers}
        session.show(value, *blocker_parts(broker, blockers))
        return
    session.confirm(f"Remove {broker} from all other servers?", yes=yes)
    other_brokers = session.execute(lambda admin: admin.draining.remove(broker, force=force))
    session.show(
        {"broker": broker, "dry_run": False, "removed": True, "forgotten_by": other_brokers},
        f"{', '.join(other_brokers)} and the name servers removed {broker}; stop its process now, or it registers "
        "again",
    )


def _note_kept(session: Session, kept: list[DrainedSegment]) -> None:
    """Print why some old messages were kept although the user asked to discard them."""
    for segment in kept[:_LINES_MAX]:
        session.note(f"kept: queue {segment.queue} of {segment.topic} up to {segment.last}, {segment.kept_for}")
    if len(kept) > _LINES_MAX:
        session.note(f"and {len(kept) - _LINES_MAX} more")


def _wait_until_removable(session: Session, broker: str, groups: list[str]) -> list[DrainedSegment]:
    """Wait until *broker* can be removed; print changes on standard error. Return the segments discarded meanwhile."""

    def on_change(blockers: Sequence[RemovalBlocker]) -> None:
        if blockers:
            until = time_text(latest_end_ms(blockers))
            session.note(f"waiting: {'; '.join(map(blocker_text, blockers))}{f' (until {until})' if until else ''}")

    try:
        return session.execute(lambda admin: admin.draining.wait_until_removable(broker, on_change, groups=groups))
    except KeyboardInterrupt:
        session.note(f"{broker} stays drained; wait again with `holdfast broker drain {broker} --wait`")
        raise


def blocker_parts(broker: str, blockers: Sequence[RemovalBlocker]) -> list[Printable]:
    """Return a table of the reasons why a broker is still needed, and the remedies."""
    if not blockers:
        return [f"{broker} is no longer needed: remove it with `holdfast broker remove {broker}`"]
    rows = [(blocker_text(blocker), time_text(blocker.until_ms), blocker.remedy) for blocker in blockers]
    return [
        Table([*left("STILL NEEDED"), *whole("UNTIL"), *left("REMEDY")], rows, title=f"Why {broker} is still needed")
    ]


def status_table(statuses: list[BrokerStatus]) -> Printable:
    """Return brokers as a table. For a broker that does not answer, the last column says why.

    Columns about logical queues and replicas appear only if some broker reports them.
    """
    has_static = any(status.leads is not None for status in statuses)
    has_replicas = any(status.replication is not None for status in statuses)
    rows = [
        (
            status.name,
            status.cluster,
            status.id,
            status.address,
            version_name(status.version),
            status.puts_per_second,
            status.gets_per_second,
            status.puts_today,
            None if status.disk_used_percent is None else f"{status.disk_used_percent:.0f} %",
            time_text(status.up_since_ms),
            *([status.leads, _drain_state(status)] if has_static else []),
            *([status.replication] if has_replicas else []),
            *([] if all(each.fault is None for each in statuses) else [status.fault]),
        )
        for status in statuses
    ]
    columns = [
        *left("BROKER"),
        *spare(2, left("CLUSTER")),
        *right("ID"),
        *whole("ADDRESS"),
        *spare(5, left("PROTOCOL")),
        *spare(1, right("PUT/S", "GET/S")),
        *spare(4, right("PUT TODAY")),
        *spare(3, right("DISK")),
        *spare(6, whole("UP SINCE")),
        *([*right("LEADS"), *left("STATE")] if has_static else []),
        *(left("REPLICATION") if has_replicas else []),
        *([] if all(each.fault is None for each in statuses) else left("FAULT")),
    ]
    return Table(columns, rows, empty="the name server knows no broker")


def _down_text(name: str, leads: int) -> str:
    """Return the text for a broker that is down and has segments of logical queues."""
    if leads:
        problem = f"{name} is down and leads {count_text(leads, 'logical queue')}"
        return f"{problem}: start it, or `holdfast broker evacuate {name} --force`"
    return f"{name} is down and has older messages: they cannot be read until it returns"


def _drain_state(status: BrokerStatus) -> str | None:
    """Return the state of a broker's draining."""
    if status.fault is not None:
        return None
    if not status.draining:
        return "in service"
    return f"draining, {count_text(status.leads, 'queue')} to go" if status.leads else "drained"
