"""Readers of another unit are sent to a replica that stands in theirs, and back to the master when it falls behind."""

import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes
from tests.support.cluster.replica_machines import ReplicaPair, make_static

from holdfast.broker.completion import PARKED_PULLS_TIMER
from holdfast.broker.flow.scheduler import PAUSE_TIMER
from holdfast.broker.replication.local_reads import CatchUp, LocalReads
from holdfast.model.dr_switch import DrSwitch, UnitOpening
from holdfast.wire.cluster.units import encode_switch
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, JSON, Command

EAST, WEST = "east", "west"
_WAITS = "6"  # with a subscription, and until a message comes


def at(answer: Command) -> str:
    """Return where the reader shall continue."""
    return answer.fields["suggestWhichBrokerId"]


def pull(desk: BrokerHarness, offset: int = 0, unit: str | None = WEST, topic: str = "T", **fields: str) -> Command:
    """Pull as a reader of a unit."""
    more = {} if unit is None else {"scope": unit}
    (answer,) = desk.call(a_pull(topic, offset=offset, **more, **fields))
    return answer


def opened(desk: BrokerHarness, *openings: UnitOpening, version: int = 1) -> None:
    """Open units."""
    switch = DrSwitch(version, openings)
    (answer,) = desk.call(Command(code=RequestCode.SET_DR_SWITCH, body=encode_switch(switch)))
    assert answer.code == ResponseCode.SUCCESS


def grow(pair: ReplicaPair) -> None:
    """Let the master take messages, and both brokers know the topic."""
    pair.master.make_topic("T")
    pair.send(10)


def copy(pair: ReplicaPair) -> None:
    """Let the replica ask for everything besides the log, on the clock of both."""
    pair.sync_tables()
    pair.master.pass_time(3_000)


@pytest.fixture
def pair() -> ReplicaPair:
    """A master in east and a caught-up replica in west, that has reported so; east is open."""
    pair = ReplicaPair(cluster=EAST, replica_unit=WEST)
    grow(pair)
    copy(pair)
    pair.connect_and_catch_up()
    copy(pair)
    opened(pair.master, UnitOpening(EAST))
    return pair


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_reader_of_another_unit_is_sent_to_the_replica_in_its_own(pair: ReplicaPair, serializer: int) -> None:
    """The master answers with messages all the same; the replica then has the reader stay."""
    for desk in (pair.master, pair.replica):
        command = a_pull("T", scope=WEST)
        command.serializer = serializer
        (answer,) = desk.call(command)

        assert (answer.code, at(answer)) == (ResponseCode.SUCCESS, "1")
        assert answer.fields["nextBeginOffset"] == "10"
        assert answer.body.count(b"message") == 10


@pytest.mark.parametrize("unit", [None, EAST, "north"])
def test_other_readers_stay_with_the_master(pair: ReplicaPair, unit: str | None) -> None:
    """Those of the master's unit, of a unit without a replica, and of none."""
    assert at(pull(pair.master, unit=unit)) == "0"


def test_readers_stay_with_the_master_while_no_unit_is_open(pair: ReplicaPair) -> None:
    """Also where others are open for other topics, or for other groups."""
    for version, openings in enumerate(
        [
            (),
            (UnitOpening(EAST, topic="others"),),
            (UnitOpening(EAST, group="others"),),
            (UnitOpening(EAST, topic="T"),),
        ],
        2,
    ):
        opened(pair.master, *openings, version=version)
        assert at(pull(pair.master)) == ("1" if version == 5 else "0")


def test_of_several_replicas_that_in_the_readers_unit_is_named(pair: ReplicaPair) -> None:
    """Whatever its number is; of two in one unit the lower."""
    figures = RequestCode.GET_BROKER_RUNTIME_INFO
    for number, unit in (("4", "north"), ("12", "north"), ("2", EAST)):
        fields = {"hf.replica": number, "hf.unit": unit, "hf.caughtUp": "true"}
        pair.master.call(Command(code=figures, fields=fields))

    assert at(pull(pair.master, unit="north")) == "4"
    assert at(pull(pair.master)) == "1"
    pair.master.call(Command(code=figures, fields={"hf.replica": "4", "hf.unit": "north", "hf.caughtUp": "false"}))
    assert at(pull(pair.master, unit="north")) == "12"
    assert pull(pair.master, unit="north").body.count(b"message") == 10


