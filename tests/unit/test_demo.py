"""The demo's ledger: it must see what it is there to see."""

from holdfast.demo import Ledger, standing


def play(*consumed: int, acknowledged: int = 3) -> Ledger:
    """Return a ledger of one key with numbers 0, 1, 2 acknowledged and these consumed."""
    ledger = Ledger()
    for number in range(3):
        ledger.send("k", number)
        if number < acknowledged:
            ledger.acknowledge("k", number, "broker-a")
    for number in consumed:
        ledger.consume("k", number, "broker-a")
    return ledger


def test_everything_once_and_in_order_is_right():
    """The plain case."""
    verdict = play(0, 1, 2).close()

    assert (verdict.acknowledged, verdict.consumed, verdict.lost, verdict.out_of_order, verdict.repeated) == (
        3,
        3,
        0,
        0,
        0,
    )
    assert verdict.is_good


def test_a_message_that_never_arrives_is_lost():
    """Acknowledged and not consumed."""
    verdict = play(0, 2).close()

    assert verdict.lost == 1
    assert not verdict.is_good


def test_a_message_behind_a_later_one_of_its_key_is_out_of_order():
    """0, 2, 1 breaks the order of the key."""
    verdict = play(0, 2, 1).close()

    assert verdict.out_of_order == 1
    assert not verdict.is_good


def test_going_back_to_what_was_consumed_is_repetition_not_disorder():
    """After a crash the group begins a little earlier: 0, 1, 0, 1, 2 is allowed."""
    verdict = play(0, 1, 0, 1, 2).close()

    assert (verdict.repeated, verdict.out_of_order) == (2, 0)
    assert verdict.is_good


def test_a_message_whose_acknowledgement_got_lost_may_arrive():
    """It was sent; nobody promised it; it is no loss if it does not come and no fault if it does."""
    assert play(0, 1, acknowledged=2).close().is_good
    assert play(0, 1, 2, acknowledged=2).close().is_good


def test_keys_are_independent():
    """Order is promised within a key only."""
    ledger = play(0, 1, 2)
    ledger.consume("other", 0, "broker-a")

    assert ledger.out_of_order == 0


def test_a_run_in_which_nothing_happened_is_not_right():
    """An empty ledger proves nothing."""
    assert not Ledger().close().is_good


def test_while_waiting_it_says_for_what():
    """How many messages, and whose."""
    ledger = play(0)
    ledger.acknowledge("other", 0, "broker-b")

    assert standing(ledger, is_producing=True) == "sent 3  acknowledged 4  consumed 1"
    assert standing(ledger, is_producing=False) == "waiting for 3 messages to arrive: 2 of broker-a, 1 of broker-b"
    for number in (1, 2):
        ledger.consume("k", number, "broker-a")
    ledger.consume("other", 0, "broker-b")
    assert standing(ledger, is_producing=False) == "everything has arrived"


def test_a_message_that_arrives_before_its_acknowledgement_is_not_missing():
    """Consumers may be faster than the producer."""
    ledger = Ledger()
    ledger.send("k", 0)
    ledger.consume("k", 0, "broker-a")
    ledger.acknowledge("k", 0, "broker-a")

    assert not ledger.missing
    assert ledger.close().is_good
