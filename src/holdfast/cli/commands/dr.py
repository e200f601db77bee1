"""`holdfast dr`: open, status, close. Disaster recovery: the commands for when a site is lost, and when it is back."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.admin.tables import Printable, Table, left, right, time_text, whole
from holdfast.admin.units import DisasterStatus, ServerSwitch, SwitchChange, UnitStatus
from holdfast.cli.completion import complete_topic
from holdfast.cli.session import DryRunOption, Session, cluster_command
from holdfast.model.dr_switch import EVERY_UNIT, UnitOpening
from holdfast.model.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="After the loss of a site: let consumers of other units read its queues.")

AllOption = Annotated[bool, typer.Option("--all", help="Every unit.")]
TopicOption = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Only this topic and retries.", autocompletion=complete_topic)
]
GroupOption = Annotated[str | None, typer.Option(metavar="GROUP", help="Only for this group of Holdfast's consumers.")]


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="dr")


@cluster_command(app, "open")
def open_unit(
    session: Session,
    *,
    every: AllOption = False,
    topic: TopicOption = None,
    group: GroupOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Let the consumers of all units read the queues of a unit. Producers continue to write in their own unit.

    Clients that watch routes are notified within a second, the others with their next poll of the name server.

    Example: holdfast dr open --unit east
    """
    opening = _read_opening(session, every=every, topic=topic, group=group)
    change = session.execute(lambda admin: admin.units.open(opening, dry_run=dry_run))
    _show(session, change, f"{opening} {_verb(every=every, dry_run=dry_run)} open to the consumers of all units")


@cluster_command(app, "close")
def close_unit(
    session: Session,
    *,
    every: AllOption = False,
    topic: TopicOption = None,
    group: GroupOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Close an opened unit: every unit reads only its own queues again.

    Example: holdfast dr close --unit east
    """
    opening = _read_opening(session, every=every, topic=topic, group=group)
    change = session.execute(lambda admin: admin.units.close(opening, dry_run=dry_run))
    _show(session, change, f"{opening} {_verb(every=every, dry_run=dry_run)} closed: every unit reads its own")


@cluster_command(app, "status")
def status(session: Session) -> None:
    """Show which units are open, the backlog of each group there, and the queues that cannot be read.

    Example: holdfast dr status
    """
    found = session.execute(lambda admin: admin.units.status())
    if not found.is_equal:
        session.warn(
            "name servers disagree: clients may see different queues until brokers have brought them up to date"
        )
    units = [unit for unit in found.units if session.unit in {None, unit.name}]
    session.show(
        found,
        _server_table(found),
        _unit_table(units),
        *(part for unit in units if unit.openings for part in _backlog_parts(unit)),
    )


def _read_opening(session: Session, *, every: bool, topic: str | None, group: str | None) -> UnitOpening:
    if every and session.is_unit_explicit:
        raise ConfigError("--unit NAME means one unit, --all every unit: give one of them")
    if not every and not session.is_unit_explicit:
        # HOLDFAST_UNIT does not count: it names the user's own unit, and this command is about the lost one.
        raise ConfigError("give the unit with --unit NAME, or --all")
    for option, value in (("--topic", topic), ("--group", group)):
        if value == "":
            raise ConfigError(f"{option} is empty, which would mean all of them: name one, or omit the option")
    unit = EVERY_UNIT if every else session.unit or ""
    if unit == EVERY_UNIT and not every:
        raise ConfigError("--unit '*' is not a unit: use --all for every unit")
    return UnitOpening(unit, topic or "", group or "")


def _verb(*, every: bool, dry_run: bool) -> str:
    return "would be" if dry_run else "are" if every else "is"


def _show(session: Session, change: SwitchChange, text: str) -> None:
    for name, fault in change.missed.items():
        session.warn(f"{name} was not notified ({fault}): brokers will notify it when it is back")
    session.show(change, text)


def _server_table(found: DisasterStatus) -> Printable:
    rows = [(server.address, _state_text(server)) for server in found.name_servers]
    return Table([*whole("NAME SERVER"), *left("LAST CHANGE")], rows)


def _state_text(server: ServerSwitch) -> str:
    """Return the time of a name server's last change of the switch: versions are times."""
    if server.fault is not None:
        return "does not answer"
    return (server.version and time_text(server.version)) or "never"


def _unit_table(units: list[UnitStatus]) -> Printable:
    rows = [(unit.name, len(unit.brokers), "; ".join(unit.openings) or "no") for unit in units]
    return Table([*left("UNIT"), *right("BROKERS"), *left("OPEN")], rows, title="Units")


def _backlog_parts(unit: UnitStatus) -> list[Printable]:
    """Return the backlog of an open unit, and the queues that cannot be read."""
    lags = [(each.group, each.lag, each.unknown or None) for each in unit.backlogs]
    columns = [*left("GROUP"), *right("MESSAGES", "QUEUES NOT COUNTED")]
    empty_text = "nothing" if unit.brokers else "unknown: none of its brokers is up"
    parts: list[Printable] = [Table(columns, lags, title=f"Left to read in {unit.name}", empty=empty_text)]
    if unit.unreadable:
        rows = [(each.topic, len(each.queues), each.broker) for each in unit.unreadable]
        columns = [*left("TOPIC"), *right("LOGICAL QUEUES"), *left("BROKER THAT IS DOWN")]
        down_brokers = ", ".join(sorted({each.broker for each in unit.unreadable}))
        parts += [
            Table(columns, rows, title=f"Unreadable in {unit.name}"),
            f"start {down_brokers} on its disk, anywhere, or wait until it is back: docs/scope.md",
        ]
    return parts
