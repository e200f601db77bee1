"""What holds for every command, header and body, not just for those that were recorded."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.numbers import Int32
from holdfast.model.route import BrokerData, QueueData, Route
from holdfast.wire.cluster.route import QUEUES_MAX, bare_keys, decode_route, encode_route, render_answer
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import LANGUAGE_NAMES
from holdfast.wire.frames.command import BINARY, JSON, Command, decode_command, encode_command
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.frames.frame import frame_prefix, split_frames

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
# Surrogates cannot be said in UTF-8, so no peer can send them and nobody can be sent them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def commands(draw: st.DrawFn, serializer: int) -> Command:
    """Return any command that the encoding can carry."""
    return Command(
        code=draw(INT16 if serializer == BINARY else INT32),
        opaque=draw(INT32),
        flag=draw(INT32),
        fields=draw(st.dictionaries(NAME, TEXT, max_size=8)),
        body=draw(st.binary(max_size=200)),
        # An empty remark and none look alike in binary.
        remark=draw(st.none() | TEXT.filter(bool)),
        language=draw(st.sampled_from(LANGUAGE_NAMES)),
        version=draw(INT16 if serializer == BINARY else INT32),
        serializer=serializer,
    )


ANY_COMMAND = commands(JSON) | commands(BINARY)


@settings(deadline=None)
@given(ANY_COMMAND)
def test_every_command_survives_encoding(command: Command):
    """In both encodings."""
    (frame,), taken = split_frames(memoryview(data := encode_command(command)))

    assert taken == len(data)
    assert decode_command(frame) == command


@settings(deadline=None)
@given(st.lists(ANY_COMMAND, max_size=6), st.data())
def test_a_stream_of_commands_is_the_same_however_it_is_read(sent: list[Command], data: st.DataObject):
    """Any cuts, any mixture of encodings on one connection."""
    stream = b"".join(map(encode_command, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))

    received, found = b"", []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += stream[start:end]
        frames, taken = split_frames(memoryview(received))
        found += [decode_command(frame) for frame in frames]
        received = received[taken:]

    assert found == sent
    assert received == b""


class Everything(msgspec.Struct, kw_only=True, rename="camel"):
    """A header with one field of every kind."""

    some_text: str
    some_number: int
    some_count: Int32
    some_choice: bool
    maybe_text: str | None = None
    maybe_number: int | None = None
    maybe_choice: bool | None = None
    default_number: int = 5


@settings(deadline=None)
@given(
    st.builds(
        Everything,
        some_text=TEXT,
        some_number=INT64,
        some_count=INT32,
        some_choice=st.booleans(),
        maybe_text=st.none() | TEXT,
        maybe_number=st.none() | INT64,
        maybe_choice=st.none() | st.booleans(),
        default_number=INT64,
    ),
    st.dictionaries(NAME.filter(lambda name: not name.startswith(("some", "maybe", "default"))), TEXT),
)
def test_every_header_survives_its_fields(header: Everything, foreign: dict[str, str]):
    """Whatever foreign fields are beside it."""
    assert from_fields(Everything, {**foreign, **to_fields(header)}) == header


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def has_reference(value: Any) -> bool:
    """Return whether something in *value* would be taken for a reference."""
    if isinstance(value, dict):
        return "$ref" in value or any(map(has_reference, value.values()))
    return isinstance(value, list) and any(map(has_reference, value))


@settings(deadline=None)
@given(
    value=JSON_VALUE.filter(lambda value: not has_reference(value)),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_standard_json_is_read_as_the_standard_reader_reads_it(value: Any, *, ascii_only: bool, indent: int | None):
    """By the fast way, and by the tolerant one that a liberty elsewhere in the text asks for."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    assert java_json.loads(text.encode()) == json.loads(text)
    assert java_json.loads(f"{{0:{text}}}".encode()) == {"0": json.loads(text)}
    assert java_json.loads(f'{{{{"q":1}}:{text}}}'.encode()) == {'{"q":1}': json.loads(text)}


class Members(list[tuple[Any, Any]]):
    """A map with Java's keys, as a list of members because not all of them can be hashed."""


