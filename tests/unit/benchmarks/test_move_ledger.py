"""What the benchmark of moves makes of the rows of a load."""

import pytest
from benchmarks.move_ledger import MoveTotals, OperatorCommand, compute_totals, percentile, read_rows

SINCE, UNTIL = 10.0, 40.0
MOVE = OperatorCommand(began=20.0, ended=24.0)
OLD, NEW = 1000, 2000


def acked(key: int, number: int, at: float, *, port: int = OLD, offset: int | None = None, took: float = 0.5) -> str:
    times = f"{round((at - took) * 1e6)}\t{round(at * 1e6)}"
    return f"A\t{key}\t{number}\t{times}\t{key}\t{number if offset is None else offset}\t{port}\n"


def failed(key: int, number: int, at: float) -> str:
    return f"F\t{key}\t{number}\t{round(at * 1e6)}\t{round(at * 1e6)}\tcode 501\n"


def seen(key: int, *numbers: int) -> list[str]:
    return [f"S\t{key}\t{number}\t{key}\t{number}\n" for number in numbers]


def a_second_each(key: int, moved_at: int | None = None) -> list[str]:
    """Return a producer that is acknowledged every second from 10 to 40, and perhaps elsewhere from a moment on."""
    return [
        acked(key, at - 10, at, port=NEW if moved_at is not None and at >= moved_at else OLD) for at in range(10, 41)
    ]


def sums(*rows: str, commands: tuple[OperatorCommand, ...] = (MOVE,)) -> MoveTotals:
    return compute_totals(read_rows(rows), commands, since=SINCE, until=UNTIL)


def test_a_move_that_nobody_notices_adds_up_to_nothing() -> None:
    """Nothing failed, is lost, repeated, late or skipped, and each phase has its rate."""
    found = sums(*a_second_each(0, moved_at=22), *a_second_each(1), *seen(0, *range(31)), *seen(1, *range(31)))

    assert found.is_unnoticed
    assert found.moved == 1
    assert {name: phase.messages_per_s for name, phase in found.phases.items()} == {
        "before": 2.0,
        "during": 2.0,
        "after": 2.0,
    }
    assert found.phases["before"].p50_us == pytest.approx(500_000)


def test_a_move_lasts_until_every_moved_queue_is_written_at_its_new_broker() -> None:
    """The command's end alone does not end it, and a queue that stays has no part in it."""
    found = sums(*a_second_each(0, moved_at=22), *a_second_each(1, moved_at=27), *a_second_each(2))

    assert found.moved == 2
    assert (found.first_s, found.last_s) == ([2.0], [7.0])
    assert found.phases["during"].seconds == pytest.approx(7.0)
    assert found.commands_s == [4.0]


def test_a_pause_is_the_time_between_two_acknowledgements_of_a_moved_queue() -> None:
    """Failed sends do not end it; what happened long before the move is not held against it."""
    rows = [acked(0, 0, 11.0), acked(0, 1, 18.0), acked(0, 2, 19.5), acked(0, 4, 23.0, port=NEW), acked(0, 5, 24.5)]

    found = sums(*rows, failed(0, 3, 21.0))

    assert found.pauses_ms == [pytest.approx(3500.0)]
    assert found.phases["before"].longest_pause_ms == pytest.approx(7000.0)
    assert found.reasons == {"code 501": 1}


def test_failures_before_clients_were_warm_do_not_count() -> None:
    """A server that has just started is not what is measured."""
    found = sums(*a_second_each(0, moved_at=22), failed(0, 99, 9.0))

    assert found.failed == 0


def test_a_move_back_is_a_move_of_its_own() -> None:
    """A queue counts once for each command that moved it, and not for those that did not."""
    back = OperatorCommand(began=30.0, ended=31.0)
    home_again = [acked(0, at - 10, at, port=NEW if 22 <= at < 33 else OLD) for at in range(10, 41)]

    found = sums(*home_again, *a_second_each(1, moved_at=32), commands=(MOVE, back))

    assert found.moved == 3
    assert found.first_s == [2.0, 2.0]
    assert found.last_s == [2.0, 3.0]


@pytest.mark.parametrize(
    ("came", "lost", "repeated", "late"),
    [((0, 1, 2), 0, 0, 0), ((0, 2), 1, 0, 0), ((0, 1, 1, 2), 0, 1, 0), ((1, 0, 2), 0, 0, 1), ((0, 1, 2, 1), 0, 1, 0)],
)
def test_deliveries_are_held_against_acknowledgements(
    came: tuple[int, ...], lost: int, repeated: int, late: int
) -> None:
    """What never came is lost, what came twice repeated, what came first behind a later one out of order."""
    rows = [acked(0, 0, 12.0), acked(0, 1, 13.0), acked(0, 2, 22.0, port=NEW)]

    found = sums(*rows, *seen(0, *came))

    assert (found.lost, found.repeated, found.out_of_order) == (lost, repeated, late)
    assert found.is_unnoticed is (not (lost or repeated or late))


def test_offsets_that_no_message_has_are_holes() -> None:
    """A queue that goes on at a rounded offset behind a move has skipped the ones between."""
    rows = [acked(0, 0, 12.0, offset=5), acked(0, 1, 13.0, offset=6), acked(0, 2, 22.0, port=NEW, offset=1000)]

    assert sums(*rows).holes == 993


def test_a_percentile_of_few_is_the_largest_of_them() -> None:
    """With fewer than a hundred pauses p99 hides none of them."""
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([], 0.99) == 0.0
