"""Whatever bytes come from the network, a decoder returns a value or raises a typed error; nothing else, and soon."""

import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import recordings
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, register, request_route
from tests.support.mutation import mutate, mutate_value

from holdfast.machine.effects import SendBytes
from holdfast.machine.events import ChannelId, FramesReceived
from holdfast.model.errors import HoldfastError
from holdfast.model.group import GroupConfig
from holdfast.model.route import Route
from holdfast.wire.cluster import registration, route
from holdfast.wire.cluster.registration import decode_registration, registration_digest
from holdfast.wire.cluster.route import decode_route_query
from holdfast.wire.frames import java_json
from holdfast.wire.frames.command import BINARY, JSON, Command, decode_command, encode_command
from holdfast.wire.frames.fields import from_fields
from holdfast.wire.frames.frame import Frame, frame_prefix, split_frames
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import decode_records
from holdfast.wire.requests import heartbeat, offsets
from holdfast.wire.requests.pull import PullFields, decode_pull, pull_header
from holdfast.wire.requests.send import SendFields, decode_send, send_header
from holdfast.wire.requests.table import REQUESTS, Role

SEEDS = range(25)
MUTATIONS = 120
CHECKSUM = re.compile(rb'"bodyCrc32":"\d+"')

BODY_KINDS: tuple[type[Any], ...] = (
    registration.Registration,
    registration.DataVersion,
    heartbeat.ConsumerList,
    heartbeat.ClientConfigCheck,
    offsets.LockBody,
    offsets.LockAnswer,
    route.ClusterInfo,
    route.TopicList,
    route.Table,
    Route,
    GroupConfig,
)
BODY_DECODERS: tuple[Callable[[bytes], Any], ...] = (
    java_json.loads,
    *(lambda body, kind=kind: java_json.decode(body, kind) for kind in BODY_KINDS),
    heartbeat.decode_heartbeat,
    route.decode_route,
    lambda body: decode_registration(body, version=407),
    lambda body: decode_registration(body, version=513),
    registration_digest,
    split_items,
    lambda body: list(decode_records(body)),
    lambda body: parse_properties(body.decode(errors="replace")),
    lambda body: parse_message_id(body.decode(errors="replace")),
)
HEADER_KINDS: tuple[type[msgspec.Struct], ...] = (
    registration.RegisterFields,
    registration.BrokerFields,
    offsets.QueryOffsetFields,
    offsets.UpdateOffsetFields,
    offsets.SearchOffsetFields,
    offsets.SendBackFields,
    offsets.EndTransactionFields,
    offsets.QueryMessageFields,
    heartbeat.UnregisterFields,
    route.KvFields,
    route.RouteFields,
    PullFields,
    SendFields,
)


def check_decoders(data: bytes) -> bool:
    """Hand *data* to every decoder as if it were what that one expects; return whether it is Java's JSON."""
    with suppress(HoldfastError):
        frames, taken = split_frames(memoryview(data))
        assert 0 <= taken <= len(data)
        for frame in frames:
            check_frame(frame)
    for serializer in (JSON, BINARY):
        check_frame(Frame(serializer, memoryview(data), memoryview(b"")))
    for decode in BODY_DECODERS:
        with suppress(HoldfastError):
            decode(data)
    try:
        value = java_json.loads(data)
    except HoldfastError:
        return False
    # A key "$ref" that was written with an escape is a reference only when it is written without one.
    assert b"ref" in data or java_json.loads(java_json.encode(value)) == value
    return True


def check_frame(frame: Frame) -> None:
    """Read a header in every way, fast and general. A command survives being encoded and decoded again."""
    for fast in (decode_send, decode_pull, decode_route_query):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            fast(frame.header)
    try:
        command = decode_command(frame)
    except HoldfastError:
        return
    for role in Role:
        if spec := REQUESTS[role].get(command.code):
            with suppress(HoldfastError):
                spec.find_permissions(command)
    for read in (send_header, pull_header):
        with suppress(HoldfastError):
            read(command)
    for kind in HEADER_KINDS:
        with suppress(HoldfastError):
            from_fields(kind, command.fields)
    with suppress(HoldfastError):
        (again,), _ = split_frames(memoryview(encode_command(command)))
        assert decode_command(again) == command


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=2000))
def test_any_bytes_at_all(data: bytes):
    """Noise."""
    check_decoders(data)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet='{}[]:,"\\ 0123456789.-+eEtruefalsnul$ref@', max_size=300))
def test_any_text_that_looks_like_json(text: str):
    """Noise with the right letters reaches deeper."""
    check_decoders(text.encode())


