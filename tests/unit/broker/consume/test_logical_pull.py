"""Pulls of logical queues: what waits, what is woken, what is committed, what old clients see."""

from __future__ import annotations

import json

from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.broker_machines import EPOCH, TOPIC, StaticBroker, StaticBrokers, records

from holdfast.broker.completion import PARKED_PULLS_TIMER
from holdfast.broker.consume.physical_pull import Puller
from holdfast.machine.events import ChannelId
from holdfast.model.mapping import FORCED_GAP
from holdfast.model.queue import PhysicalOffset, PhysicalQueueId
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.pull import pull_header

SUSPEND, COMMIT, SUBSCRIPTION = 2, 1, 4


def desks_with(*bodies: bytes) -> StaticBrokers:
    desks = StaticBrokers("a", "b")
    desks.create("a", "b")
    desks.send(0, *bodies)
    return desks


def park(desk: StaticBroker, offset: int, queue: int = 0, **fields: str) -> None:
    """Let a pull wait."""
    (*answers,) = desk.call(
        a_pull(TOPIC, queue=queue, offset=offset, sysFlag=str(SUSPEND | SUBSCRIPTION), **{"hf.mapping": "1"} | fields)
    )
    assert answers == []
    assert len(desk.components.pull_handler.parked_pulls) == 1


def taken(desk: StaticBroker) -> Command:
    """Return what the waiting pull was answered."""
    (answer,) = desk.answers[1]
    return answer


def test_a_pull_at_the_end_waits_for_the_next_message():
    """It is woken by a send to the logical queue, wherever that is stored."""
    desks = desks_with(b"one")
    desks.move(0, "b")
    desks["b"].connect(2)
    park(desks["b"], 1)

    desks["b"].call(a_send(TOPIC, queue=0, body=b"two"), channel=2)

    assert [record.body for record in records(taken(desks["b"]))] == [b"two"]
    assert taken(desks["b"]).fields["offsetDelta"] == "1"
    assert taken(desks["b"]).fields["nextBeginOffset"] == "2"


def test_a_pull_that_waits_is_woken_when_its_queue_moves():
    """It is told to ask again for the same, which then finds the new leader; it does not wait for its deadline."""
    desks = desks_with(b"one")
    park(desks["a"], 1)

    desks.move(0, "b")
    desks["a"].pass_time(0, "kept files")  # Whatever event comes next: at its end they are woken.

    answer = taken(desks["a"])
    assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "1")


def test_a_commit_that_comes_with_a_pull_is_of_the_logical_queue():
    """Under its number, at its offset, whatever the physical queue is called."""
    desks = desks_with(b"one", b"two")
    desks.move(0, "b")

    desks.pull(0, 2, sysFlag=str(COMMIT | SUBSCRIPTION), commitOffset="2")

    assert desks["b"].components.offsets.find("consumers", TOPIC, 0) == 2


def test_a_reset_is_told_to_the_reader_of_the_logical_queue():
    """Also back over the border of a segment; the answer has logical numbers."""
    desks = desks_with(b"one", b"two")
    desks.move(0, "b")
    desks.send(0, b"three")
    desks["b"].components.offsets.reset("consumers", TOPIC, 0, 1, deliver=True)

    answer = desks.pull(0, 3)

    assert (answer.code, answer.fields["nextBeginOffset"]) == (21, "1")
    assert [body for _, body in desks.read_all(0, start=1)] == [b"two", b"three"]


def test_a_filter_that_matches_nothing_goes_on_at_the_border():
    """The reader is sent to the first offset of the next segment, and not beyond what was looked at."""
    desks = desks_with(b"one", b"two")
    desks.move(0, "b")
    desks.send(0, b"three")

    first = desks.pull(0, 0, subscription="Other")
    second = desks.pull(0, 2, subscription="Other")

    assert (first.code, first.fields["nextBeginOffset"]) == (20, "2")
    assert (second.code, second.fields["nextBeginOffset"]) == (20, "3")


def test_the_subscription_of_a_group_goes_along():
    """The broker of an old segment has never heard of the group."""
    desks = desks_with(b"one")
    desks.move(0, "b")
    beat = {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": "consumers",
                "subscriptionDataSet": [{"topic": TOPIC, "subString": "Other", "tagsSet": ["Other"], "codeSet": [1]}],
            }
        ],
        "producerDataSet": [],
    }
    desks["b"].call(Command(code=34, body=json.dumps(beat).encode()))

    answer = desks.pull(0, 0, sysFlag="0")

    assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "1")


def test_a_client_that_knows_no_delta_gets_logical_records():
    """Of segments here and elsewhere, hot or not; a Java client of 5.x, which knows it, gets them as they lie."""
    desks = desks_with(b"one", b"two")
    desks.move(0, "b")
    desks.send(0, b"three")

    old_remote = desks.pull(0, 0, **{"hf.mapping": "0"})
    old_local = desks.pull(0, 2, **{"hf.mapping": "0"})
    (java,) = desks["b"].call(
        Command(code=11, fields=a_pull(TOPIC, queue=0, offset=2).fields, language="JAVA", version=477)
    )

    assert [(record.queue_id, record.offset) for record in records(old_remote)] == [(0, 0), (0, 1)]
    assert [(record.queue_id, record.offset) for record in records(old_local)] == [(0, 2)]
    assert (old_local.fields["offsetDelta"], java.fields["offsetDelta"]) == ("0", "2")
    assert [record.offset for record in records(java)] == [0]


