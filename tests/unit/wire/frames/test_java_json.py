"""JSON with the liberties of fastjson."""

import tracemalloc
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json


class Pair(msgspec.Struct):
    """Two numbers."""

    left: int
    right: int = 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"brokerAddrs":{0:"1.1.1.1:10911",1:"x"}}', {"brokerAddrs": {"0": "1.1.1.1:10911", "1": "x"}}),
        ("{ -1 : 0 , 2\n:[{3:{}}] }", {"-1": 0, "2": [{"3": {}}]}),
        ("{0:0}", {"0": 0}),
        ('{"a":[1,2,{"b":3}],4:5}', {"a": [1, 2, {"b": 3}], "4": 5}),
        ("[{1:2},{3:4}]", [{"1": 2}, {"3": 4}]),
    ],
)
def test_bare_numbers_are_keys(text: str, value: Any):
    """They become texts, as in JSON proper."""
    assert java_json.loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{{"b":1,"a":"x"}:5}', {'{"a":"x","b":1}': 5}),
        ('{"t":{{"q":0}:{"n":1},{"q":1} : {"n":2}}}', {"t": {'{"q":0}': {"n": 1}, '{"q":1}': {"n": 2}}}),
        ("{{0:1}:2}", {'{"0":1}': 2}),
        ('{{{"a":1}:2}:3}', {'{"{\\"a\\":1}":2}': 3}),
        ('{{"text":"}:{"}:1}', {'{"text":"}:{"}': 1}),
        ("{{}:1}", {"{}": 1}),
    ],
)
def test_objects_are_keys(text: str, value: Any):
    """They become their own JSON text, keys sorted, so that equal objects are equal keys."""
    assert java_json.loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        r'{"a":"{0:1}","b":",2:","c":"\"{3:","d":"\\"}',
        r'{"{0:1}":"x","\\":{"\"":1}}',
        '{"a":"漢:{1:"}',
        '{"a":1,"b":-2.5e3,"c":[true,false,null],"d":{}}',
        " [ ] ",
        '"text"',
        "12",
    ],
)
def test_what_is_json_already_is_read_as_json(text: str):
    """Also with a liberty elsewhere in the text: nothing inside strings is touched."""
    import json  # noqa: PLC0415 - the standard reader is the reference here

    assert java_json.loads(text.encode()) == json.loads(text)
    assert java_json.loads(f"{{0:{text}}}".encode()) == {"0": json.loads(text)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"n":1},"b":{"$ref":"$.a"}}', {"a": {"n": 1}, "b": {"n": 1}}),
        ('{"a":[{"n":1},{"n":2}],"b":{"$ref":"$.a[1]"}}', {"a": [{"n": 1}, {"n": 2}], "b": {"n": 2}}),
        ('{"a":{"b":[{"c":7}]},"d":{"$ref":"$.a.b[0].c"}}', {"a": {"b": [{"c": 7}]}, "d": 7}),
        ('{0:{"n":1},"b":{"$ref":"$.0"}}', {"0": {"n": 1}, "b": {"n": 1}}),
        ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.c"},"c":1}', {"a": 1, "b": 1, "c": 1}),
        ('{"a":{"$ref":7},"b":{"$ref":"x","c":1}}', {"a": {"$ref": 7}, "b": {"$ref": "x", "c": 1}}),
    ],
)
def test_references_are_followed(text: str, value: Any):
    """To what was written elsewhere in the same body."""
    assert java_json.loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"$ref":"$.x"}}',
        '{"a":[],"b":{"$ref":"$.a[0]"}}',
        '{"a":1,"b":{"$ref":"$.a.b"}}',
        '{"a":{"$ref":"$.a"}}',
        '{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        '{"a":{"b":{"$ref":"$"}}}',
    ],
)
def test_references_to_nowhere_or_in_circles_are_refused(text: str):
    """They end, and they end in a typed error."""
    with pytest.raises(RemoteProtocolError):
        java_json.loads(text.encode())


def test_references_cannot_stand_for_more_than_memory_holds():
    """Thirty lines that each name the next one ten times would be 10 to the power of 30 values."""
    lines = [f'"l{n}":[{",".join([f"""{{"$ref":"$.l{n + 1}"}}"""] * 10)}]' for n in range(30)]
    text = "{" + ",".join(lines) + ',"l30":[]}'

    with pytest.raises(RemoteProtocolError, match="expand too far"):
        java_json.loads(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"}",
        b"{0}",
        b"{0:}",
        b"{0:1,}",
        b"{0:1]",
        b'{"a"',
        b'{"a',
        b'{"a\\',
        b"{{:1}",
        b"{{}:}",
        b"{}:1",
        b"}:1{",
        b"{1:2}{3:4}",
        b"{a:1}",
        b"\xff",
        b'{0:"\xff"}',
        b"nonsense",
        b"{'a':1}",
        b"[" * 200_000,
        b"{0:" * 200_000,
        b"{{" * 200_000,
        b'{0:"' + b"\\" * 200_001,
        b"{0:1}" + b" " * 200_000 + b"x",
        b"{" + b"," * 200_000,
        b"{0:" + b"9" * 200_000 + b"}",
        b'{"' + b'\\"' * 2_000_000,
        b"{" * 60 + b"}" + b":1}" * 59,
    ],
)
def test_what_is_not_even_javas_json_is_refused(text: bytes):
    """With a typed error, at any length and any depth."""
    with pytest.raises(RemoteProtocolError):
        java_json.loads(text)


def test_a_long_text_leaves_no_trail_of_memory():
    """A few megabytes in one string cost a few copies of it."""
    text = b'{0:"' + b"a" * 4_000_000 + b'"}'
    tracemalloc.start()

    java_json.loads(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 6 * len(text)


def test_a_body_is_fitted_into_its_struct():
    """Numbers may come as texts, unknown members are ignored."""
    assert java_json.decode(b'{"left":"5","other":[]}', Pair) == Pair(5)


@pytest.mark.parametrize("text", [b"{}", b"[]", b'{"left":"x"}', b'{"left":null}', b'{"left":1,"right":{}}'])
def test_a_body_of_another_shape_is_refused(text: bytes):
    """The error names the struct that was wanted."""
    with pytest.raises(RemoteProtocolError, match="Pair"):
        java_json.decode(text, Pair)


def test_a_map_by_queue_is_written_with_object_keys():
    """The only form that every fastjson reads, and our own reader reads it back."""
    queue = MessageQueue("t", "b", 0)

    written = java_json.encode({"offsetTable": java_json.object_map([(queue, 5)])})

    assert written == b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:5}}'
    assert java_json.loads(written) == {"offsetTable": {'{"brokerName":"b","queueId":0,"topic":"t"}': 5}}
    assert java_json.object_map([]) == msgspec.Raw(b"{}")


def test_a_text_of_the_greatest_depth_is_read():
    """One level more is refused."""
    for depth, is_read in ((java_json.DEPTH_MAX, True), (java_json.DEPTH_MAX + 1, False)):
        text = b"{1:" * depth + b"2" + b"}" * depth
        with nullcontext() if is_read else pytest.raises(RemoteProtocolError, match="nested deeper"):
            java_json.loads(text)
