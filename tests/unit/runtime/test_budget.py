from holdfast.machine.effects import Log
from holdfast.runtime.budget import MemoryBudget


class Holder:
    """A connection that only remembers why it was cut off."""

    def __init__(self) -> None:
        self.reason = ""

    def abort(self, reason: str) -> None:
        self.reason = reason


def a_budget(limit: int) -> tuple[MemoryBudget, list[Log]]:
    lines: list[Log] = []
    return MemoryBudget(limit, lines.append), lines


def test_what_a_connection_holds_replaces_what_it_held() -> None:
    """It reports all it holds, not what came; nothing at the end leaves nothing behind."""
    budget, _ = a_budget(1000)
    one, two = Holder(), Holder()

    budget.record_held(one, 100)
    budget.record_held(two, 50)
    budget.record_held(one, 300)
    held = budget.pressure.held
    budget.record_held(one, 0)
    budget.record_held(two, 0)

    assert held == 350
    assert budget.pressure.held == 0


def test_who_has_held_longest_is_cut_off_when_the_budget_is_spent() -> None:
    """Not whoever comes last: who behaves holds for milliseconds, who fills the memory holds on."""
    budget, _ = a_budget(1000)
    finished, stalled, late = Holder(), Holder(), Holder()
    budget.record_held(finished, 200)
    budget.record_held(stalled, 600)
    budget.record_held(finished, 0)

    budget.record_held(finished, 200)
    budget.record_held(late, 300)

    assert "1000 bytes" in stalled.reason
    assert (finished.reason, late.reason) == ("", "")
    assert budget.pressure.held == 500


def test_pressure_begins_at_three_quarters_and_ends_at_a_half() -> None:
    """Between the two it stays what it was, and each change is one line for the operator."""
    budget, lines = a_budget(1000)
    holder = Holder()
    readings = []
    for size in (750, 751, 600, 501, 500, 700):
        budget.record_held(holder, size)
        readings.append(budget.pressure.is_high)

    assert readings == [False, True, True, True, False, False]
    assert [line.level for line in lines] == ["warning", "info"]
    assert lines[0].fields == {"held": 751, "limit": 1000, "connections": 1}
