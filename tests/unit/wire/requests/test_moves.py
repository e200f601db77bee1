"""The bodies in which brokers and operators speak about moves."""

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import MappedTopic, WireSegment, from_detail, to_detail, to_plain
from holdfast.wire.frames import java_json
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.requests.moves import (
    DeleteMappingFields,
    ForceRequest,
    MappingsAnswer,
    Move,
    MoveList,
    MoveRequest,
    QueueSegments,
    decode_body,
    encode_body,
)


def test_a_body_comes_back_as_it_went():
    """Homes travel as lists, queues as objects."""
    home = WireSegment(0, "a", 3, 0, 0, -1, -1, -1)
    order = ForceRequest(
        topic=TopicConfig(name="t"),
        scope="__global__",
        epoch=9,
        total=4,
        queues=[QueueSegments(queue=1, segments=[home])],
    )

    assert decode_body(encode_body(order), ForceRequest) == order


def test_mappings_are_read_from_java_like_json():
    """Every record with all its homes, and the moves of its broker."""
    record = TopicMapping(topic="t", broker="a", epoch=5, total=2, queues={1: new_logical_queue(1, "a", 0)})
    move = Move(id="m", topic="t", queues=[1], source="a", target="b", state="planned")
    told = MappingsAnswer(topics=[MappedTopic(name="t", mapping=to_detail(record))], moves=[move])

    read = java_json.decode(java_json.encode(to_plain(told)), MappingsAnswer)

    assert read.moves == [move]
    assert read.topics[0].mapping is not None
    assert from_detail(read.topics[0].mapping) == record


def test_a_missing_list_is_an_empty_one():
    """A broker that drives no move may leave it out."""
    assert decode_body(b"{}", MoveList).moves == []


def test_forgetting_names_a_queue_or_the_whole_topic():
    """As header fields."""
    assert to_fields(DeleteMappingFields(topic="t")) == {"topic": "t", "queue": "-1"}
    assert from_fields(DeleteMappingFields, {"topic": "t", "queue": "3"}).queue == 3


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"topic":"t"}', b'{"topic":1,"queues":[],"target":"b"}', b"\xff"])
def test_what_is_no_body_is_a_protocol_error(data: bytes):
    """Typed, whatever is wrong with it."""
    with pytest.raises(RemoteProtocolError, match="MoveRequest"):
        decode_body(data, MoveRequest)