JAVA_KEY = TEXT | st.integers(-(10**12), 10**12) | st.dictionaries(TEXT, INT32 | TEXT, max_size=3)
JAVA_VALUE = st.recursive(
    INT64 | TEXT | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(JAVA_KEY, inner), max_size=4).map(Members),
    max_leaves=12,
)


def as_java(value: Any) -> str:
    """Return *value* as fastjson would write it."""
    if isinstance(value, Members):
        return "{" + ",".join(f"{as_java(key)}:{as_java(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_java, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def as_plain(value: Any) -> Any:
    """Return what our reader should make of it."""
    if isinstance(value, Members):
        return {as_text(key): as_plain(item) for key, item in value}
    return [as_plain(item) for item in value] if isinstance(value, list) else value


def as_text(key: Any) -> str:
    if isinstance(key, dict):
        return json.dumps(dict(sorted(key.items())), ensure_ascii=False, separators=(",", ":"))
    return str(key)


@settings(deadline=None)
@given(JAVA_VALUE.filter(lambda value: '"$ref"' not in as_java(value)))
def test_javas_keys_are_read_wherever_they_stand(value: Any):
    """Bare numbers and objects as keys, nested in any way, beside texts of any content."""
    assert java_json.loads(as_java(value).encode()) == as_plain(value)


@settings(deadline=None)
@given(st.dictionaries(NAME.filter(lambda name: not set(name) & set(".[]")), JSON_VALUE, min_size=1), st.data())
def test_a_reference_stands_for_what_it_points_to(members: dict[str, Any], data: st.DataObject):
    """As far as the members themselves hold none."""
    target = data.draw(st.sampled_from(sorted(members)))
    if has_reference(members) or "link" in members:
        return
    text = json.dumps({**members, "link": {"$ref": f"$.{target}"}})

    assert java_json.loads(text.encode())["link"] == members[target]


BROKERS = st.builds(
    BrokerData,
    cluster=TEXT,
    broker_name=TEXT,
    broker_addrs=st.dictionaries(st.integers(0, 2**63 - 1), TEXT, max_size=3),
    zone_name=st.none() | TEXT,
    enable_acting_master=st.booleans(),
)
COUNT = st.integers(0, QUEUES_MAX)
QUEUES = st.builds(QueueData, broker_name=TEXT, read_queues=COUNT, write_queues=COUNT, permission=INT32, sys_flag=INT32)
ROUTES = st.builds(
    Route,
    broker_datas=st.lists(BROKERS, max_size=3),
    queue_datas=st.lists(QUEUES, max_size=3),
    filter_server_table=st.dictionaries(TEXT, st.lists(TEXT), max_size=2),
    order_topic_conf=st.none() | TEXT,
)


@settings(deadline=None)
@given(ROUTES)
def test_every_route_survives_encoding(route: Route):
    """With quoted keys and with bare ones, whatever the names in it are."""
    body = encode_route(route)

    assert decode_route(body) == route
    assert decode_route(bare_keys(body)) == route
    assert json.loads(body)["queueDatas"] == json.loads(json.dumps(msgspec.to_builtins(route)))["queueDatas"]


@settings(deadline=None)
@given(INT32, st.binary(max_size=300))
def test_a_rendered_answer_is_what_the_general_encoder_writes(opaque: int, body: bytes):
    """Byte for byte, for every number and body."""
    digits = b"%d" % opaque
    answer = render_answer(body)

    assert answer.heads[len(digits)] + digits + answer.tail == encode_command(
        Command(code=0, opaque=opaque, flag=1, body=body)
    )


@settings(deadline=None)
@given(st.sampled_from([JSON, BINARY]), st.integers(0, 300), st.integers(0, 300))
def test_a_prefix_fits_its_frame(serializer: int, header_size: int, body_size: int):
    """Splitting finds exactly what the prefix announced."""
    data = frame_prefix(serializer, header_size, body_size) + bytes(header_size + body_size)

    (frame,), taken = split_frames(memoryview(data))

    assert (frame.serializer, len(frame.header), len(frame.body), taken) == (
        serializer,
        header_size,
        body_size,
        len(data),
    )
