"""Static topics as upstream writes them, and what we put beside."""

import tarfile
from pathlib import Path

import msgspec
import pytest
from tests.support.recordings import RecordedFrame, file_names, read

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.floor import Floor
from holdfast.model.mapping import (
    LogicalQueue,
    Segment,
    TopicMapping,
    check,
    new_logical_queue,
)
from holdfast.wire.cluster.mapping import (
    SEGMENTS_MAX,
    MappedTopic,
    MappingDetail,
    MappingExtras,
    MappingFile,
    MappingInfo,
    MappingItem,
    convert_info,
    decode,
    encode,
    encode_file,
    from_detail,
    from_info,
    to_detail,
    to_info,
    to_item,
    to_segment,
)
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.frames import java_json

GOLDEN = Path(__file__).parents[3] / "data" / "golden" / "rocketmq-5.5.0-clean.tar.gz"
UPDATE, ASK = 513, 351

JAVA_DETAIL = (
    b'{"bname":"b2","currIdMap":{},"dirty":false,"epoch":1700000001000,"hostedQueues":{3:['
    b'{"bname":"b1","endOffset":-1,"gen":0,"logicOffset":0,"queueId":0,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1},'
    b'{"bname":"b2","endOffset":-1,"gen":1,"logicOffset":10000,"queueId":2,"startOffset":0,"timeOfEnd":-1,'
    b'"timeOfStart":-1}]},"scope":"__global__","topic":"t","totalQueues":4}'
)


def a_story() -> LogicalQueue:
    """Return a queue in which everything has happened that upstream has no word for."""
    queue = new_logical_queue(0, "a", 0).prepare("b", 0).seal(50, 99).open_next(100)
    queue = queue.prepare("c", 0).seal(7).open_next().expire(1, 0)
    return queue.force("a", 5, known_end=70).prepare("b", 9)


def a_mapping(*queues: LogicalQueue, broker: str = "a") -> TopicMapping:
    return TopicMapping(
        topic="t", broker=broker, epoch=5, total=4, queues={queue.queue: queue for queue in queues or (a_story(),)}
    )


def recorded(code: int, *, responses: bool) -> list[RecordedFrame]:
    """Return every recorded frame of a static topic that is about *code* and has a body."""
    frames = [frame for name in file_names("5.5.0-*-static-*") for frame in read(name)]
    return [frame for frame in frames if frame.code == code and frame.is_response == responses and frame.command.body]


# Java's bytes.


def test_an_item_has_eight_keys_and_a_detail_too():
    """In Java's order."""
    detail = java_json.loads(encode(decode(JAVA_DETAIL, MappingDetail)))

    assert list(detail) == ["bname", "currIdMap", "dirty", "epoch", "hostedQueues", "scope", "topic", "totalQueues"]
    assert list(detail["hostedQueues"]["3"][0]) == [
        "bname",
        "endOffset",
        "gen",
        "logicOffset",
        "queueId",
        "startOffset",
        "timeOfEnd",
        "timeOfStart",
    ]


def test_what_java_wrote_is_written_again_to_the_byte():
    """Bare keys and all."""
    assert encode(decode(JAVA_DETAIL, MappingDetail), bare_keys=True) == JAVA_DETAIL


def test_updates_that_java_sent_are_written_again_to_the_byte():
    """Create, grow, remap, under both serializers; each is a record that can be believed."""
    frames = recorded(UPDATE, responses=False)
    assert len(frames) > 10

    for frame in frames:
        detail = decode(frame.command.body, MappingDetail)
        assert encode(detail, bare_keys=True) == bytes(frame.command.body), str(frame)
        mapping = from_detail(detail)
        check(mapping)
        assert to_detail(mapping, with_extras=False) == detail


def test_answers_that_java_brokers_gave_are_written_again_to_the_byte():
    """Configuration and mapping in one."""
    frames = recorded(ASK, responses=True)
    assert len(frames) > 10

    for frame in frames:
        assert encode(decode(frame.command.body, MappedTopic), bare_keys=True) == bytes(frame.command.body), str(frame)


