"""The demo's ledger: it must see what it is there to see."""

from holdfast.demo.ledger import Ledger
from holdfast.demo.orders import ledger_rows


def play(*arrived: int, acknowledged: int = 3) -> Ledger:
    """Return a ledger of one key with numbers 0, 1, 2 acknowledged and these arrived, in a queue of their own."""
    ledger = Ledger()
    for number in range(acknowledged):
        ledger.record_acknowledgement("k", number, "broker-a", pause_ms=1.0)
    for number in arrived:
        ledger.record_arrival("k", number, queue=0, offset=number)
    return ledger


def test_everything_once_and_in_order_is_right():
    """The plain case."""
    verdict = play(0, 1, 2).close()

    assert (verdict.acknowledged, verdict.arrived) == (3, 3)
    assert (verdict.refused, verdict.lost, verdict.repeated, verdict.out_of_order, verdict.holes) == (0, 0, 0, 0, 0)
    assert verdict.is_good


def test_a_message_that_never_arrives_is_lost():
    """Acknowledged and not there."""
    ledger = play(0, 1)

    assert ledger.missing == 1
    assert ledger.close().lost == 1
    assert not ledger.close().is_good


def test_a_message_behind_a_later_one_of_its_key_is_out_of_order():
    """0, 2, 1 breaks the order of the key."""
    verdict = play(0, 2, 1).close()

    assert verdict.out_of_order == 1
    assert not verdict.is_good


def test_a_message_that_comes_again_is_repeated_and_not_out_of_order():
    """0, 1, 0, 1, 2: nothing crashed here, so nothing may come again."""
    verdict = play(0, 1, 0, 1, 2).close()

    assert (verdict.repeated, verdict.out_of_order) == (2, 0)
    assert not verdict.is_good


def test_what_nobody_knows_may_be_there_or_not():
    """A broker died before it answered: then both are right."""
    there, not_there = play(0, 1, 2), play(0, 1, 2)
    for ledger in (there, not_there):
        ledger.record_in_doubt("k", 3)
    there.record_arrival("k", 3, queue=0, offset=3)

    assert there.close().is_good
    assert not_there.close().is_good
    assert (there.close().in_doubt, there.close().arrived) == (1, 4)


def test_a_message_that_nobody_sent_is_unexpected():
    """Neither acknowledged nor in doubt."""
    verdict = play(0, 1, 2, 3).close()

    assert verdict.unexpected == 1
    assert not verdict.is_good


def test_refusals_are_counted():
    """Whether they are allowed is for the demo to say: one kills brokers, one does not."""
    ledger = play(0, 1, 2)
    ledger.record_failure()

    assert ledger.close().refused == 1


def test_an_offset_without_a_message_is_a_hole():
    """Offsets go on where they were, whoever leads the queue."""
    ledger = play(0, 1, 2)
    ledger.record_acknowledgement("k", 3, "broker-b", pause_ms=1.0)
    ledger.record_arrival("k", 3, queue=0, offset=10_000)

    assert ledger.close().holes == 9_997
    assert not ledger.close().is_good


def test_keys_are_independent():
    """Order is promised within a key only."""
    ledger = play(0, 1, 2)
    ledger.record_arrival("other", 0, queue=1, offset=0)

    assert ledger.close().out_of_order == 0


def test_a_run_in_which_nothing_happened_is_not_right():
    """An empty ledger proves nothing."""
    assert not Ledger().close().is_good


def test_a_message_that_arrives_before_its_acknowledgement_is_not_missing():
    """Consumers may be faster than the producer."""
    ledger = Ledger()
    ledger.record_arrival("k", 0, queue=0, offset=0)
    ledger.record_acknowledgement("k", 0, "broker-a", pause_ms=1.0)

    assert not ledger.missing
    assert ledger.close().is_good


def test_it_tells_who_stored_what_since_the_last_look():
    """So that everybody sees the load move."""
    ledger = play(acknowledged=3)
    ledger.record_acknowledgement("k", 3, "broker-b", pause_ms=1.0)

    assert ledger.shares_since_last() == "broker-a 75 %, broker-b 25 %"
    assert ledger.shares_since_last() == "no broker"


def test_the_longest_send_is_shown():
    """Of all of them."""
    ledger = play(0, 1, 2)
    ledger.record_acknowledgement("k", 3, "broker-a", pause_ms=41.6)
    ledger.record_acknowledgement("k", 4, "broker-a", pause_ms=2.0)

    rows = {name: count for name, count, _ in ledger_rows(ledger.close())}

    assert rows["longest send"] == 42
    assert rows["lost"] == 2
