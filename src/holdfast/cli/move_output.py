"""Output of the commands that move queues: tables, confirmation, progress and outcome.

    plan ─> --dry-run: before and after ─> confirm, if forced ─> start ─> follow, with progress ─> print the outcome

Interrupting a command does not interrupt its moves: brokers complete them on their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

import typer

from holdfast.admin.moves import FINISHED, MovePlan
from holdfast.admin.operations import Admin
from holdfast.admin.previews import Preview
from holdfast.admin.tables import Printable, Table, count_text, left, right, spare, time_text, whole
from holdfast.cli.progress import show_progress
from holdfast.cli.session import Session
from holdfast.model.mapping import MappingRow
from holdfast.wire.requests.moves import Move

# Above this many rows only those that change are printed; `--json` has all.
_ROWS_MAX: Final = 64

ForceOption = Annotated[
    bool, typer.Option("--force", help="The leader is dead: open its queues elsewhere, after a gap of offsets.")
]
EvenIfAliveOption = Annotated[
    bool, typer.Option("--even-if-alive", help="With --force: replace a leader even if it still answers.")
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Start the moves and do not wait for their end.")]


def carry_out(
    session: Session,
    make_plan: Callable[[Admin], Awaitable[MovePlan]],
    *,
    goal: str,
    dry_run: bool,
    forced: bool = False,
    yes: bool = False,
    no_wait: bool = False,
) -> list[Move]:
    """Plan moves, show them or carry them out, and print the outcome; return the moves that were started.

    Args:
        session: The run of the command.
        make_plan: Makes the plan from the state of the cluster.
        goal: The goal, in words that fit after "nothing to move: ".
        dry_run: Show the plan and change nothing.
        forced: The leaders are dead.
        yes: Do not ask before a forced move.
        no_wait: Do not follow the moves.

    Raises:
        typer.Exit: with status 1, when a move failed.
    """
    plan = session.execute(make_plan)
    if dry_run or not plan.moves:
        show_plan(session, plan, goal=goal, dry_run=dry_run)
        return []
    if forced:
        sources = ", ".join(sorted({str(move.source) for move in plan.moves}))
        session.confirm(
            f"Open {count_text(len(plan.moves), 'queue')} elsewhere? {sources} must be dead for good: messages that"
            " only it has stay unreachable until it returns.",
            yes=yes,
        )
        moves = session.execute(lambda admin: admin.forced_moves.force(plan))
    else:
        moves = follow(session, session.execute(lambda admin: admin.moves.start(plan)), no_wait=no_wait)
    show_outcome(session, plan, moves)
    return moves


def follow(session: Session, moves: Sequence[Move], *, no_wait: bool = False) -> list[Move]:
    """Follow *moves* until all have ended, with progress on standard error; return them with their last state."""
    if no_wait:
        return list(moves)
    total = sum(len(move.queues) for move in moves)
    shown = 0
    try:
        with show_progress("moving queues", total, quiet=session.as_json) as advance:

            def on_change(current: Sequence[Move]) -> None:
                nonlocal shown
                finished = sum(len(move.queues) for move in current if move.state in FINISHED)
                advance(finished - shown)
                shown = finished

            return session.execute(lambda admin: admin.moves.follow(moves, on_change))
    except KeyboardInterrupt:
        session.note(
            "the brokers continue the moves; `holdfast move list` shows them, `holdfast move cancel ID` ends one"
        )
        raise


def show_plan(session: Session, plan: MovePlan, *, goal: str, dry_run: bool) -> None:
    """Print the planned moves, and the tables before and after."""
    value = {"dry_run": dry_run, "moves": plan.moves, "tables": plan.previews}
    if not plan.moves:
        session.show(value, f"nothing to move: {goal}")
        return
    rows = [(move.topic, move.queue, move.source, move.target) for move in plan.moves]
    moves = Table([*left("TOPIC"), *right("QUEUE"), *left("FROM", "TO")], rows, title="Moves")
    session.show(value, moves, *preview_parts(plan.previews))


def show_outcome(session: Session, plan: MovePlan, moves: Sequence[Move]) -> None:
    """Print the outcome of moves.

    Raises:
        typer.Exit: with status 1, when one failed.
    """
    failed = [move for move in moves if move.state in FINISHED - {"done"}]
    pending = [move for move in moves if move.state not in FINISHED]
    done = sum(len(move.queues) for move in moves if move.state == "done")
    copied = count_copied(moves)
    value = {"dry_run": False, "moves": plan.moves, "outcome": moves, "done": done, "bytes_copied": copied}
    parts: list[Printable] = []
    if done:
        brokers = ", ".join(sorted({move.target for move in moves if move.state == "done"}))
        parts.append(f"{brokers} took over {count_text(done, 'logical queue')}{copied_text(moves)}")
    if pending or failed:
        parts.append(move_table([*failed, *pending]))
    if pending:
        parts.append("the brokers continue them; `holdfast move list` shows their progress")
    if any(move.state == "failed" for move in failed):
        parts.append("resume a failed move with `holdfast move resume ID`")
    session.show(value, *parts)
    if failed:
        raise typer.Exit(1)


def count_copied(moves: Sequence[Move]) -> int | None:
    """Return how many message bytes the new leaders had when they opened; None unless all of them reported it."""
    counts = [move.copied for move in moves if move.state == "done"]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def copied_text(moves: Sequence[Move]) -> str:
    """Return the suffix with the copied bytes for a line about finished moves."""
    copied = count_copied(moves)
    return "" if copied is None else f"; bytes copied: {copied:,}"


def move_table(moves: Sequence[Move], empty: str = "no moves") -> Table:
    """Return moves as a table."""
    rows = [
        (
            move.id or None,
            move.topic,
            numbers_text(move.queues),
            move.source,
            move.target,
            move.state,
            time_text(move.started_ms),
            move.reason or None,
        )
        for move in moves
    ]
    columns = [
        *whole("ID"),
        *left("TOPIC", "QUEUES"),
        *spare(-2, left("FROM")),  # a move's id begins with it
        *spare(-1, left("TO")),
        *left("STATE"),
        *spare(1, whole("SINCE")),
        *left("REASON"),
    ]
    return Table(columns, rows, empty=empty)


def preview_parts(previews: Sequence[Preview]) -> list[Printable]:
    """Return the tables before and after of every topic."""
    parts: list[Printable] = []
    for preview in previews:
        before, after = preview.before, preview.after
        note = ""
        if max(len(before), len(after)) > _ROWS_MAX:
            changed = {row.queue for row in {*before} ^ {*after}}
            before = [row for row in before if row.queue in changed]
            after = [row for row in after if row.queue in changed]
            note = " (only the queues that change)"
        parts += [
            mapping_table(before, f"{preview.topic} before{note}"),
            mapping_table(after, f"{preview.topic} after{note}"),
        ]
    return parts


def mapping_table(rows: Sequence[MappingRow], title: str = "") -> Table:
    """Return a mapping table with the columns of RocketMQ's proposal of logical queues."""
    columns = [*left("brokerName"), *right("MessageQueue"), *left("LogicalQueue", "QueueStatus")]
    cells = [(row.broker, row.queue_id, row.label, str(row.status)) for row in rows]
    return Table(columns, cells, title=title, empty="none")


def numbers_text(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: 0-3, 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def split_names(text: str | None) -> list[str]:
    """Return the names in a comma-separated text."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