def test_the_file_that_java_keeps_is_written_again_to_the_byte():
    """Tabs and all, on both sides of a remap; the old leader never learnt where the new home begins."""
    files: dict[str, bytes] = {}
    with tarfile.open(GOLDEN) as archive:
        for member in archive:
            if member.name.endswith("topicQueueMapping.json"):
                stream = archive.extractfile(member)
                assert stream is not None
                files[member.name] = stream.read()
    assert len(files) == 2

    for name, data in files.items():
        file = decode(data, MappingFile)
        assert encode_file(file) == data, name
        mapping = from_detail(file.topic_queue_mapping_info_map["GoldenStatic"])
        check(mapping, owner=name.split("/")[-3])
        firsts = [segment.first for segment in mapping.queues[0].segments]
        assert firsts == ([0, 10_000] if mapping.broker == "broker-b" else [0, None])


def test_a_normal_topic_has_no_mapping():
    """Absent or null."""
    assert decode(b'{"topicName":"t"}', MappedTopic).mapping is None
    assert decode(b'{"topicName":"t","mappingDetail":null}', MappedTopic).mapping is None
    assert b"mappingDetail" not in encode(MappedTopic(name="t"))


# What we put beside.


def test_everything_survives_both_forms():
    """Ends, times, expired and forced homes, a move under way."""
    mapping = a_mapping(a_story(), new_logical_queue(3, "a", 8))

    assert from_detail(decode(encode(to_detail(mapping)), MappingDetail)) == mapping
    assert from_info(decode(encode(to_info(mapping)), MappingInfo)) == mapping
    assert from_detail(decode(encode(to_detail(mapping), bare_keys=True), MappingDetail)) == mapping


def test_floors_survive_both_forms_and_are_left_out_where_there_are_none():
    """A body without them is what it was before there were any."""
    record = TopicMapping(topic="t", broker="a", epoch=5, total=4, queues={0: new_logical_queue(0, "a", 0)})
    retired = record.forget_queue(0, Floor(offset=2**41, generation=4, brokers=("a", "b")))

    assert from_detail(decode(encode(to_detail(retired)), MappingDetail)) == retired
    assert from_info(decode(encode(to_info(retired)), MappingInfo)) == retired
    assert b"floors" not in encode(to_info(record))


def test_a_registration_tells_what_is_led():
    """Upstream's clients need nothing else."""
    mapping = a_mapping(new_logical_queue(2, "a", 7), new_logical_queue(1, "b", 0))

    assert java_json.loads(encode(to_info(mapping)))["currIdMap"] == {"2": 7}
    assert java_json.loads(encode(to_detail(mapping)))["currIdMap"] == {}


def test_upstream_finds_nothing_to_refuse():
    """Its tools want rising first offsets below any recorded end, starts at 0, and no physical queue twice."""
    detail = to_detail(a_mapping())
    items = detail.hosted[0]

    decided = [item.first for item in items if item.first >= 0]
    assert decided == sorted(set(decided))
    assert {item.end for item in items} == {-1}
    assert {item.start for item in items} == {0}
    assert len({(item.broker, item.queue_id) for item in items}) == len(items)


def test_without_our_extras_the_homes_are_still_there():
    """A Java tool read the mapping and wrote it back."""
    mapping = a_mapping()

    back = from_detail(decode(encode(to_detail(mapping, with_extras=False)), MappingDetail))

    told = [(segment.generation, segment.physical_queue, segment.first) for segment in back.queues[0].segments]
    assert told == [
        (segment.generation, segment.physical_queue, segment.first) for segment in mapping.queues[0].readable
    ]
    assert back.queues[0].segments[0].logical_end is None


def test_without_our_extras_a_registration_tells_the_present_home_only():
    """And not since when: that is what a Java broker says."""
    info = decode(b'{"bname":"j","currIdMap":{0:4,"2":5},"epoch":3,"topic":"t","totalQueues":4}', MappingInfo)

    mapping = from_info(info)

    check(mapping, owner="j")
    assert mapping.led_queues == {0: 4, 2: 5}
    assert (mapping.scope, mapping.epoch, mapping.total) == ("__global__", 3, 4)
    assert mapping.queues[0].segments == (Segment(generation=None, broker="j", queue_id=4),)
    assert from_info(decode(encode(to_info(mapping)), MappingInfo)) == mapping


