"""Decode JSON as Java peers write it (fastjson 1.x), which is not always valid JSON.

    {"brokerAddrs":{0:"1.1.1.1:10911"}}                          bare numbers as keys
    {"offsetTable":{{"brokerName":"b","queueId":0}:{...}}}        objects as keys
    {"dataVersion":{...},"mappingDataVersion":{"$ref":"$.dataVersion"}}   references to earlier values

We accept all three. We write object keys only, because some peers understand those maps in no other form
(`object_map`). Invalid JSON is first rewritten as JSON. Only keys are changed, so decoding a large body from Java costs
a few times, not a hundred times, as much as decoding a valid one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.model.errors import RemoteProtocolError

_T = TypeVar("_T")

DEPTH_MAX = 64
# A key inside a key is decoded once per enclosing level and its quotes are escaped again: each level doubles the work.
KEY_DEPTH_MAX = 2

# Strings are matched only to skip them, and possessively: a string of megabytes leaves no backtracking states.
_TOKEN = re.compile(
    rb"""
    (?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[\s:,]*+)++
    | (?P<open>\{)
    | (?P<close>\})(?P<key>\s*+:)?
    | (?<=[{,])(?P<blank>\s*+)(?P<number>-?\d++)(?=\s*+:)
    | (?P<endless>")
    """,
    re.VERBOSE | re.DOTALL,
)
_REFERENCE_PART = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9})\]")

encode = msgspec.json.Encoder().encode
_decode_plain = msgspec.json.Decoder().decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode(data: bytes | memoryview, kind: type[_T]) -> _T:
    """Decode a body into *kind*, accepting numbers in strings.

    Raises:
        RemoteProtocolError: the body is not even Java's JSON, or does not have the shape of *kind*.
    """
    try:
        return msgspec.convert(loads(data), kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(f"body does not fit {kind.__name__}: {error}") from error


def loads(data: bytes | memoryview) -> Any:
    """Decode a body into plain values. An object that is a key becomes its own JSON text, with sorted keys.

    Raises:
        RemoteProtocolError: the body is not even Java's JSON.
    """
    return _loads(bytes(data), 0)


def _loads(raw: bytes, depth: int) -> Any:
    try:
        value = _decode_plain(raw)
    except _UNREADABLE:
        value = _decode_java(raw, depth)
    return _Resolver(value, 8 * len(raw)).resolve(value, 0) if b'"$ref"' in raw else value


def _decode_java(raw: bytes, depth: int) -> Any:
    try:
        return _decode_plain(_to_json(raw, depth))
    except _UNREADABLE as error:
        raise RemoteProtocolError(f"body is not JSON: {error}") from error


def object_map(items: Iterable[tuple[msgspec.Struct, object]]) -> msgspec.Raw:
    """Return a map whose keys are objects, in the only form that every fastjson version reads."""
    return msgspec.Raw(b"{" + b",".join(encode(key) + b":" + encode(value) for key, value in items) + b"}")


def _to_json(raw: bytes, depth: int) -> bytes:
    """Return *raw* with every number key and object key converted to text."""
    if depth > KEY_DEPTH_MAX:
        raise RemoteProtocolError(f"JSON has keys in keys deeper than {KEY_DEPTH_MAX}")
    pieces: list[bytes] = []
    copied = 0
    for start, end, text in _find_edits(raw, depth):
        pieces += (raw[copied:start], text)
        copied = end
    pieces.append(raw[copied:])
    return b"".join(pieces)


def _find_edits(raw: bytes, depth: int) -> list[tuple[int, int, bytes]]:
    """Return the replacements (start, end, new bytes), from left to right."""
    edits: list[tuple[int, int, bytes]] = []
    opened: list[int] = []
    for found in _TOKEN.finditer(raw):
        match found.lastgroup:
            case None:
                continue
            case "number":
                edits.append((*found.span("number"), b'"' + found["number"] + b'"'))
            case "open":
                opened.append(found.start())
                if len(opened) > DEPTH_MAX:
                    raise RemoteProtocolError(f"JSON is nested deeper than {DEPTH_MAX}")
            case "endless":
                # Nothing after it can be parsed, and searching on for strings takes quadratic time.
                raise RemoteProtocolError("body is not JSON: a string is not terminated")
            case _ if opened:
                start, end = opened.pop(), found.end("close")
                if found["key"] is not None:
                    while edits and edits[-1][0] > start:
                        edits.pop()  # It lies inside the key, which is decoded as a whole.
                    edits.append((start, end, _as_key(_loads(raw[start:end], depth + 1))))
    return edits


def _as_key(value: object) -> bytes:
    """Return an object key as a JSON string that holds the object's own JSON, with sorted keys."""
    return encode(msgspec.json.encode(value, order="sorted").decode())


class _Resolver:
    """Replaces references by their targets.

    A few nested references can expand to more than fits into memory, so the work is bounded.
    """

    def __init__(self, root: Any, work_max: int) -> None:
        self._root = root
        self._work_remaining = work_max

    def resolve(self, value: Any, depth: int) -> Any:
        """Return *value* without references."""
        self._work_remaining -= 1
        if depth > DEPTH_MAX or self._work_remaining < 0:
            raise RemoteProtocolError("JSON references are circular or expand too far")
        if isinstance(value, list):
            return [self.resolve(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and isinstance(path := value.get("$ref"), str):
            return self.resolve(_follow(path, self._root), depth + 1)
        return {key: self.resolve(item, depth + 1) for key, item in value.items()}


def _follow(path: str, root: Any) -> Any:
    found = root
    for name, index in _REFERENCE_PART.findall(path.removeprefix("$")):
        try:
            found = found[name] if name else found[int(index)]
        except (KeyError, IndexError, TypeError) as error:
            raise RemoteProtocolError(f"JSON reference {path!r} points nowhere") from error
    return found
