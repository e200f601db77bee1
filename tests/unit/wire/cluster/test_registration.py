"""Registrations in all their shapes."""

import struct
import zlib

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.registration import (
    BODY_SIZE_MAX,
    DataVersion,
    RegisterFields,
    Registration,
    Topics,
    decode_registration,
    encode_registration,
    registration_digest,
)
from holdfast.wire.frames.fields import from_fields, to_fields

TOPIC = TopicConfig(name="t", read_queues=4, write_queues=3, permission=7, attributes={"queue.type": "BatchCQ"})


def text(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def packed(topics: bytes = b"t 4 3 7 SINGLE_TAG", *, count: int = 1, tail: bytes = b"") -> bytes:
    version = text(b'{"counter":3,"timestamp":5}')
    return zlib.compress(version + struct.pack(">i", count) + text(topics) + text(b"[]") + tail)


def topics_of(registration: Registration) -> dict[str, TopicConfig]:
    return registration.topic_config_serialize_wrapper.topic_config_table


def test_a_registration_survives_encoding():
    """With topics, versions, filter servers and mappings."""
    registration = Registration(
        topic_config_serialize_wrapper=Topics(
            topic_config_table={"t": TOPIC},
            data_version=DataVersion(state_version=1, timestamp=2, counter=3),
            mapping_data_version=DataVersion(counter=9),
            topic_queue_mapping_info_map={"t": {"bname": "b", "currIdMap": {"0": 0}}},
        ),
        filter_server_list=["h:1"],
    )

    assert decode_registration(encode_registration(registration), version=479) == registration


def test_javas_liberties_are_taken():
    """Bare keys in mappings, a data version that refers to another, parts that 4.x does not send."""
    body = (
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":7,"timestamp":8},"mappingDataVersion":'
        b'{"$ref":"$.topicConfigSerializeWrapper.dataVersion"},"topicQueueMappingInfoMap":{"t":{"currIdMap":{0:1}}}}}'
    )

    topics = decode_registration(body, version=513).topic_config_serialize_wrapper

    assert topics.mapping_data_version == DataVersion(counter=7, timestamp=8)
    assert topics.topic_queue_mapping_info_map == {"t": {"currIdMap": {"0": 1}}}


def test_an_empty_body_is_an_empty_registration():
    """Very old brokers send none."""
    assert decode_registration(b"", version=100) == Registration()


def test_the_packed_form_of_4_x():
    """Five words a topic, no mappings."""
    found = decode_registration(packed(), version=407)

    assert topics_of(found) == {"t": TopicConfig(name="t", read_queues=4, write_queues=3, permission=7)}
    assert found.topic_config_serialize_wrapper.data_version == DataVersion(counter=3, timestamp=5)


def test_the_packed_form_of_5_x():
    """A sixth word with the attributes, which may hold blanks; mappings behind."""
    mapping = text(b'{"topic":"t","currIdMap":{0:0}}')
    body = packed(b't 4 3 7 SINGLE_TAG {"queue.type":"Batch CQ"}', tail=struct.pack(">i", 1) + mapping)

    found = decode_registration(body, version=513)

    assert topics_of(found)["t"].attributes == {"queue.type": "Batch CQ"}
    assert found.topic_config_serialize_wrapper.topic_queue_mapping_info_map == {
        "t": {"topic": "t", "currIdMap": {"0": 0}}
    }


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"rubbish",
        b"\x78",
        b"\x78\x9crubbish",
        packed()[:-5],
        zlib.compress(b""),
        zlib.compress(b"\x7f\xff\xff\xff"),
        zlib.compress(b"\xff\xff\xff\xff"),
        packed(b"t 4 3 7"),
        packed(b"t 4 x 7 SINGLE_TAG"),
        packed(b"t 4 3 7 SINGLE_TAG {"),
        packed(b"\xff 4 3 7 SINGLE_TAG []"),
        packed(count=2),
        packed(count=0x7FFFFFFF),
        packed(b"t 99999999999999999999 3 7 SINGLE_TAG"),
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":"t","perm":4294967296}}}}',
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes):
    """With a typed error, whichever of the shapes it pretends to have."""
    with pytest.raises(RemoteProtocolError):
        decode_registration(body, version=407)


def test_a_packed_body_without_its_mappings_is_refused_from_5_0_on():
    """They are part of the form."""
    with pytest.raises(RemoteProtocolError, match="ends too early"):
        decode_registration(packed(), version=413)


def test_a_small_body_cannot_become_a_large_one():
    """Deflate packs zeros a thousand times; what comes out is bounded."""
    with pytest.raises(RemoteProtocolError, match="larger than"):
        decode_registration(zlib.compress(bytes(BODY_SIZE_MAX + 1)), version=407)


def test_a_small_body_cannot_hold_more_mappings_than_there_are_topics_for():
    """Millions of empty ones are a few kilobytes; reading them would take a minute."""
    tail = struct.pack(">i", 100_000) + text(b"{}") * 100_000

    with pytest.raises(RemoteProtocolError, match="100000 mappings for 1 topics"):
        decode_registration(packed(tail=tail), version=413)


def test_a_digest_ignores_the_stamp_and_nothing_else():
    """Equal bodies but for the time of sending are equal registrations."""
    body = b'{"a":1,"mappingDataVersion":{"counter":0,"timestamp":%d},"b":%d}'

    assert registration_digest(body % (1, 2)) == registration_digest(body % (9, 2))
    assert registration_digest(body % (1, 2)) != registration_digest(body % (1, 3))
    assert registration_digest(b"\x78plain") != registration_digest(b"\x78other")
    assert registration_digest(b'"mappingDataVersion":') == registration_digest(b'"mappingDataVersion":')


def test_the_header_of_a_registration():
    """As 5.x writes it; 4.x leaves the rest out and that means something."""
    fields = {
        "brokerName": "b",
        "brokerAddr": "h:1",
        "clusterName": "c",
        "haServerAddr": "h:2",
        "brokerId": "1",
        "heartbeatTimeoutMillis": "10000",
        "enableActingMaster": "false",
        "compressed": "true",
        "bodyCrc32": "7",
        "__ZONE_NAME": "z",
    }

    header = from_fields(RegisterFields, fields)

    assert to_fields(header) == fields
    assert header.enable_acting_master is False
    old = from_fields(RegisterFields, {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c"})
    assert (old.enable_acting_master, old.heartbeat_timeout_millis, old.zone_name) == (None, None, None)
