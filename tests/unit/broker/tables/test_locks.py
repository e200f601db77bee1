from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.tables.locks import LOCK_LIFE_MS, QueueLocks
from holdfast.machine.turn import Turn
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

QUEUES = [MessageQueue("T", "a", number) for number in range(3)]


def test_a_free_queue_is_taken() -> None:
    """By whoever comes first, and the others go without."""
    turn = Turn()
    locks = QueueLocks(turn)

    assert locks.lock("g", "one", QUEUES[:2]) == QUEUES[:2]
    assert locks.lock("g", "two", QUEUES) == QUEUES[2:]


def test_groups_do_not_stand_in_each_others_way() -> None:
    """A lock belongs to a group's use of a queue, not to the queue."""
    turn = Turn()
    locks = QueueLocks(turn)
    locks.lock("g", "one", QUEUES)

    assert locks.lock("other", "two", QUEUES) == QUEUES


def test_a_lock_lasts_while_it_is_taken_again() -> None:
    """Each time for another minute."""
    turn = Turn()
    locks = QueueLocks(turn)
    locks.lock("g", "one", QUEUES)
    turn.now_ms = LOCK_LIFE_MS
    locks.lock("g", "one", QUEUES)

    turn.now_ms = LOCK_LIFE_MS * 2
    assert locks.lock("g", "two", QUEUES) == []
    turn.now_ms = LOCK_LIFE_MS * 2 + 1
    assert locks.lock("g", "two", QUEUES) == QUEUES


def test_only_the_holder_can_give_a_lock_back() -> None:
    """A late unlock of a client that lost its queue must not free it."""
    turn = Turn()
    locks = QueueLocks(turn)
    locks.lock("g", "one", QUEUES)

    locks.unlock("g", "two", QUEUES)
    turn.now_ms = 1
    assert locks.lock("g", "two", QUEUES) == []

    locks.unlock("g", "one", QUEUES[:1])
    assert locks.lock("g", "two", QUEUES) == QUEUES[:1]


def test_the_broker_name_is_no_part_of_the_queue() -> None:
    """Clients name the broker of a logical queue in several ways; it also lapses under every name at once."""
    turn = Turn()
    locks = QueueLocks(turn)
    other = [MessageQueue("T", "__logic__global", queue.queue_id) for queue in QUEUES]
    locks.lock("g", "one", QUEUES)

    turn.now_ms = LOCK_LIFE_MS
    assert locks.lock("g", "two", other) == []
    turn.now_ms = LOCK_LIFE_MS + 1
    assert locks.lock("g", "two", other) == other
    assert locks.lock("g", "one", QUEUES) == []


def test_lapsed_locks_are_forgotten() -> None:
    """A broker remembers no client for ever."""
    turn = Turn()
    locks = QueueLocks(turn)
    locks.lock("g", "one", QUEUES)

    turn.now_ms = LOCK_LIFE_MS + 1
    locks.expire()

    assert locks._locks == {}


def test_locks_are_taken_and_given_back_over_the_wire() -> None:
    """The answer repeats the queues exactly as they were named: clients compare them."""
    desk = BrokerHarness()
    body = {
        "clientId": "one",
        "consumerGroup": "g",
        "mqSet": [{"brokerName": "a", "queueId": 1, "topic": "T"}],
        "onlyThisBroker": False,
    }
    lock = Command(code=RequestCode.LOCK_BATCH_MQ, body=java_json.encode(body))
    other = Command(code=RequestCode.LOCK_BATCH_MQ, body=java_json.encode(body | {"clientId": "two"}))
    unlock = Command(code=RequestCode.UNLOCK_BATCH_MQ, body=java_json.encode(body))

    first, refused, freed, second = desk.call(lock, other, unlock, other)

    assert java_json.loads(first.body) == {"lockOKMQSet": body["mqSet"]}
    assert java_json.loads(refused.body) == {"lockOKMQSet": []}
    assert freed.code == 0
    assert java_json.loads(second.body) == {"lockOKMQSet": body["mqSet"]}
