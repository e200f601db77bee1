import pytest

from holdfast.sim.checkers.order import OrderChecker
from holdfast.sim.world.workload import Kind, PlannedMessage
from holdfast.sim.world.world import Violation


def job(number: int, key: str | None = "k") -> PlannedMessage:
    return PlannedMessage(uid=f"{key}-{number}", topic="ordered", kind=Kind.KEYED, size=10, key=key, number=number)


def test_numbers_in_order_are_well_and_so_is_a_repetition():
    """A message that comes again is no news."""
    order = OrderChecker()

    for number in (0, 1, 0, 1, 2, 1, 3):
        order.consumed("g", job(number))

    with pytest.raises(Violation, match="number 5 of key k before number 4"):
        order.consumed("g", job(5))


def test_a_number_before_its_predecessor_is_a_violation():
    """However early the predecessor may come then."""
    order = OrderChecker()
    order.consumed("g", job(0))

    with pytest.raises(Violation, match="order per key"):
        order.consumed("g", job(2))


def test_groups_and_keys_are_apart():
    """Order is a matter between one group and one key."""
    order = OrderChecker()
    order.consumed("g", job(0))
    order.consumed("g", job(1))

    order.consumed("other", job(0))
    order.consumed("g", job(0, "l"))
    order.consumed("g", job(7, None))

    with pytest.raises(Violation, match="other got number 2 of key k before number 1"):
        order.consumed("other", job(2))
    with pytest.raises(Violation, match="g got number 2 of key l before number 1"):
        order.consumed("g", job(2, "l"))
    order.consumed("g", job(2))