def test_a_report_that_cannot_be_is_ignored() -> None:
    """Anybody may send it: it names no place, or too many."""
    desk = BrokerHarness(cluster=EAST)
    desk.make_topic("T")
    opened(desk, UnitOpening(EAST))
    reports = [("0", WEST), ("-1", WEST), ("x", WEST), ("1", ""), ("1", "w" * 256)]
    reports += [(str(number), "north") for number in range(1, 1000)]
    for number, unit in reports:
        fields = {"hf.replica": number, "hf.unit": unit, "hf.caughtUp": "true"}
        desk.call(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, fields=fields))

    assert at(pull(desk)) == "0"
    assert len(desk.components.local_reads._replicas) <= 64


def test_a_silent_replica_is_not_named_for_long(pair: ReplicaPair) -> None:
    """It may hang, or be cut off from its master."""
    assert at(pull(pair.master)) == "1"

    pair.master.pass_time(10_001)

    assert at(pull(pair.master)) == "0"


def test_a_replica_that_falls_behind_sends_its_readers_to_the_master(pair: ReplicaPair) -> None:
    """It says so for the place where the reader is, and to the master with its next report."""
    pair.send(5)
    for _ in range(5):
        copy(pair)  # The log itself does not come.

    pair.replica.call(a_pull("T", offset=10, scope=WEST, sysFlag=_WAITS), channel=1)
    pair.replica.pass_time(100, PAUSE_TIMER)
    (answer,) = pair.replica.answers[1]

    assert (answer.code, at(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    assert answer.fields["nextBeginOffset"] == "10"
    assert at(pull(pair.master, 10)) == "0"

    pair.exchange()
    copy(pair)
    copy(pair)
    assert at(pull(pair.master, 10)) == "1"
    assert at(pull(pair.replica, 10)) == "1"


def test_a_replica_whose_master_is_gone_serves_its_readers(pair: ReplicaPair) -> None:
    """However far it is: no other broker is left. The route decides then which replica is read."""
    pair.replica.components.table_sync.catch_up.master_failed()
    pair.replica.pass_time(20_000)

    answer = pull(pair.replica)

    assert (answer.code, at(answer)) == (ResponseCode.SUCCESS, "0")
    assert answer.body.count(b"message") == 10


@pytest.mark.parametrize("unit", [None, WEST])
def test_the_shorter_end_of_a_replica_moves_no_reader(pair: ReplicaPair, unit: str | None) -> None:
    """It waits, whatever unit it is of; at the master the same offset is one that never was."""
    assert pull(pair.master, 12, unit).code == ResponseCode.PULL_OFFSET_MOVED
    pair.send(5)

    answer = pull(pair.replica, 12, unit)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "12")
    more = {} if unit is None else {"scope": unit}
    assert pair.replica.call(a_pull("T", offset=12, sysFlag=_WAITS, **more)) == []
    pair.exchange()

    (answer,) = pair.replica.answers[1]
    assert b"message 2" in answer.body
    assert at(answer) == ("0" if unit is None else "1")


def test_a_queue_that_is_empty_at_the_replica_moves_no_reader(pair: ReplicaPair) -> None:
    """Its first messages are yet to come."""
    answer = pull(pair.replica, 7, queueId="1")

    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "7")


