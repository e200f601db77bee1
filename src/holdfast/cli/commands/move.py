"""`holdfast move`: list, cancel, resume."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.admin.moves import FINISHED
from holdfast.cli.move_output import NoWaitOption, follow, move_table
from holdfast.cli.session import Session, cluster_command

app = typer.Typer(no_args_is_help=True, help="List, cancel and resume moves of logical queues.")

MoveArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the move, or its beginning.")]


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="move")


@cluster_command(app, "list")
def list_moves(
    session: Session,
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that ended.")] = False,
) -> None:
    """List the moves that are in progress, and those that failed.

    Example: holdfast move list
    """
    found = session.execute(lambda admin: admin.moves.list())
    shown = [move for move in found if everything or move.state not in {"done", "cancelled"}]
    session.show({"moves": shown}, move_table(shown, empty="no moves" if everything else "no moves are in progress"))


@cluster_command(app, "cancel")
def cancel(session: Session, *, move: MoveArgument) -> None:
    """Roll a move back: its old leader continues. Refused when the new leader already has the queues.

    Example: holdfast move cancel broker-a.19a8f3.1
    """
    ended = session.execute(lambda admin: admin.moves.cancel(move))
    session.show({"move": ended}, f"move {ended.id} is {ended.state}: {ended.source} still leads", move_table([ended]))


@cluster_command(app, "resume")
def resume(session: Session, *, move: MoveArgument, no_wait: NoWaitOption = False) -> None:
    """Resume a failed move, and follow it to its end.

    Example: holdfast move resume broker-a.19a8f3.1
    """
    resumed = session.execute(lambda admin: admin.moves.resume(move))
    (ended,) = follow(session, [resumed], no_wait=no_wait)
    session.show({"move": ended}, f"move {ended.id} is {ended.state}", move_table([ended]))
    if ended.state in FINISHED - {"done"}:
        raise typer.Exit(1)