def test_what_a_broker_has_sealed_and_not_confirmed_is_waited_for():
    """A reader is never sent past records that exist, though their broker does not show them yet."""
    desks = desks_with(b"one", b"two")
    desks.move(0, "b")
    log = desks["a"].store.find_queue(TOPIC, 0)
    assert log is not None
    log.offset_max = 1

    desks["b"].call(a_pull(TOPIC, queue=0, offset=1))
    desks["b"].pass_time(1_000, "pauses")
    desks.deliver_all()

    answer = taken(desks["b"])
    assert (answer.code, answer.fields["nextBeginOffset"]) == (19, "1")


def test_a_partly_cleaned_segment_sends_its_reader_to_what_is_left():
    """In the oldest segment with the big word, in a later one quietly."""
    desks = desks_with(b"1", b"2")
    desks.move(0, "b")
    desks.send(0, b"3", b"4")
    for broker in ("a", "b"):
        log = desks[broker].store.find_queue(TOPIC, desks.queue(0).segments[0 if broker == "a" else 1].queue_id)
        assert log is not None
        log.offset_min = 1

    oldest, later = desks.pull(0, 0), desks.pull(0, 2)

    assert (oldest.code, oldest.fields["nextBeginOffset"]) == (21, "1")
    assert (later.code, later.fields["nextBeginOffset"], later.fields["minOffset"]) == (20, "3", "3")


def test_a_queue_of_another_leader_is_refused_in_upstreams_words():
    """Where nobody passes requests on."""
    desks = desks_with()
    pulls = desks["a"].components.pull_handler

    answer = pulls.handle_pull(pull_header(a_pull(TOPIC, queue=1, offset=0)), Puller(ChannelId(1), 0))

    assert isinstance(answer, list)
    assert b"cannot find mapping item" in bytes(answer[0])


def test_a_physical_pull_of_another_broker_changes_nothing_here():
    """It neither commits nor waits nor takes a reset away."""
    desks = desks_with(b"one")
    offsets = desks["a"].components.offsets
    offsets.reset("consumers", TOPIC, 0, 0, deliver=True)
    flags = str(COMMIT | SUSPEND | SUBSCRIPTION)

    (answer,) = desks["a"].call(a_pull(TOPIC, queue=0, offset=1, sysFlag=flags, commitOffset="1", lo="false"))

    assert (answer.code, "offsetDelta" in answer.fields) == (19, False)
    assert offsets.find("consumers", TOPIC, 0) == 0
    assert offsets.pop_reset("consumers", TOPIC, 0) == 0


def test_where_a_group_goes_on_is_noted_at_the_leader_only():
    """In logical offsets, also for what lies at an older home; whoever is asked for that notes nothing."""
    desks = desks_with(b"1", b"2", b"3")
    desks.move(0, "b")
    desks.send(0, b"4")

    desks["b"].call(a_pull(TOPIC, offset=1, maxMsgNums="1"))
    old = desks["b"].components.offsets.find_pulled("consumers", TOPIC, 0)
    desks["b"].call(a_pull(TOPIC, offset=3))
    new = desks["b"].components.offsets.find_pulled("consumers", TOPIC, 0)
    desks["b"].call(a_pull(TOPIC, offset=4))

    assert (old, new) == (2, 4)
    assert desks["a"].components.offsets.find_pulled("consumers", TOPIC, 0) is None
    assert desks["b"].components.stats.pulls_missed.value == 1


def test_the_lowest_offset_in_answers_follows_what_is_cleaned():
    """Here and elsewhere: what a reader was told before does not count."""
    desks = desks_with(b"1", b"2")
    desks.move(0, "b")
    desks.send(0, b"3", b"4")
    before = desks.pull(0, 2).fields["minOffset"]
    remote, local = (desks[home.broker].store.find_queue(TOPIC, home.queue_id) for home in desks.queue(0).segments)
    assert remote is not None
    assert local is not None

    remote.offset_min = 1
    desks.pull(0, 1)
    after_remote = desks.pull(0, 2).fields["minOffset"]
    local.offset_min = 1
    after_local = desks.pull(0, 3).fields["minOffset"]

    assert (before, after_remote, after_local) == ("0", "1", "3")


def test_a_pull_that_comes_once_more_takes_no_committed_offset_back():
    """Another broker passed it on, got no answer, and asks again, long after the group has gone on."""
    desks = desks_with(b"one", b"two")
    flags = str(COMMIT | SUBSCRIPTION)

    for committed in ("2", "1"):
        desks["a"].call(a_pull(TOPIC, queue=0, offset=1, sysFlag=flags, commitOffset=committed))

    assert desks["a"].components.offsets.find("consumers", TOPIC, 0) == 2


def test_a_pull_that_waits_across_a_gap_is_moved_when_the_segment_before_the_gap_expires():
    """It waits where it asked, so its answer says that the offsets below the gap are gone."""
    desks = StaticBrokers("a", "b")
    desks.create("a")
    desks.send(0, b"one", b"two")
    forced = desks.queue(0).force("b", PhysicalQueueId(7)).fix_end(PhysicalOffset(2))
    desks.record(forced, epoch=EPOCH + 1)
    park(desks["b"], 2, suspendTimeoutMillis="1000")

    desks.record(forced.expire(0, PhysicalQueueId(0)), epoch=EPOCH + 2)
    desks["b"].pass_time(1_001, PARKED_PULLS_TIMER)

    assert (taken(desks["b"]).code, taken(desks["b"]).fields["nextBeginOffset"]) == (21, str(FORCED_GAP))
