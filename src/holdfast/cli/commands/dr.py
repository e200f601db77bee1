"""`holdfast dr`: open, status, close. What to do when a site is lost, and when it is back."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.admin.tables import Printable, Table, left, right, time_text, whole
from holdfast.admin.units import DisasterStatus, ServerSwitch, SwitchChange, UnitStatus
from holdfast.cli.completion import complete_topic
from holdfast.cli.session import DryRunOption, Session, cluster_command
from holdfast.model.dr_switch import EVERY_UNIT, Opening
from holdfast.model.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Lose a site: let the consumers of other units read what it left.")

AllOption = Annotated[bool, typer.Option("--all", help="Every unit.")]
TopicOption = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Only this topic, and retries.", autocompletion=complete_topic)
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
    """Let the consumers of all units read the queues of a unit. Producers go on writing in their own.

    Clients that watch routes are told within a second, the others with their next look at the name server.

    Example: holdfast dr open --unit east
    """
    opening = _read(session, every=every, topic=topic, group=group)
    change = session.ask(lambda admin: admin.units.open(opening, dry_run=dry_run))
    _show(session, change, f"{opening} {_be(every=every, dry_run=dry_run)} open to the consumers of all units")


@cluster_command(app, "close")
def close_unit(
    session: Session,
    *,
    every: AllOption = False,
    topic: TopicOption = None,
    group: GroupOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """End what was opened: every unit reads its own queues again.

    Example: holdfast dr close --unit east
    """
    opening = _read(session, every=every, topic=topic, group=group)
    change = session.ask(lambda admin: admin.units.close(opening, dry_run=dry_run))
    _show(session, change, f"{opening} {_be(every=every, dry_run=dry_run)} closed: every unit reads its own")


@cluster_command(app, "status")
def status(session: Session) -> None:
    """Show what is open, what is left to read there for each group, and what cannot be read.

    Example: holdfast dr status
    """
    found = session.ask(lambda admin: admin.units.status())
    if not found.is_equal:
        session.warn("name servers do not have the same: clients may see different queues until brokers told them")
    units = [unit for unit in found.units if session.unit in {None, unit.name}]
    session.show(
        found,
        _server_table(found),
        _unit_table(units),
        *(part for unit in units if unit.openings for part in _left_parts(unit)),
    )


def _read(session: Session, *, every: bool, topic: str | None, group: str | None) -> Opening:
    if every and session.is_unit_said:
        raise ConfigError("--unit NAME opens one unit, --all every one: say one of them")
    if not every and not session.is_unit_said:
        # Whoever looks at one unit all day (HOLDFAST_UNIT) means another one here: the one that is lost.
        raise ConfigError("say which unit with --unit NAME, or --all")
    for option, value in (("--topic", topic), ("--group", group)):
        if value == "":
            raise ConfigError(f"{option} is empty, which would mean all of them: name one, or leave it out")
    unit = EVERY_UNIT if every else session.unit or ""
    if unit == EVERY_UNIT and not every:
        raise ConfigError("--unit '*' is no unit: --all means every one")
    return Opening(unit, topic or "", group or "")


def _be(*, every: bool, dry_run: bool) -> str:
    return "would be" if dry_run else "are" if every else "is"


def _show(session: Session, change: SwitchChange, text: str) -> None:
    for name, fault in change.missed.items():
        session.warn(f"{name} was not told ({fault}): it hears of it from brokers when it is back")
    session.show(change, text)


def _server_table(found: DisasterStatus) -> Printable:
    rows = [(server.address, _state_text(server)) for server in found.name_servers]
    return Table([*whole("NAME SERVER"), *left("LAST CHANGE")], rows)


def _state_text(server: ServerSwitch) -> str:
    """Return what a name server has, by its age: versions are times."""
    if server.fault is not None:
        return "does not answer"
    return (server.version and time_text(server.version)) or "never"


def _unit_table(units: list[UnitStatus]) -> Printable:
    rows = [(unit.name, len(unit.brokers), "; ".join(unit.openings) or "no") for unit in units]
    return Table([*left("UNIT"), *right("BROKERS"), *left("OPEN")], rows, title="Units")


def _left_parts(unit: UnitStatus) -> list[Printable]:
    """Return what is left to read in a unit that is open, and what lies out of reach."""
    lags = [(each.group, each.lag, each.unknown or None) for each in unit.backlogs]
    columns = [*left("GROUP"), *right("MESSAGES", "QUEUES NOT COUNTED")]
    nothing = "nothing" if unit.brokers else "nobody knows: none of its brokers is there"
    parts: list[Printable] = [Table(columns, lags, title=f"Left to read in {unit.name}", empty=nothing)]
    if unit.unreadable:
        rows = [(each.topic, len(each.queues), each.broker) for each in unit.unreadable]
        columns = [*left("TOPIC"), *right("LOGICAL QUEUES"), *left("BROKER THAT IS DOWN")]
        gone = ", ".join(sorted({each.broker for each in unit.unreadable}))
        parts += [
            Table(columns, rows, title=f"Out of reach in {unit.name}"),
            f"start {gone} on its disk, anywhere, or wait until it is back: docs/scope.md",
        ]
    return parts