def test_a_home_that_was_changed_is_believed_over_our_extras():
    """Somebody decided another first offset, and left what he did not know."""
    queue = new_logical_queue(0, "a", 0).prepare("b", 0).seal(50).open_next()
    detail = to_detail(a_mapping(queue, broker="b"))
    items = [detail.hosted[0][0], msgspec.structs.replace(detail.hosted[0][1], first=10_000)]

    segments = from_detail(msgspec.structs.replace(detail, hosted={0: items})).queues[0].segments

    assert [(segment.first, segment.end) for segment in segments] == [(0, 50), (10_000, None)]


def test_a_led_queue_that_our_extras_do_not_know_is_believed():
    """The map of upstream counts."""
    info = to_info(a_mapping(new_logical_queue(0, "a", 0)))

    assert from_info(msgspec.structs.replace(info, led_queues={0: 6})).led_queues == {0: 6}


def test_an_item_can_say_an_end():
    """No tool of today writes one; one that did would be understood."""
    item = MappingItem(broker="b", generation=2, queue_id=3, first=10, start=1, end=5, first_ms=7, last_ms=8)

    assert to_segment(item) == Segment(
        generation=2, broker="b", queue_id=3, first=10, start=1, end=5, first_ms=7, last_ms=8
    )
    assert to_item(to_segment(item)) == MappingItem(broker="b", generation=2, queue_id=3, first=10, start=1)


def test_a_file_keeps_our_extras_for_us():
    """Java ignores them, and loses them when it writes."""
    file = MappingFile(
        data_version=DataVersion(counter=3, timestamp=9),
        topic_queue_mapping_info_map={"t": to_detail(a_mapping())},
    )

    assert decode(encode_file(file), MappingFile) == file


def test_a_registration_that_was_decoded_already_is_converted():
    """A name server reads the whole body at once."""
    info = to_info(a_mapping())

    assert convert_info(java_json.loads(encode(info))) == info
    with pytest.raises(RemoteProtocolError):
        convert_info({"bname": 3, "currIdMap": []})


# Hostile bytes.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"hostedQueues":[]}',
        b'{"hostedQueues":{0:[{"gen":"x"}]}}',
        b'{"hostedQueues":{0:[7]}}',
        b'{"hostedQueues":{"x":[]}}',
        b'{"totalQueues":99999999999}',
        b'{"epoch":1e400}',
        b'{"currIdMap":{0:-99999999999}}',
        b'{"holdfast":[]}',
        b'{"holdfast":{"queues":{0:[[1]]}}}',
        b'{"holdfast":{"queues":{0:{}}}}',
    ],
)
def test_what_is_no_mapping_is_refused(body: bytes):
    """By its own name, not by a crash."""
    with pytest.raises(RemoteProtocolError):
        decode(body, MappingDetail)


@pytest.mark.parametrize(
    "stamp",
    [
        MappingInfo(topic="t", total=2**31 - 1),
        MappingInfo(topic="t", total=-1),
        MappingInfo(topic="t", dirty=True),
        MappingInfo(topic="t", total=1, led_queues=dict.fromkeys(range(70_000), 0)),
        MappingInfo(topic="t", total=1, extras=MappingExtras(queues={0: []})),
        MappingDetail(topic="t", dirty=True),
        MappingDetail(topic="t", total=1, hosted={0: []}),
        MappingDetail(topic="t", total=1, hosted={0: [MappingItem()] * (SEGMENTS_MAX + 1)}),
    ],
)
def test_what_nobody_can_have_is_refused(stamp: MappingInfo | MappingDetail):
    """Before any of it is walked through."""
    with pytest.raises(RemoteProtocolError):
        from_info(stamp) if isinstance(stamp, MappingInfo) else from_detail(stamp)


def test_a_body_beyond_all_measure_is_not_read(monkeypatch: pytest.MonkeyPatch):
    """Its size is judged first."""
    monkeypatch.setattr("holdfast.wire.cluster.mapping.BODY_SIZE_MAX", 10)

    with pytest.raises(RemoteProtocolError, match="at most 10 are read"):
        decode(JAVA_DETAIL, MappingDetail)


def test_two_homes_of_one_generation_are_not_hidden():
    """They are there to be refused."""
    detail = decode(JAVA_DETAIL.replace(b'"gen":1', b'"gen":0'), MappingDetail)

    assert len(from_detail(detail).queues[3].segments) == 2
