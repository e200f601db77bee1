"""Bytes that the Java classes themselves were seen to produce, in both directions."""

import json
import struct
import zlib

from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.registration import decode_registration
from holdfast.wire.frames.command import BINARY, JSON, RESPONSE, Command, decode_command, encode_command, response
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.batch import encode_items, split_items
from holdfast.wire.records.message_id import format_message_id, parse_message_id
from holdfast.wire.records.properties import format_properties, parse_properties
from holdfast.wire.records.record import StoredRecord, body_crc, decode_record, encode_record
from holdfast.wire.requests.pull import PullFields, decode_pull, pull_header
from holdfast.wire.requests.send import SendFields, send_header

PULL_HEADER = (
    b'{"code":11,"extFields":{"queueId":"1","maxMsgNums":"32","sysFlag":"2","suspendTimeoutMillis":"15000",'
    b'"commitOffset":"0","bname":"b","topic":"t","queueOffset":"5","expressionType":"TAG","subVersion":"1",'
    b'"consumerGroup":"g"},"flag":0,"language":"JAVA","opaque":0,"serializeTypeCurrentRPC":"JSON","version":479}'
)
PULL = bytes.fromhex("0000013800000134") + PULL_HEADER
PULL_FIELDS = {
    "queueId": "1",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "suspendTimeoutMillis": "15000",
    "commitOffset": "0",
    "bname": "b",
    "topic": "t",
    "queueOffset": "5",
    "expressionType": "TAG",
    "subVersion": "1",
    "consumerGroup": "g",
}
ANSWER_HEADER = b'{"code":0,"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
QUERY_OFFSET = bytes.fromhex(
    "00000047 01000043 000e 00 01df 00000001 00000000 00000000 0000002e 0007 71756575654964 00000001 30"
    "0005 746f706963 00000001 74 000d 636f6e73756d657247726f7570 00000001 67"
)
SEND_FIELDS = (
    b'{"a":"p","b":"t","c":"TBW102","d":"4","e":"1","f":"0","g":"1","h":"0","i":"a\\u0001b\\u0002","j":"0",'
    b'"k":"false","m":"false","n":"bk"}'
)
BATCH_ITEM = bytes.fromhex(
    "00000035 00000000 00000000 00000000 00000003 010203 001c 4b455953016b3102 5741495401747275650254414753017461674102"
)
RECORD = bytes.fromhex(
    "00000065daa320a758932aac000000030000000700000000000000050000000000000400000000000000018bcfe56800"
    "0a0000010000c3500000018bcfe568010a00000200002a9f000000000000000000000000000000026869015400"
    "0754414753014102"
)


def decoded(frame: bytes) -> Command:
    (split,), taken = split_frames(memoryview(frame))
    assert taken == len(frame)
    return decode_command(split)


def test_the_json_request():
    """A pull as Java writes it, byte for byte, key order included."""
    command = Command(code=11, opaque=0, fields=PULL_FIELDS, language="JAVA", version=479)

    assert encode_command(command) == PULL
    assert decoded(PULL) == command


def test_the_json_request_on_the_fast_path():
    """The pull header is read straight from the buffer, to the same values."""
    (frame,), _ = split_frames(memoryview(PULL))

    header = decode_pull(frame.header)

    assert header == pull_header(decoded(PULL))
    assert header.fields == PullFields(
        consumer_group="g",
        topic="t",
        queue_id=1,
        queue_offset=5,
        max_msg_nums=32,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_millis=15000,
        sub_version=1,
        expression_type="TAG",
        broker_name="b",
    )


def test_the_smallest_json_response():
    """No fields, no remark, no body."""
    frame = struct.pack(">II", 4 + len(ANSWER_HEADER), len(ANSWER_HEADER)) + ANSWER_HEADER
    command = Command(code=0, opaque=7, flag=RESPONSE, language="JAVA", version=479)

    assert encode_command(command) == frame
    assert decoded(frame) == command
    ours = response(Command(code=11, opaque=7))
    assert (ours.code, ours.flag, ours.opaque, ours.serializer) == (0, RESPONSE, 7, JSON)


def test_the_binary_request():
    """A query of a consumer's offset, fields in the order of declaration."""
    command = Command(
        code=14,
        opaque=1,
        fields={"queueId": "0", "topic": "t", "consumerGroup": "g"},
        language="JAVA",
        version=479,
        serializer=BINARY,
    )

    assert encode_command(command) == QUERY_OFFSET
    assert decoded(QUERY_OFFSET) == command


def test_the_short_send_header():
    """Version 2 of the send header."""
    command = Command(code=310, fields=json.loads(SEND_FIELDS))

    fields = send_header(command).fields

    assert fields == SendFields(
        producer_group="p",
        topic="t",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties="a\x01b\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="bk",
    )
    assert SEND_FIELDS in encode_command(command)


def test_a_batch_item():
    """One message of a batch, with three properties."""
    properties = format_properties({"KEYS": "k1", "WAIT": "true", "TAGS": "tagA"}).encode()

    assert encode_items([(0, b"\x01\x02\x03", properties)]) == BATCH_ITEM
    ((flag, body, found),) = split_items(BATCH_ITEM)
    assert (flag, bytes(body), parse_properties(found.decode())) == (
        0,
        b"\x01\x02\x03",
        {"KEYS": "k1", "WAIT": "true", "TAGS": "tagA"},
    )


def test_a_stored_record():
    """One message as the log and a pull answer hold it."""
    record = StoredRecord(
        size=101,
        position=1024,
        topic="T",
        queue_id=3,
        offset=5,
        flag=7,
        sys_flag=0,
        born_ms=1_700_000_000_000,
        born_host=pack_host("10.0.0.1:50000"),
        store_ms=1_700_000_000_001,
        store_host=pack_host("10.0.0.2:10911"),
        reconsume_times=0,
        prepared_position=0,
        body_crc=body_crc(b"hi"),
        body=b"hi",
        properties=b"TAGS\x01A\x02",
    )

    assert encode_record(record) == RECORD
    assert decode_record(RECORD) == record


def test_the_checksum_and_the_message_id():
    """31 bits of CRC-32; address, port and position in upper-case hex."""
    assert body_crc(b"123456789") == 1274296614
    assert format_message_id(pack_host("10.0.0.2:10911"), 1024) == "0A00000200002A9F0000000000000400"
    assert parse_message_id("0A00000200002A9F0000000000000400").position == 1024


def test_the_packed_registration():
    """The end of a compressed registration as 5.x packs it, behind a data version."""
    version = b'{"counter":0,"stateVersion":0,"timestamp":1}'
    topic = b"t 4 4 6 SINGLE_TAG {}"
    tail = bytes.fromhex("0000000100000015") + topic + bytes.fromhex("00000002") + b"[]" + bytes.fromhex("00000000")

    found = decode_registration(zlib.compress(struct.pack(">i", len(version)) + version + tail, 9), version=513)

    topics = found.topic_config_serialize_wrapper
    assert topics.topic_config_table == {"t": TopicConfig(name="t", read_queues=4, write_queues=4)}
    assert topics.data_version.timestamp == 1
    assert (found.filter_server_list, topics.topic_queue_mapping_info_map) == ([], {})
