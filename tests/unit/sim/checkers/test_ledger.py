import msgspec
import pytest

from holdfast.sim.checkers.ledger import Ack, AuditedRecord, Ledger
from holdfast.sim.checkers.offset_identity import LogPosition, OffsetIdentityChecker, QueueOffset
from holdfast.sim.world.workload import Kind, PlannedMessage
from holdfast.sim.world.world import Violation

JOB = PlannedMessage(uid="one", topic="plain", kind=Kind.PLAIN, size=10)
PLACE = QueueOffset("broker-a", "plain", 0, 0)
SPOT = LogPosition("a:1", 100)


def a_ledger(job: PlannedMessage = JOB, *, attempts: int = 1, is_acknowledged: bool = True) -> Ledger:
    ledger = Ledger(OffsetIdentityChecker())
    for _ in range(attempts):
        ledger.attempted(job, 0)
    if is_acknowledged:
        ledger.acknowledged(job, Ack(PLACE, SPOT), 0)
    return ledger


def audit(ledger: Ledger, *records: AuditedRecord) -> None:
    ledger.audit(records, ("plain",))


def test_what_was_acknowledged_and_is_there_is_well():
    """Once sent, once stored."""
    ledger = a_ledger()

    audit(ledger, AuditedRecord(PLACE, SPOT, "one"))

    assert ledger.expected() == [JOB]
    with pytest.raises(Violation, match="holds nothing"):
        audit(ledger)


def test_messages_of_a_batch_lie_at_one_spot():
    """Each at its own place; one that is missing from the batch is missed."""
    ledger, second = a_ledger(), msgspec.structs.replace(JOB, uid="two")
    behind = PLACE._replace(offset=1)
    ledger.attempted(second, 0)
    ledger.acknowledged(second, Ack(behind, SPOT), 0)

    audit(ledger, AuditedRecord(PLACE, SPOT, "one"), AuditedRecord(behind, SPOT, "two"))

    with pytest.raises(Violation, match="holds one"):
        audit(ledger, AuditedRecord(PLACE, SPOT, "one"))


def test_what_was_acknowledged_must_be_there():
    """The first promise of all."""
    with pytest.raises(Violation, match="an acknowledged message is stored"):
        audit(a_ledger())


@pytest.mark.parametrize(
    "record",
    [
        AuditedRecord(PLACE, SPOT, "two"),
        AuditedRecord(PLACE, LogPosition("a:1", 200), "one"),
        AuditedRecord(QueueOffset("broker-a", "plain", 1, 0), SPOT, "one"),
    ],
)
def test_what_was_acknowledged_must_be_where_its_sender_was_told(record: AuditedRecord):
    """Another message, another position, another queue: all are broken promises."""
    ledger = a_ledger()
    ledger.attempted(msgspec.structs.replace(JOB, uid="two"), 0)

    with pytest.raises(Violation, match="an acknowledged message is stored"):
        audit(ledger, record)


def test_a_message_may_be_stored_once_for_every_attempt_and_not_more():
    """A sender that hears nothing sends again; nobody else may."""
    second = AuditedRecord(QueueOffset("broker-b", "plain", 0, 0), LogPosition("b:1", 100), "one")
    audit(a_ledger(attempts=2), AuditedRecord(PLACE, SPOT, "one"), second)

    with pytest.raises(Violation, match="stored as often as sent"):
        audit(a_ledger(attempts=1), AuditedRecord(PLACE, SPOT, "one"), second)


def test_what_is_delayed_must_come():
    """Also where nobody can say what its groups have consumed."""
    ledger = a_ledger(msgspec.structs.replace(JOB, kind=Kind.DELAYED))
    waiting = AuditedRecord(QueueOffset("broker-a", "SCHEDULE_TOPIC_XXXX", 0, 0), SPOT, "one")

    audit(ledger, waiting, AuditedRecord(PLACE, LogPosition("a:1", 200), "one"))
    with pytest.raises(Violation, match="a delayed message arrives"):
        audit(ledger, waiting)

    ledger.allow_loss("a:1", 0, 9)
    audit(ledger, waiting)


def test_what_nobody_sent_must_not_be_there():
    """Whatever it is."""
    with pytest.raises(Violation, match="nothing unexpected"):
        audit(a_ledger(is_acknowledged=False), AuditedRecord(PLACE, SPOT, "ghost"))


def test_what_was_rolled_back_must_never_be_seen():
    """Its half message is, in a topic that nobody consumes."""
    rolled_back = msgspec.structs.replace(JOB, kind=Kind.ROLLED_BACK)
    ledger = a_ledger(rolled_back, is_acknowledged=False)
    audit(ledger, AuditedRecord(QueueOffset("broker-a", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 0), SPOT, "one"))

    with pytest.raises(Violation, match="rolled back is never seen"):
        audit(ledger, AuditedRecord(PLACE, LogPosition("a:1", 200), "one"))


def test_what_was_forgiven_may_be_missing_and_nobody_must_consume_it():
    """Behind the last sync, where the operator chose speed."""
    ledger = a_ledger()
    ledger.allow_loss("b:1", 0, 9)
    assert ledger.expected() == [JOB]

    ledger.allow_loss("a:1", 100, 9)

    audit(ledger)
    assert ledger.expected() == []


def test_an_acknowledgement_that_was_on_its_way_when_power_was_lost_promises_nothing():
    """Who passed it on could not know. One for a message that was sent later does promise."""
    ledger = a_ledger(attempts=2, is_acknowledged=False)
    ledger.allow_loss("a:1", 100, 9)

    ledger.acknowledged(JOB, Ack(PLACE, SPOT), 9)
    audit(ledger)
    assert ledger.expected() == []

    ledger.acknowledged(JOB, Ack(PLACE, SPOT), 10)
    with pytest.raises(Violation, match="an acknowledged message is stored"):
        audit(ledger)


def test_an_attempt_is_answered_once():
    """A second answer would be somebody else's."""
    with pytest.raises(Violation, match="one attempt, one answer"):
        a_ledger().acknowledged(JOB, Ack(PLACE, SPOT), 0)


def test_a_send_that_fails_is_a_violation_where_nothing_is_broken():
    """A move is no reason."""
    ledger = a_ledger(is_acknowledged=False)
    ledger.failed(JOB, "refused")

    ledger.is_undisturbed = True
    with pytest.raises(Violation, match="no send fails without a reason"):
        ledger.failed(JOB, "refused")


def test_what_a_broker_sends_on_by_itself_may_be_there_twice_only_where_something_was_broken():
    """A delayed message whose queue is led elsewhere when it is due, and a forward without an answer."""
    delayed = msgspec.structs.replace(JOB, kind=Kind.DELAYED)
    places = OffsetIdentityChecker()
    places.logical = frozenset({"logic"})
    ledger = Ledger(places)
    ledger.attempted(delayed, 0)
    twice = [
        AuditedRecord(QueueOffset("logic", "plain", 0, offset), LogPosition("a:1", offset), "one") for offset in (0, 1)
    ]

    with pytest.raises(Violation, match="stored as often as sent"):
        audit(ledger, *twice)

    ledger.may_repeat = True
    audit(ledger, *twice)
