"""JSON as Java peers write it (fastjson 1.x), which is not always JSON.

    {"brokerAddrs":{0:"1.1.1.1:10911"}}                          bare numbers as keys
    {"offsetTable":{{"brokerName":"b","queueId":0}:{...}}}        objects as keys
    {"dataVersion":{...},"mappingDataVersion":{"$ref":"$.dataVersion"}}   references to what was written before

We accept all three and write none, but for object keys: some peers understand those in no other form (`object_map`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.model.errors import RemoteProtocolError

_T = TypeVar("_T")

DEPTH_MAX = 64

_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}
_REFERENCE_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")

encode = msgspec.json.Encoder().encode


def decode(data: bytes | memoryview, kind: type[_T]) -> _T:
    """Decode a body into *kind*, numbers in strings allowed.

    Raises:
        RemoteProtocolError: it is not even Java's JSON, or does not have the shape of *kind*.
    """
    try:
        return msgspec.convert(loads(data), kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(f"body does not fit {kind.__name__}: {error}") from error


def loads(data: bytes | memoryview) -> Any:
    """Decode a body into plain values. An object that was a key becomes its own JSON text, keys sorted.

    Raises:
        RemoteProtocolError: it is not even Java's JSON.
    """
    raw = bytes(data)
    if b'"$ref"' not in raw:
        try:
            return msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # Perhaps one of Java's liberties: the slow reader below tells.
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"body is not UTF-8: {error}") from error
    reader = _Reader(text)
    value = reader.value(0)
    reader.expect_end()
    return _resolve(value, value, 0)


def object_map(items: Iterable[tuple[msgspec.Struct, object]]) -> msgspec.Raw:
    """Return a map whose keys are objects, in the only form that every fastjson reads."""
    return msgspec.Raw(b"{" + b",".join(encode(key) + b":" + encode(value) for key, value in items) + b"}")


class _Reader:
    """A recursive reader of one text. Every branch moves forward or raises, so it ends."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise RemoteProtocolError(f"JSON is nested deeper than {DEPTH_MAX}")
        match self._peek():
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"':
                return self._string()
            case _:
                return self._scalar()

    def expect_end(self) -> None:
        if self._peek():
            raise self._fault("the end")

    def _object(self, depth: int) -> dict[str, Any]:
        self._at += 1
        members: dict[str, Any] = {}
        while self._peek() != "}":
            if members:
                self._expect(",")
            key = self.value(depth + 1)
            self._expect(":")
            members[key if isinstance(key, str) else _key_text(key)] = self.value(depth + 1)
        self._at += 1
        return members

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        items: list[Any] = []
        while self._peek() != "]":
            if items:
                self._expect(",")
            items.append(self.value(depth + 1))
        self._at += 1
        return items

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise self._fault("the end of a string")
        self._at = found.end()
        try:
            return msgspec.json.decode(found[0].encode(), type=str, strict=False)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise RemoteProtocolError(f"JSON string cannot be read: {error}") from error

    def _scalar(self) -> Any:
        if found := _NUMBER.match(self._text, self._at):
            self._at = found.end()
            try:
                return msgspec.json.decode(found[0])
            except msgspec.MsgspecError as error:
                raise RemoteProtocolError(f"JSON number cannot be read: {error}") from error
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        raise self._fault("a value")

    def _peek(self) -> str:
        found = _BLANK.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise self._fault(repr(mark))
        self._at += 1

    def _fault(self, wanted: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"JSON: wanted {wanted} at {self._at}, found {self._text[self._at : self._at + 20]!r}"
        )


def _key_text(key: object) -> str:
    return msgspec.json.encode(key, order="sorted").decode()


def _resolve(value: Any, root: Any, depth: int) -> Any:
    """Return *value* with every reference replaced by what it points to."""
    if depth > DEPTH_MAX:
        raise RemoteProtocolError("JSON references go round in a circle")
    if isinstance(value, list):
        return [_resolve(item, root, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and isinstance(path := value.get("$ref"), str):
        return _resolve(_follow(path, root), root, depth + 1)
    return {key: _resolve(item, root, depth + 1) for key, item in value.items()}


def _follow(path: str, root: Any) -> Any:
    found = root
    for name, index in _REFERENCE_STEP.findall(path.removeprefix("$")):
        try:
            found = found[name] if name else found[int(index)]
        except (KeyError, IndexError, TypeError) as error:
            raise RemoteProtocolError(f"JSON reference {path!r} points nowhere") from error
    return found