def test_a_queue_that_begins_later_at_the_replica_moves_no_reader_while_the_master_is_up(pair: ReplicaPair) -> None:
    """The replica may have deleted what the master still has: the reader gets it there."""
    pair.replica.store.queue("T", 0).offset_min = 4

    answer = pull(pair.replica, 2)
    assert (answer.code, at(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    assert answer.fields["nextBeginOffset"] == "2"

    pair.replica.components.table_sync.catch_up.master_failed()
    assert pull(pair.replica, 2).code == ResponseCode.PULL_OFFSET_MOVED


def test_logical_queues_are_read_at_the_replica_too() -> None:
    """With the same rules: near readers stay, the shorter end moves no reader."""
    pair = ReplicaPair(cluster=EAST, replica_unit=WEST)
    make_static(pair.master)
    for number in range(3):
        pair.master.call(a_send("S", body=b"message %d" % number))
    copy(pair)
    pair.connect_and_catch_up()
    copy(pair)
    copy(pair)
    opened(pair.master, UnitOpening(EAST))

    for desk in (pair.master, pair.replica):
        answer = pull(desk, topic="S")
        assert (at(answer), answer.body.count(b"message")) == ("1", 3)
    beyond = pull(pair.replica, 5, topic="S")
    assert (beyond.code, beyond.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "5")


def test_what_a_pull_commits_is_the_masters_business_while_that_is_up(pair: ReplicaPair) -> None:
    """A replica keeps what is committed there only for a master that is away."""
    pull(pair.replica, 5, sysFlag="5", commitOffset="5")
    assert not pair.replica.components.offsets.unsent_commits

    pair.replica.components.table_sync.catch_up.master_failed()
    pull(pair.replica, 5, sysFlag="5", commitOffset="5")
    assert pair.replica.components.offsets.unsent_commits


@pytest.mark.parametrize("committed", [5, 3])
def test_a_reset_reaches_a_reader_at_the_replica(pair: ReplicaPair, committed: int) -> None:
    """It is sent to the master, which moves it; also where the group had committed the same offset before."""
    pair.master.components.offsets.commit("consumers", "T", 0, committed)
    copy(pair)
    pair.master.components.offsets.reset("consumers", "T", 0, 5, deliver=True)
    copy(pair)

    answer = pull(pair.replica, 10)
    assert (answer.code, at(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    answer = pull(pair.master, 10)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "5")
    copy(pair)
    assert pull(pair.replica, 5).code == ResponseCode.SUCCESS


def test_a_waiting_reader_learns_soon_that_the_replica_has_fallen_behind(pair: ReplicaPair) -> None:
    """It is answered after three seconds, though it would wait longer."""
    assert pair.replica.call(a_pull("T", offset=10, scope=WEST, sysFlag=_WAITS)) == []

    pair.replica.pass_time(3_001, PARKED_PULLS_TIMER)

    assert codes(pair.replica.answers[1]) == [ResponseCode.PULL_NOT_FOUND]


def test_refusals_stay_as_they_are(pair: ReplicaPair) -> None:
    """They name no broker."""
    for serializer in (JSON, BINARY):
        command = a_pull("unknown", scope=WEST)
        command.serializer = serializer
        for desk in (pair.master, pair.replica):
            (answer,) = desk.call(command)
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_replica_without_a_unit_reports_nothing() -> None:
    """Its master keeps all readers."""
    replica = BrokerHarness(replica_of="broker-a")
    reads = replica.components.local_reads

    assert isinstance(reads, LocalReads)
    assert reads.report() == {}


def test_a_replica_that_is_always_a_little_behind_has_caught_up_with_what_is_old() -> None:
    """Each question is remembered until its answer is reached, though newer ones come before that."""
    catch_up = CatchUp()
    for second in range(20):
        catch_up.master_answered(second * 1_000, second * 100)
        catch_up.reached((second - 5) * 100)

    assert catch_up.is_within(5_000, 19_000)
    assert not catch_up.is_within(4_999, 19_000)
    for second in range(20, 200):
        catch_up.master_answered(second * 1_000, second * 100)  # It reaches none of them.
    assert not catch_up.is_within(100_000, 199_000)
    assert catch_up.has_master(5_000, 199_000)
