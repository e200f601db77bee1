import msgspec
import pytest

from holdfast.sim.checkers.ledger import Ack, Audited, Ledger
from holdfast.sim.checkers.places import Place, Places
from holdfast.sim.orders import Job, Kind
from holdfast.sim.world import Violation

JOB = Job(uid="one", topic="plain", kind=Kind.PLAIN, size=10)
PLACE = Place("broker-a", "plain", 0, 0)


def a_ledger(job: Job = JOB, *, attempts: int = 1, is_acknowledged: bool = True) -> Ledger:
    ledger = Ledger(Places())
    for _ in range(attempts):
        ledger.attempted(job, 0)
    if is_acknowledged:
        ledger.acknowledged(job, Ack(PLACE, 100))
    return ledger


def audit(ledger: Ledger, *records: Audited) -> None:
    ledger.audit(records, ("plain",))


def test_what_was_acknowledged_and_is_there_is_well():
    """Once sent, once stored."""
    audit(a_ledger(), Audited(PLACE, 100, "one"))


def test_what_was_acknowledged_must_be_there():
    """The first promise of all."""
    with pytest.raises(Violation, match="what was acknowledged is there"):
        audit(a_ledger())


@pytest.mark.parametrize(
    "record",
    [Audited(PLACE, 100, "two"), Audited(PLACE, 200, "one"), Audited(Place("broker-a", "plain", 1, 0), 100, "one")],
)
def test_what_was_acknowledged_must_be_where_its_sender_was_told(record: Audited):
    """Another message, another position, another queue: all are broken promises."""
    ledger = a_ledger()
    ledger.attempted(msgspec.structs.replace(JOB, uid="two"), 0)

    with pytest.raises(Violation, match="what was acknowledged is there"):
        audit(ledger, record)


def test_a_message_may_be_stored_once_for_every_attempt_and_not_more():
    """A sender that hears nothing sends again; nobody else may."""
    second = Audited(Place("broker-b", "plain", 0, 0), 100, "one")
    audit(a_ledger(attempts=2), Audited(PLACE, 100, "one"), second)

    with pytest.raises(Violation, match="stored as often as sent"):
        audit(a_ledger(attempts=1), Audited(PLACE, 100, "one"), second)


def test_what_nobody_sent_must_not_be_there():
    """Whatever it is."""
    with pytest.raises(Violation, match="nothing unexpected"):
        audit(a_ledger(is_acknowledged=False), Audited(PLACE, 100, "ghost"))


def test_what_was_rolled_back_must_never_be_seen():
    """Its half message is, in a topic that nobody consumes."""
    rolled_back = msgspec.structs.replace(JOB, kind=Kind.ROLLED_BACK)
    ledger = a_ledger(rolled_back, is_acknowledged=False)
    audit(ledger, Audited(Place("broker-a", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 0), 100, "one"))

    with pytest.raises(Violation, match="rolled back is never seen"):
        audit(ledger, Audited(PLACE, 200, "one"))


def test_what_was_forgiven_may_be_missing_and_nobody_must_consume_it():
    """Behind the last sync, where the operator chose speed."""
    ledger = a_ledger()
    ledger.forgive("broker-b", 0)
    assert ledger.expected() == [JOB]

    ledger.forgive("broker-a", 100)

    audit(ledger)
    assert ledger.expected() == []


def test_an_attempt_is_answered_once():
    """A second answer would be somebody else's."""
    with pytest.raises(Violation, match="one attempt, one answer"):
        a_ledger().acknowledged(JOB, Ack(PLACE, 100))
