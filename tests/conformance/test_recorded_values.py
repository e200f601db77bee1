"""Headers and bodies of recorded requests and answers fit the values that our roles work with."""

import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support import recordings
from tests.support.recordings import RecordedFrame

from holdfast.wire.cluster import registration, route
from holdfast.wire.cluster.registration import Registration, decode_registration, encode_registration
from holdfast.wire.cluster.route import decode_route, decode_route_query, encode_route
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import JSON
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.requests import heartbeat, offsets
from holdfast.wire.requests.pull import PullFields, decode_pull, pull_header
from holdfast.wire.requests.send import LongSendFields, SendFields, decode_send, send_header

SENDS = {10, 310, 320, 324, 325}
SHORT_SENDS = {310, 320, 325}
PULLS = {11, 361}

REQUEST_FIELDS: dict[int, type[msgspec.Struct]] = {
    12: offsets.QueryMessageFields,
    14: offsets.QueryOffsetFields,
    15: offsets.UpdateOffsetFields,
    29: offsets.SearchOffsetFields,
    30: offsets.QueueFields,
    31: offsets.QueueFields,
    32: offsets.QueueFields,
    33: offsets.ViewMessageFields,
    35: heartbeat.UnregisterFields,
    36: offsets.SendBackFields,
    37: offsets.EndTransactionFields,
    38: heartbeat.ConsumerGroupFields,
    39: offsets.CheckTransactionFields,
    40: heartbeat.ConsumerGroupFields,
    100: route.KvFields,
    101: route.KvFields,
    102: route.KvFields,
    103: registration.RegisterFields,
    104: registration.BrokerFields,
    105: route.RouteFields,
    205: route.BrokerNameFields,
    216: route.DeleteTopicFields,
    219: route.NamespaceFields,
    224: route.ClusterFields,
    322: registration.BrokerFields,
    327: route.BrokerNameFields,
}
ANSWER_FIELDS: dict[int, type[msgspec.Struct]] = {
    14: offsets.OffsetAnswer,
    29: offsets.OffsetAnswer,
    30: offsets.OffsetAnswer,
    31: offsets.OffsetAnswer,
    32: offsets.TimestampAnswer,
    103: registration.RegisterAnswer,
    322: registration.VersionAnswer,
}
REQUEST_BODIES: dict[int, Callable[[bytes], Any]] = {
    34: heartbeat.decode_heartbeat,
    41: lambda body: java_json.decode(body, offsets.LockBody),
    42: lambda body: java_json.decode(body, offsets.LockBody),
    46: lambda body: java_json.decode(body, heartbeat.ClientConfigCheck),
    322: lambda body: java_json.decode(body, registration.DataVersion),
}
ANSWER_BODIES: dict[int, Callable[[bytes], Any]] = {
    28: lambda body: java_json.decode(body, route.Table),
    38: lambda body: java_json.decode(body, heartbeat.ConsumerList),
    41: lambda body: java_json.decode(body, offsets.LockAnswer),
    103: lambda body: java_json.decode(body, route.Table),
    105: lambda body: java_json.decode(body, route.RouteBody),
    106: lambda body: java_json.decode(body, route.ClusterInfo),
    206: lambda body: java_json.decode(body, route.TopicList),
    224: lambda body: java_json.decode(body, route.TopicList),
    322: lambda body: java_json.decode(body, registration.DataVersion),
}


def requests(*codes: int) -> list[RecordedFrame]:
    return [each for each in recordings.all_frames() if not each.is_response and each.code in codes]


def answers(*codes: int) -> list[RecordedFrame]:
    """Return successful answers to requests of these codes."""
    return [
        each for each in recordings.all_frames() if each.is_response and each.code in codes and each.line["code"] == 0
    ]


# Headers.


@pytest.mark.parametrize("code", REQUEST_FIELDS)
def test_a_recorded_request_header_fits(code: int):
    """Every field of ours is found, and written back it is what was sent."""
    found = requests(code)
    assert found, "nothing recorded: the test would prove nothing"

    for recorded in found:
        sent = recorded.command.fields
        written = to_fields(from_fields(REQUEST_FIELDS[code], sent))

        assert {key: value for key, value in written.items() if key in sent} == {
            key: value for key, value in sent.items() if key in written
        }, recorded


@pytest.mark.parametrize("code", ANSWER_FIELDS)
def test_a_recorded_answer_header_fits(code: int):
    """Written back it has every field that was sent."""
    found = answers(code)
    assert found

    for recorded in found:
        assert to_fields(from_fields(ANSWER_FIELDS[code], recorded.command.fields)) == recorded.command.fields, recorded


@pytest.mark.parametrize("code", sorted(SENDS - {324}))
def test_a_recorded_send_reads_the_same_on_every_path(code: int):
    """Long names, short names, binary: one value. Where the fast path applies it finds the same."""
    found = requests(code)
    assert found

    for recorded in found:
        command = recorded.command
        header = send_header(command, LongSendFields if "producerGroup" in command.fields else SendFields)

        fields = header.fields
        assert fields.topic == command.fields.get("b", command.fields.get("topic")), recorded
        assert fields.queue_id == int(command.fields.get("e", command.fields.get("queueId", ""))), recorded
        assert fields.batch is (command.fields.get("m", command.fields.get("batch")) == "true"), recorded
        if command.serializer == JSON and code in SHORT_SENDS:
            assert decode_send(recorded.frame.header) == header, recorded


