"""The newest word counts, whoever says it; and nobody is asked who is known to be wrong."""

import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_pull
from tests.support.cluster.broker_machines import TOPIC, StaticBroker, StaticBrokers

from holdfast.broker.relay.leader_lookup import LeaderLookup
from holdfast.broker.relay.relay_client import Target
from holdfast.model.leadership import Leader
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import mock_broker
from holdfast.sim.world.disk import SimDisk
from holdfast.store.recovery.replica_log import REPLICA_MARKER_PATH
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.relay import RelayAnswer

PLACE = (TOPIC, 0)
QUEUE = MessageQueue(TOPIC, mock_broker("__global__"), 0)


@pytest.fixture
def desk() -> StaticBroker:
    """Broker b, which recorded that a leads queue 0 in generation 0."""
    desks = StaticBrokers("a", "b", "c")
    desks.create("a", "b")
    return desks["b"]


def beliefs_of(desk: StaticBroker) -> LeaderLookup:
    return LeaderLookup(desk.components.mappings, desk.components.view)


def told(leader: str, generation: int, address: str = "") -> Command:
    return Command(code=0, fields=to_fields(RelayAnswer(boot=1, leader=leader, generation=generation, address=address)))


def test_what_was_told_counts_if_it_is_newer_than_the_own_record(desk: StaticBroker) -> None:
    """And the own record if it is not."""
    beliefs = beliefs_of(desk)
    own = beliefs.find(PLACE)

    desk.components.view.record_leader(QUEUE, Leader("c", 0, 99))
    same = beliefs.find(PLACE)
    desk.components.view.record_leader(QUEUE, Leader("c", 1))

    assert (own.broker, same.broker) == ("a", "a")
    assert beliefs.find(PLACE) == Leader("c", 1)


def test_an_answer_teaches_who_leads_and_where(desk: StaticBroker) -> None:
    """It is news if it is somebody else than before."""
    beliefs = beliefs_of(desk)

    is_news, again = (beliefs.update_from_answer(PLACE, told("d", 3, "10.9.9.9:10911")) for _ in range(2))

    assert (is_news, again) == (True, False)
    with pytest.raises(StopIteration) as ended:
        beliefs.find_target(PLACE).send(None)
    assert ended.value.value == Target(PLACE, "10.9.9.9:10911", 3)


def test_a_known_address_is_not_changed_by_somebody_elses_word(desk: StaticBroker) -> None:
    """Who said it may not have heard of a restart."""
    known = desk.components.view.address("c")

    beliefs_of(desk).update_from_answer(PLACE, told("c", 3, "10.9.9.9:10911"))

    assert desk.components.view.address("c") == known


@pytest.mark.parametrize(
    "answer", [told("c", -1), told("", 9), Command(code=0), Command(code=0, fields={"boot": "x", "leader": "c"})]
)
def test_an_answer_that_says_nothing_new_changes_nothing(desk: StaticBroker, answer: Command) -> None:
    """Older, empty, of a broker that does not tell, or nonsense."""
    beliefs = beliefs_of(desk)

    assert not beliefs.update_from_answer(PLACE, answer)
    assert beliefs.find(PLACE).broker == "a"


def test_a_leader_that_says_it_leads_in_an_older_generation_is_believed(desk: StaticBroker) -> None:
    """What was believed of it is forgotten: the topic may have been made anew."""
    beliefs = beliefs_of(desk)
    desk.components.view.record_leader(QUEUE, Leader("a", 9))

    assert not beliefs.update_from_answer(PLACE, told("a", 0))
    assert beliefs.find(PLACE) == Leader("a", 0)


def test_a_broker_never_is_its_own_target(desk: StaticBroker) -> None:
    """It asks the name servers, of which there are none here, and knows nobody."""
    beliefs = beliefs_of(desk)
    desk.components.view.record_leader(QUEUE, Leader("b", 9))

    with pytest.raises(StopIteration) as ended:
        beliefs.find_target(PLACE).send(None)
    assert ended.value.value is None


class CopyDesk(StaticBroker):
    """A replica of broker a, on what a's disk holds."""

    def __init__(self, desks: StaticBrokers, disk: SimDisk) -> None:
        self._cluster = desks
        self.is_up = True
        disk.replace(REPLICA_MARKER_PATH, b"")
        BrokerHarness.__init__(self, disk=disk, name="a", listen="10.1.0.9:10911", replica_of="a")


@pytest.mark.parametrize("is_heard_of", [True, False])
def test_who_reads_through_another_broker_is_answered_by_a_replica_while_the_leader_is_down(*, is_heard_of: bool):
    """Old clients know one broker only, which passes on what they ask. It need not have known the leader itself."""
    desks = StaticBrokers("a", "b")
    desks.create("a", "b")
    number = next(queue for queue in range(2) if desks.queue(queue).leader.broker == "a")
    desks.send(number, b"kept")
    desks["a"].store.close(desks["a"].now_ms)
    desks["a"].is_up = False
    desks.brokers["copy"] = CopyDesk(desks, desks["a"].disk)
    if not is_heard_of:
        desks["b"].components.view.forget_address(desks.address("a"))
    desks["b"].components.view._replicas["a"] = "10.1.0.9:10911"

    (pulled,) = desks["b"].call(a_pull(TOPIC, queue=number))
    commit = {"consumerGroup": "consumers", "topic": TOPIC, "queueId": str(number), "commitOffset": "1"}
    (committed,) = desks["b"].call(Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, fields=commit))

    assert (pulled.code, b"kept" in pulled.body, committed.code) == (0, True, 0)
    assert desks.brokers["copy"].components.offsets.unsent_commits == {f"{TOPIC}@consumers": {number: 1}}
