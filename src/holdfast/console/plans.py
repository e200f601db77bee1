"""Plans that were shown and not applied yet, each under a token that is good for one application within its time."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.admin.combined.move_orders import MoveOrder
from holdfast.console.problems import UnknownPlan

LIFE_MS: Final = 600_000
PLANS_MAX: Final = 100


class PendingPlan(msgspec.Struct, frozen=True):
    """A plan that was shown.

    Attributes:
        order: What was asked for.
        state: Checksums of what the plan read, by noun.
        until_ms: When the token expires.
    """

    order: MoveOrder
    state: dict[str, str]
    until_ms: int


class PendingPlans:
    """The plans that can be applied. A new one replaces the oldest when there are too many."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._plans: dict[str, PendingPlan] = {}

    def add(self, order: MoveOrder, state: dict[str, str]) -> tuple[str, PendingPlan]:
        """Keep a plan; return its token and the plan."""
        now = self._now_ms()
        self._plans = {token: plan for token, plan in self._plans.items() if plan.until_ms > now}
        while len(self._plans) >= PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        plan = PendingPlan(order, state, now + LIFE_MS)
        token = secrets.token_urlsafe(18)
        self._plans[token] = plan
        return token, plan

    def remove(self, token: str) -> PendingPlan:
        """Remove a plan and return it.

        Raises:
            UnknownPlan: there is none with this token, or it has expired.
        """
        plan = self._plans.pop(token, None)
        if plan is None or plan.until_ms <= self._now_ms():
            raise UnknownPlan("there is no plan with this token: it was applied, has expired, or the console restarted")
        return plan