@pytest.mark.parametrize("seed", SEEDS)
def test_recorded_frames_that_were_damaged(seed: int):
    """Real traffic with a few bytes wrong reaches deepest."""
    rng = random.Random(seed)
    frames = [recorded.data for recorded in recordings.all_frames() if len(recorded.data) < 4000]

    for data in rng.choices(frames, k=MUTATIONS):
        check_decoders(mutate(data, rng))


@pytest.mark.parametrize("seed", SEEDS)
def test_recorded_bodies_that_were_damaged(seed: int):
    """Bodies alone, so that their decoders get past the header."""
    rng = random.Random(seed)
    everything = recordings.all_frames()
    bodies = [body for recorded in everything if 0 < len(body := bytes(recorded.frame.body)) < 4000]

    are_json = {check_decoders(mutate(body, rng)) for body in rng.choices(bodies, k=MUTATIONS)}

    assert are_json == {True, False}, "some damage is noticed, and some is within a text"


@pytest.mark.parametrize("seed", SEEDS)
def test_recorded_bodies_of_another_shape(seed: int):
    """Sound JSON in which a part is of the wrong kind, missing, or a number without end."""
    rng = random.Random(seed)
    values = [
        java_json.loads(recorded.frame.body)
        for recorded in recordings.all_frames()
        if len(recorded.frame.body) < 4000 and bytes(recorded.frame.body[:1]) == b"{"
    ]

    for value in rng.choices(values, k=MUTATIONS):
        body = java_json.encode(mutate_value(value, rng))
        assert check_decoders(body) or b'"$ref"' in body, "only a reference can make sound JSON unreadable"


def receive_if_whole(server: MachineHarness, channel: ChannelId, data: bytes) -> None:
    """Let damaged bytes reach the machine as the shell would: whole frames only, or the connection is gone."""
    with suppress(HoldfastError):
        frames, _ = split_frames(memoryview(data))
        for effect in server.machine.handle(FramesReceived(channel, frames, server.now_ms)):
            if isinstance(effect, SendBytes):
                answered, taken = split_frames(memoryview(b"".join(effect.pieces)))
                assert taken == sum(map(len, effect.pieces)), "half a frame was sent"
                for frame in answered:
                    assert decode_command(frame).is_response


@pytest.mark.parametrize("seed", SEEDS)
def test_a_name_server_survives_damaged_requests_and_goes_on_serving(seed: int):
    """It answers with whole frames or not at all, and a client of good will is served afterwards."""
    rng = random.Random(seed)
    server = a_name_server(data="somewhere" if seed % 2 else None)
    requests = [
        recorded
        for recorded in recordings.all_frames()
        if not recorded.is_response and recorded.line["conn"].endswith("-namesrv")
    ]

    for recorded in rng.choices(requests, k=MUTATIONS):
        frame = recorded.frame
        # Unchecked, so that a damaged body gets past its checksum.
        header, body = CHECKSUM.sub(b'"bodyCrc32":"0"', bytes(frame.header)), bytes(frame.body)
        if rng.random() < 0.3:
            header = mutate(header, rng)
        if body[:1] == b"{" and rng.random() < 0.5:
            body = java_json.encode(mutate_value(java_json.loads(body), rng))
        elif body and rng.random() < 0.5:
            body = mutate(body, rng)
        receive_if_whole(
            server, server.connect(), frame_prefix(frame.serializer, len(header), len(body)) + header + body
        )
        receive_if_whole(server, server.connect(), mutate(recorded.data, rng))

    register(server, "survivor", "192.0.2.77:1", body=a_registration("after-all", counter=77), bodyCrc32="0")
    assert b"survivor" in request_route(server, "after-all").body
    server.request(106)
    server.request(206)


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize("code", [100, 101, 102, 103, 104, 105, 205, 216, 217, 219, 224, 318, 319, 322, 327, 901, 904])
def test_a_name_server_answers_every_code_with_nonsense_in_it(serializer: int, code: int):
    """No fields, empty fields, endless numbers, a body of the wrong kind."""
    server = a_name_server()
    register(server)
    names = ("topic", "brokerName", "brokerAddr", "clusterName", "namespace", "key", "value", "cluster")
    nonsense: list[dict[str, str]] = [
        {},
        dict.fromkeys(names, ""),
        dict.fromkeys((*names, "brokerId", "bodyCrc32", "heartbeatTimeoutMillis"), "9" * 40),
        dict.fromkeys((*names, "brokerId"), "\x00"),
    ]

    for fields in nonsense:
        for body in (b"", b"{", b"[]", b"7", b"\x78\x9c", b"\xff" * 100, b"a=b\n=\n\n"):
            channel = server.connect()
            command = Command(code=code, opaque=1, fields=fields, body=body, serializer=serializer)
            server.receive(channel, encode_command(command))

            assert len(server.pop_answers(channel)) == 1
            assert channel not in server.closed()
