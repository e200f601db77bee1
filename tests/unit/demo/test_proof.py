"""The proof of the demo with Spark: it must see what it is there to see."""

import msgspec
import pytest

from holdfast.demo.ledger import Ledger
from holdfast.demo.proof import Proof, Row, check_counts, compare_clicks

CLICKS = [Row("home", number, queue=0, offset=number) for number in range(3)]
COUNTS = [Row("home", count, queue=1, offset=at) for at, count in enumerate((1, 3))]


def sent(count: int = 3) -> Ledger:
    """Return the books of a sender whose clicks were all acknowledged."""
    ledger = Ledger()
    for number in range(count):
        ledger.record_acknowledgement("home", number, "broker-a", pause_ms=1.0)
    return ledger


def a_good_proof() -> Proof:
    clicks = compare_clicks(sent(), CLICKS)
    return Proof(clicks=clicks, counted=3, shown=3, miscounted=0, restarts=0, stored=5, rows=5, copied=0, left=0)


def test_rows_are_judged_in_the_order_of_their_offsets():
    """Parquet has no order."""
    assert compare_clicks(sent(), reversed(CLICKS)).is_good


def test_a_click_that_is_missing_repeated_or_out_of_order_is_seen():
    """Each by its name."""
    moved = [Row("home", 1, 0, 0), Row("home", 0, 0, 1), Row("home", 2, 0, 2)]

    assert compare_clicks(sent(), CLICKS[:2]).lost == 1
    assert compare_clicks(sent(), [*CLICKS, Row("home", 2, 0, 3)]).repeated == 1
    assert compare_clicks(sent(), moved).out_of_order == 1
    assert compare_clicks(sent(), [*CLICKS[:2], Row("home", 2, 0, 7)]).holes == 5


def test_counts_rise_and_end_at_the_number_of_clicks():
    """So a count that was written twice is seen, though the last one is right."""
    assert check_counts(CLICKS, COUNTS) == (3, 0)
    assert check_counts(CLICKS, COUNTS[:1]) == (1, 1)
    assert check_counts(CLICKS, [*COUNTS, Row("home", 3, 1, 2)]) == (3, 1)
    assert check_counts(CLICKS, []) == (0, 1)


@pytest.mark.parametrize(
    "fault",
    [{"counted": 2}, {"shown": 4}, {"miscounted": 1}, {"restarts": 1}, {"stored": 6}, {"copied": 90}, {"left": 1}],
    ids=str,
)
def test_one_fault_is_enough(fault: dict[str, int]):
    """And only what is wrong is said to be."""
    bad = msgspec.structs.replace(a_good_proof(), **fault)

    assert a_good_proof().is_good
    assert not bad.is_good
    assert sum(not is_right for *_, is_right in bad.lines) == 1


def test_a_run_in_which_nothing_happened_proves_nothing():
    """Zero clicks, zero faults."""
    nothing = msgspec.structs.replace(a_good_proof(), clicks=Ledger().close(), counted=0, shown=0, stored=0, rows=0)

    assert not nothing.is_good