@pytest.mark.parametrize("code", sorted(PULLS))
def test_a_recorded_pull_reads_the_same_on_both_paths(code: int):
    """The general path and the fast one."""
    found = requests(code)
    assert found

    for recorded in found:
        header = pull_header(recorded.command)

        sent = recorded.command.fields
        written = to_fields(header.fields)
        assert {key: written[key] for key in written if key in sent} == {
            key: sent[key] for key in sent if key in written
        }, recorded
        if recorded.command.serializer == JSON:
            assert decode_pull(recorded.frame.header) == header, recorded
        assert isinstance(header.fields, PullFields)


def test_a_recorded_route_query_reads_the_same_on_both_paths():
    """The hot loop of the name server understands every recorded client without help."""
    found = [recorded for recorded in requests(105) if recorded.command.serializer == JSON]
    assert len(found) > 100

    for recorded in found:
        query = decode_route_query(recorded.frame.header)
        command = recorded.command

        assert (query.code, query.opaque, query.flag, query.version) == (
            command.code,
            command.opaque,
            command.flag,
            command.version,
        ), recorded
        assert query.fields.topic == command.fields["topic"], recorded


# Bodies.


@pytest.mark.parametrize("code", REQUEST_BODIES)
def test_a_recorded_request_body_fits(code: int):
    """It decodes, and our own encoding of it decodes to the same."""
    found = [recorded for recorded in requests(code) if recorded.frame.body]
    assert found

    for recorded in found:
        value = REQUEST_BODIES[code](recorded.command.body)
        assert REQUEST_BODIES[code](java_json.encode(value)) == value, recorded


@pytest.mark.parametrize("code", ANSWER_BODIES)
def test_a_recorded_answer_body_fits(code: int):
    """It decodes, and our own encoding of it decodes to the same."""
    found = [recorded for recorded in answers(code) if recorded.frame.body]
    assert found

    for recorded in found:
        value = ANSWER_BODIES[code](recorded.command.body)
        assert ANSWER_BODIES[code](java_json.encode(value)) == value, recorded


def test_a_recorded_route_is_encoded_as_javas():
    """Quoted or bare keys, read and written again it is the same object, but for what Java does not know."""
    found = [recorded for recorded in answers(105) if recorded.frame.body]
    static_count = 0

    for recorded in found:
        theirs = java_json.loads(recorded.command.body)
        for broker in theirs["brokerDatas"]:
            broker.setdefault("enableActingMaster", False)  # 4.9.7 does not know of it

        ours = java_json.loads(encode_route(decode_route(recorded.command.body)))

        for row in ours.get("topicQueueMappingByBroker", {}).values():
            del row["holdfast"]
            row["currIdMap"] = {str(number): queue_id for number, queue_id in row["currIdMap"].items()}
            static_count += 1
        assert ours == theirs, recorded
    assert static_count


def test_every_recorded_registration_is_read():
    """JSON, compressed and said so, compressed and denied; with and without mappings; all with a right checksum."""
    kinds = set()

    for recorded in requests(103):
        command = recorded.command
        fields = from_fields(registration.RegisterFields, command.fields)
        assert zlib.crc32(command.body) & 0x7FFFFFFF == fields.body_crc32, recorded

        value = decode_registration(command.body, version=command.version)

        topics = value.topic_config_serialize_wrapper
        assert topics.topic_config_table, recorded
        assert all(name == topic.name for name, topic in topics.topic_config_table.items()), recorded
        assert topics.data_version.timestamp > 0, recorded
        assert decode_registration(encode_registration(value), version=command.version) == value, recorded
        kinds.add((command.body[:1], fields.compressed, command.version))

    assert {(b"{", False, 513), (b"{", False, 407), (b"x", True, 407), (b"x", False, 513)} <= kinds


def test_a_compressed_registration_says_the_same_as_a_plain_one():
    """The same 4.9.7 broker registered both ways; only what the packed form cannot carry differs."""
    by_kind: dict[bool, Registration] = {}
    for recorded in requests(103):
        command = recorded.command
        if recorded.file.startswith("4.9.7-json-register") and command.fields["brokerName"] == "brokerB":
            by_kind[command.body[:1] == b"{"] = decode_registration(command.body, version=command.version)

    plain, packed = (by_kind[kind].topic_config_serialize_wrapper.topic_config_table for kind in (True, False))
    assert plain == packed


def test_registrations_that_differ_only_in_their_stamp_have_one_digest():
    """5.5.0 stamps every body with the time; the name server need not read it again."""
    bodies = [
        recorded.command.body
        for recorded in recordings.read("5.5.0-json-register")
        if recorded.line["code"] == RequestCode.REGISTER_BROKER and recorded.line["c"] == 123
    ]

    assert len(set(bodies)) == 2
    assert len({registration.registration_digest(body) for body in bodies}) == 1
    assert registration.registration_digest(bodies[0].replace(b"16", b"17", 1)) != registration.registration_digest(
        bodies[0]
    )
