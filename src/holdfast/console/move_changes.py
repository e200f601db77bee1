"""Endpoints that move logical queues: plan, apply, cancel, resume.

A plan shows its tables before and after. Applying it plans again, and refuses if what the plan read has changed.
"""

from __future__ import annotations

import msgspec

from holdfast.admin.combined.move_orders import (
    DrainOrder,
    MoveOrder,
    SpreadOrder,
    find_changes,
    fingerprint,
    goal_of,
    plan_order,
    start_order,
)
from holdfast.admin.previews import Preview
from holdfast.console.context import Context
from holdfast.console.endpoints import NoParameters, post
from holdfast.console.problems import PlanOutdated
from holdfast.machine.effects import Log
from holdfast.model.leader_planning import PlannedMove
from holdfast.wire.requests.moves import Move


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A plan.

    Attributes:
        token: What to apply it with; null if there is nothing to do.
        goal: What holds when all its moves are done, in words.
        moves: The moves, by topic and queue.
        tables: The mapping of each affected topic before and after. The ends are those of now; a move fixes the exact
            ones.
        marks: Whether applying it also marks its broker as drained (`drained`), or as in service (`in service`).
        until_ms: When the token expires.
    """

    token: str | None
    goal: str
    moves: list[PlannedMove]
    tables: list[Preview]
    marks: str | None = None
    until_ms: int | None = None


class ApplyRequest(msgspec.Struct, frozen=True):
    """Apply a plan.

    Attributes:
        token: The token of the plan.
    """

    token: str


class StartedMoves(msgspec.Struct, frozen=True):
    """The moves that were started; `refused` ones were not accepted by their source. Follow them with GET /moves."""

    moves: list[Move]


class MoveName(msgspec.Struct, frozen=True):
    """A move.

    Attributes:
        move: Its id, or the beginning of it.
    """

    move: str


@post("/moves/plan", "moves")
async def plan_moves(context: Context, query: NoParameters, body: MoveOrder) -> PlanAnswer:
    """Plan an order: the moves, and the tables before and after. Nothing is changed.

    `kind` is `migrate` (one logical queue), `move` (a topic), `drain` or `spread` (a broker), or `rebalance`.
    """
    del query
    plan = await plan_order(context.admin, body)
    marks = "drained" if isinstance(body, DrainOrder) else "in service" if isinstance(body, SpreadOrder) else None
    if not plan.moves and marks is None:
        return PlanAnswer(token=None, goal=goal_of(body), moves=[], tables=[])
    token, pending = context.plans.add(body, fingerprint(plan.view))
    return PlanAnswer(
        token=token,
        goal=goal_of(body),
        moves=plan.moves,
        tables=plan.previews,
        marks=marks,
        until_ms=pending.until_ms,
    )


@post("/moves/apply", "moves")
async def apply_moves(context: Context, query: NoParameters, body: ApplyRequest) -> StartedMoves:
    """Start the moves of a plan, unless the epochs, generations, settings or brokers that it read have changed.

    The moves continue even if this console ends.
    """
    del query
    pending = context.plans.remove(body.token)
    plan = await plan_order(context.admin, pending.order)
    if changed := find_changes(pending.state, fingerprint(plan.view)):
        raise PlanOutdated(changed)
    moves = await start_order(context.admin, pending.order, plan)
    order = msgspec.json.encode(pending.order).decode()
    context.emit(Log("info", "plan applied", {"order": order, "moves": len(moves)}))
    return StartedMoves(moves)


@post("/moves/{move}/cancel", "moves")
async def cancel_move(context: Context, query: MoveName) -> Move:
    """Roll a move back; its old leader continues. Refused if the new leader already has the queues."""
    ended = await context.admin.moves.cancel(query.move)
    context.emit(Log("info", "move cancelled", {"move": ended.id}))
    return ended


@post("/moves/{move}/resume", "moves")
async def resume_move(context: Context, query: MoveName) -> Move:
    """Resume a failed move."""
    resumed = await context.admin.moves.resume(query.move)
    context.emit(Log("info", "move resumed", {"move": resumed.id}))
    return resumed
