"""Plans between their showing and their application."""

import pytest

from holdfast.admin.combined.move_orders import DrainOrder
from holdfast.console.plans import LIFE_MS, PLANS_MAX, PendingPlans
from holdfast.console.problems import UnknownPlan

ORDER = DrainOrder(broker="a")


def test_a_token_is_good_once():
    """And for its own plan."""
    plans = PendingPlans(lambda: 0)
    token, plan = plans.add(ORDER, {"a": "1"})
    other, _ = plans.add(ORDER, {"a": "2"})

    assert token != other
    assert plans.remove(token) == plan
    with pytest.raises(UnknownPlan):
        plans.remove(token)
    assert plans.remove(other).state == {"a": "2"}


def test_a_token_expires():
    """What people saw long ago is not what they would do now."""
    now = 0
    plans = PendingPlans(lambda: now)
    token, plan = plans.add(ORDER, {})
    now = LIFE_MS

    assert plan.until_ms == LIFE_MS
    with pytest.raises(UnknownPlan, match="expired"):
        plans.remove(token)


def test_the_number_of_plans_is_limited():
    """The oldest one goes."""
    plans = PendingPlans(lambda: 0)
    tokens = [plans.add(ORDER, {})[0] for _ in range(PLANS_MAX + 1)]

    with pytest.raises(UnknownPlan):
        plans.remove(tokens[0])
    assert plans.remove(tokens[1]).order == ORDER
