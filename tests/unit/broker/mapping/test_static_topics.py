"""What a normal topic can do, a static topic can: sends, offsets, resets, lag, description, deletion."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.broker_machines import EPOCH, TOPIC, StaticBroker, StaticBrokers, records

from holdfast.machine.effects import SendBytes
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping, new_logical_queue
from holdfast.wire.cluster.mapping import encode, to_detail
from holdfast.wire.cluster.registration import decode_registration
from holdfast.wire.frames import java_json
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.admin import TopicOffsetTable
from holdfast.wire.requests.send import send_header

JAVA_4, JAVA_5 = 407, 495
MOCK = "__syslo__global__"


@pytest.fixture
def desks() -> StaticBrokers:
    """Return queue 0 with two records on a and one on b, its leader; queues 1 (on b) and 2 (on a) are as they began."""
    desks = StaticBrokers("a", "b")
    desks.create("a", "b", "a")
    desks.send(0, b"one", b"two")
    desks.move(0, "b")
    desks.send(0, b"three")
    return desks


def find_away(desk: StaticBroker, *queues: int) -> list[int]:
    """Return which sends of a run, one for each of *queues*, the broker leaves to others; it answers all others."""
    sends = desk.components.fast_sends
    headers = [send_header(a_send(TOPIC, queue=queue)) for queue in queues]
    answers = sends.handle_run(headers, [b"x"] * len(queues), [bytes(8)] * len(queues))
    desk.store.discard()
    away = sends.drain_away()
    assert [at for at, answer in enumerate(answers) if not answer] == away
    assert sends.away_indexes == []
    return away


def a_commit(queue: int, offset: int, **fields: str) -> Command:
    named = {"consumerGroup": "G", "topic": TOPIC, "queueId": str(queue), "commitOffset": str(offset)}
    return Command(code=15, fields=named | fields)


def a_query(queue: int, **fields: str) -> Command:
    return Command(code=14, fields={"consumerGroup": "G", "topic": TOPIC, "queueId": str(queue)} | fields)


# Sending.


def test_many_sends_of_one_read_get_logical_offsets(desks: StaticBrokers):
    """Also when they are of several queues, and of a normal topic in between."""
    desk = desks["b"]
    desk.make_topic("N")
    sends = [a_send(TOPIC, queue=0), a_send(TOPIC, queue=1), a_send("N", queue=2), a_send(TOPIC, queue=0)]

    answers = desk.call(*sends)

    assert [(answer.fields["queueId"], answer.fields["queueOffset"]) for answer in answers] == [
        ("0", "3"),
        ("1", "0"),
        ("2", "0"),
        ("0", "4"),
    ]


def test_records_on_disk_have_physical_numbers(desks: StaticBrokers):
    """As upstream writes them: a Java broker may read the folder."""
    answer = desks.pull(0, 2)

    home = desks.queue(0).leader
    assert [(record.queue_id, record.offset) for record in records(answer)] == [(home.queue_id, 0)]
    assert home.queue_id != 0


def test_a_batch_and_a_send_of_old_form_get_logical_offsets(desks: StaticBrokers):
    """What takes the careful path ends in the same queue."""
    item = b"\0\0\0\x17" + b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\x01x" + b"\0\0"
    long_names = {
        "producerGroup": "p",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": "",
    }

    batch, old = desks["b"].call(
        a_send(TOPIC, queue=0, code=320, body=item * 2, m="true"), Command(code=10, fields=long_names, body=b"y")
    )

    assert (batch.code, batch.fields["queueId"], batch.fields["queueOffset"]) == (0, "0", "3")
    assert (old.code, old.fields["queueId"], old.fields["queueOffset"]) == (0, "0", "5")
    assert len(desks.read_all(0)) == 6


def test_a_send_to_any_queue_goes_to_one_that_is_led_here(desks: StaticBrokers):
    """Never to one that another broker leads."""
    answers = [desks["b"].call(a_send(TOPIC, queue=-1))[0] for _ in range(20)]

    assert {answer.code for answer in answers} == {0}
    assert {answer.fields["queueId"] for answer in answers} == {"0", "1"}


def test_a_send_for_another_leader_is_left_to_it(desks: StaticBrokers):
    """So is one for a queue that this broker does not know: the topic may have grown."""
    assert find_away(desks["a"], 0, 2, 3) == [0, 2]


def test_a_message_for_another_leader_is_refused_in_upstreams_words(desks: StaticBrokers):
    """One that this broker wants to store itself, such as a delayed message that is due."""
    refusal = desks["a"].components.writer.refuse_away(TOPIC, 0)

    assert (refusal.code, refusal.remark) == (501, "T-0 does not exit in request process of current broker a")


def test_a_sealed_queue_takes_nothing_from_the_next_send_on(desks: StaticBrokers):
    """The targets of sends follow seals at once, and their lifting."""
    desk = desks["b"]
    assert find_away(desk, 0, 1) == []
    desk.components.mappings.seal(TOPIC, [0])

    sealed = find_away(desk, 0, 1)
    desk.components.mappings.unseal(TOPIC, [0])

    assert sealed == [0]
    assert find_away(desk, 0, 1) == []


def test_sends_for_other_brokers_are_known_by_their_index_in_the_run(desks: StaticBrokers):
    """Their frames are found by it; they get no answer meanwhile."""
    assert find_away(desks["b"], 0, 2, 1, 2) == [1, 3]


# Offsets.


def test_offsets_are_kept_by_logical_queue(desks: StaticBrokers):
    """At the leader, in logical numbers; a commit and a query anywhere else find no leader."""
    desk = desks["b"]
    desk.components.groups.ensure("G")
    desks["a"].components.groups.ensure("G")

    (committed,) = desk.call(a_commit(0, 2))
    (queried,) = desk.call(a_query(0))
    elsewhere = desks["a"].components.queues

    assert committed.code == 0
    assert queried.fields["offset"] == "2"
    assert desk.components.offsets.queues_of("G", TOPIC) == {0: 2}
    assert elsewhere.resolve(TOPIC, 0) is None


def test_another_broker_asks_for_physical_offsets(desks: StaticBrokers):
    """A Java leader keeps asking the brokers that led before; what it commits there is translated too."""
    desk = desks["b"]
    desk.components.groups.ensure("G")
    home = desks.queue(0).leader

    desk.call(a_commit(home.queue_id, 1, lo="false"))
    (physical,) = desk.call(a_query(home.queue_id, lo="false"))
    (none,) = desk.call(a_query(99, lo="false"))

    assert desk.components.offsets.find("G", TOPIC, 0) == 3
    assert (physical.fields["offset"], none.code) == ("1", 22)


def test_after_a_forced_move_a_group_begins_where_it_misses_nothing(desks: StaticBrokers):
    """Its offset may have died with the leader: "none" would let old clients jump to the end."""
    forced = desks.queue(0).force("a", 7)
    desks.record_at(desks["a"], forced, total=3, epoch=EPOCH + 10_000)

    (answer,) = desks["a"].call(a_query(0))

    assert (answer.code, answer.fields["offset"]) == (0, "0")


def test_a_group_that_never_committed_is_told_so(desks: StaticBrokers):
    """Unless the queue still has its very first message here: as in a normal topic."""
    desks.send(1, b"first")

    (moved,) = desks["b"].call(a_query(0))
    (fresh,) = desks["b"].call(a_query(1))
    (objecting,) = desks["b"].call(a_query(1, setZeroIfNotFound="false"))

    assert (moved.code, fresh.code, objecting.code) == (22, 0, 22)
    assert fresh.fields["offset"] == "0"


def test_offsets_of_a_border_that_java_left_are_asked_for_behind_it(desks: StaticBrokers):
    """There is no recorded end: the offset of a group that has not crossed it lies with the broker before."""
    first = Segment(generation=0, broker="a", queue_id=0, first=0)
    second = Segment(generation=1, broker="b", queue_id=desks.queue(0).leader.queue_id, first=10_000)
    desks.record_at(desks["b"], LogicalQueue(9, (first, second)), total=10, epoch=EPOCH + 10_000, topic="J")
    desks.record_at(desks["a"], LogicalQueue(9, (first,)).seal(5), total=10, epoch=EPOCH + 10_000, topic="J")
    desks["a"].components.offsets.commit("G", "J", 9, 4)
    query = Command(code=14, fields={"consumerGroup": "G", "topic": "J", "queueId": "9"})

    (asked,) = desks["b"].call(query)
    desks.kill("a")
    (kept,) = desks["b"].call(query)

    assert (asked.fields["offset"], kept.fields["offset"]) == ("4", "4")


def test_offsets_behind_the_end_are_put_right_by_logical_ends(desks: StaticBrokers):
    """And those of queues that others lead are left alone."""
    desk = desks["b"]
    desk.components.offsets.commit("G", TOPIC, 0, 99)
    desk.components.offsets.commit("G", TOPIC, 2, 99)
    desk.pass_time(5_000, "kept files")

    again = desks.restart("b")

    assert again.components.offsets.queues_of("G", TOPIC) == {0: 3, 2: 99}


# Tools.


def test_a_message_found_by_key_or_position_has_logical_numbers(desks: StaticBrokers):
    """On every broker that holds a part of the queue, whoever leads it now."""
    (sent,) = desks["b"].call(a_send(TOPIC, queue=0, body=b"four", i="UNIQ_KEY\x01u\x02KEYS\x01k1\x02"))
    position = str(int(sent.fields["msgId"][-16:], 16))

    asked = {"topic": TOPIC, "maxNum": "9", "hf.mapping": "1"}
    (by_key,) = desks["b"].call(Command(code=12, fields=asked | {"key": "k1"}))
    (viewed,) = desks["b"].call(Command(code=33, fields={"offset": position}))
    (old,) = desks["a"].call(Command(code=12, fields=asked | {"key": "7F00000100000001"}))

    assert [(record.queue_id, record.offset) for record in records(by_key)] == [(0, 3)]
    assert viewed.body == by_key.body
    assert sorted((record.queue_id, record.offset) for record in records(old)) == [(0, 0), (0, 1)]


def test_a_reset_goes_to_logical_offsets_over_borders(desks: StaticBrokers):
    """Of the queues that are led here; by time, to an offset of an old segment, or refused outside the bounds."""
    reset = {"topic": TOPIC, "group": "G", "timestamp": "0", "isForce": "true"}
    (by_time,) = desks["b"].call(Command(code=222, fields=reset))
    found = dict(desks["b"].components.offsets.queues_of("G", TOPIC))
    (to_offset,) = desks["b"].call(Command(code=222, fields=reset | {"queueId": "0", "offset": "1", "timestamp": "-1"}))
    (beyond,) = desks["b"].call(Command(code=222, fields=reset | {"queueId": "0", "offset": "9", "timestamp": "-1"}))
    (foreign,) = desks["b"].call(Command(code=222, fields=reset | {"queueId": "2", "offset": "0", "timestamp": "-1"}))

    assert (by_time.code, to_offset.code, beyond.code, foreign.code) == (0, 0, 1, 29)
    assert found == {0: 0, 1: 0}
    assert desks["b"].components.offsets.find("G", TOPIC, 0) == 1
    assert MOCK.encode() in by_time.body


def test_lag_is_told_of_logical_queues(desks: StaticBrokers):
    """Java's tool adds the delta to our end and takes the group's offset as it is: so it is told both as it needs.

    Its forerunner, which knows no mapping, is told what it shall show.
    """
    desk = desks["b"]
    desk.components.offsets.commit("G", TOPIC, 0, 2)
    home = desks.queue(0).leader

    (ours,) = desk.call(Command(code=208, fields={"consumerGroup": "G", "topic": TOPIC, "lo": "true"}))
    asked = {"consumerGroup": "G", "topic": TOPIC}
    (java,) = desk.call(Command(code=208, fields=asked, language="JAVA", version=JAVA_5))
    (old,) = desk.call(Command(code=208, fields=asked, language="JAVA", version=JAVA_4))

    assert b'"brokerOffset":3,"consumerOffset":2' in ours.body
    assert MOCK.encode() in ours.body
    assert b'"brokerOffset":1,"consumerOffset":2' in java.body
    assert b'"queueId":%d' % home.queue_id in java.body
    assert b'"brokerOffset":3,"consumerOffset":2' in old.body


def test_an_old_tool_is_told_of_all_logical_queues_by_the_broker_that_it_sees(desks: StaticBrokers):
    """It knows one address. A newer one, which knows them all, is told of the physical queues of each."""
    asked = {"topic": TOPIC}
    (old,) = desks["a"].call(Command(code=202, fields=asked, language="JAVA", version=JAVA_4))
    (java,) = desks["a"].call(Command(code=202, fields=asked, language="JAVA", version=JAVA_5))
    (physical,) = desks["a"].call(Command(code=202, fields=asked | {"lo": "false"}, language="JAVA", version=JAVA_4))

    ends = {queue.queue_id: ends for queue, ends in java_json.decode(old.body, TopicOffsetTable).rows()}
    assert {number: (told.min_offset, told.max_offset) for number, told in ends.items()} == {
        0: (0, 3),
        1: (0, 0),
        2: (0, 0),
    }
    assert java.body == physical.body
    assert MOCK.encode() not in java.body


def test_the_time_span_of_a_group_is_told(desks: StaticBrokers):
    """Of the queues that are led here."""
    (answer,) = desks["b"].call(Command(code=303, fields={"group": "G", "topic": TOPIC}))

    assert answer.code == 0
    assert answer.body.count(MOCK.encode()) == 2


def test_the_number_of_queues_is_not_changed_by_an_update_of_the_topic(desks: StaticBrokers):
    """They belong to logical queues; other settings may change."""
    config = desks["b"].components.topics.find(TOPIC)
    assert config is not None
    fields = {
        "topic": TOPIC,
        "readQueueNums": str(config.read_queues),
        "writeQueueNums": str(config.write_queues),
        "perm": "4",
    }

    (same,) = desks["b"].call(Command(code=17, fields=fields))
    (more,) = desks["b"].call(Command(code=17, fields=fields | {"writeQueueNums": "50"}))

    assert (same.code, more.code) == (0, 29)
    assert "static" in (more.remark or "")
    changed = desks["b"].components.topics.find(TOPIC)
    assert changed == msgspec.structs.replace(config, permission=4)


def test_a_deleted_topic_leaves_nothing_behind(desks: StaticBrokers):
    """Neither its record nor its offsets; a normal topic of the name may be made then, also after a restart."""
    desks["b"].components.offsets.commit("G", TOPIC, 0, 1)

    (answer,) = desks["b"].call(Command(code=215, fields={"topic": TOPIC}))

    assert answer.code == 0
    again = desks.restart("b")
    assert again.components.mappings.find(TOPIC) is None
    assert again.components.topics.find(TOPIC) is None
    assert desks["b"].components.offsets.queues_of("G", TOPIC) == {}
    again.make_topic(TOPIC, 4)
    (sent,) = again.call(a_send(TOPIC, queue=3))
    assert (sent.code, sent.fields["queueOffset"]) == (0, "0")


def test_name_servers_are_told_the_record_with_everything_we_know():
    """The Info that Java reads, and ours beside it; without static topics the body is what it always was."""
    desks = StaticBrokers("a", "b")
    plain = desks["a"].components.registration._encode_body()
    desks.create("a", "b")
    desks["a"].pass_time(500, "flush")
    desks.deliver_all()

    body = desks["a"].components.registration._encode_body()

    told = decode_registration(body, version=479).topic_config_serialize_wrapper
    assert told.topic_queue_mapping_info_map[TOPIC]["currIdMap"] == {"0": 0}
    assert "holdfast" in told.topic_queue_mapping_info_map[TOPIC]
    assert TOPIC in told.topic_config_table
    assert b'"topicQueueMappingInfoMap":{}' in plain
    assert not any(isinstance(effect, SendBytes) for effect in desks["a"].effects)


def test_a_topic_that_becomes_static_is_not_told_of_before_its_record_is_on_disk():
    """Least of all as a normal topic: clients would send to its physical queues."""
    desks = StaticBrokers("a")
    desks.record(new_logical_queue(0, "a", 0))
    registration = desks["a"].components.registration

    before = decode_registration(registration._encode_body(), version=479).topic_config_serialize_wrapper
    desks["a"].pass_time(500, "flush")
    desks.deliver_all()
    after = decode_registration(registration._encode_body(), version=479).topic_config_serialize_wrapper

    assert (TOPIC in before.topic_config_table, TOPIC in before.topic_queue_mapping_info_map) == (False, False)
    assert (TOPIC in after.topic_config_table, TOPIC in after.topic_queue_mapping_info_map) == (True, True)


def test_offsets_follow_when_a_normal_topic_becomes_static():
    """Its physical queue 1 becomes logical queue 5: groups stand where they stood, and messages keep their offsets."""
    desks = StaticBrokers("a")
    desk = desks["a"]
    desk.make_topic(TOPIC, 2)
    desk.call(*[a_send(TOPIC, queue=1, body=b"%d" % at) for at in range(4)])
    desk.components.offsets.commit("G", TOPIC, 1, 3)
    record = TopicMapping(topic=TOPIC, broker="a", epoch=EPOCH, total=6, queues={5: new_logical_queue(5, "a", 1)})
    fields = {"topic": TOPIC, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}

    (answer,) = desk.call(Command(code=513, fields=fields, body=encode(to_detail(record))))

    assert answer.code == 0
    assert desk.components.offsets.queues_of("G", TOPIC) == {5: 3}
    assert desks.read_all(5) == [(at, b"%d" % at) for at in range(4)]
    assert desks.send(5, b"4") == [4]
