"""One request or response: code, correlation number, named fields and body, in two header encodings.

This is the general path. The hottest requests (`send.py`, `pull.py`, `route.py`) are decoded straight into their own
structs instead. The decoder accepts what real peers send: field values that are numbers or booleans, headers without
fields, unknown languages.

Binary header:

    | code i16 | language i8 | version i16 | opaque i32 | flag i32 | remark i32+text |
    | fields i32, then for each: key i16+text, value i32+text |
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from holdfast.model.errors import LocalProtocolError, RemoteProtocolError
from holdfast.model.numbers import Int32, Int64
from holdfast.wire.frames.codes import LANGUAGE_NAMES, OUR_LANGUAGE, VERSION
from holdfast.wire.frames.frame import BINARY, JSON, Frame, frame_prefix

RESPONSE: Final = 1
ONE_WAY: Final = 2

_BINARY_START = struct.Struct(">hBhiii")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")

_FieldValue = str | Int64 | float | bool | None


class Command(msgspec.Struct, kw_only=True):
    """A decoded request or response. Owns its bytes, so it may outlive the event that delivered it."""

    code: int
    opaque: int = 0
    flag: int = 0
    fields: dict[str, str] = {}
    body: bytes = b""
    remark: str | None = None
    language: str = OUR_LANGUAGE
    version: int = VERSION
    serializer: int = JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & ONE_WAY)


class _JsonHeader(msgspec.Struct):
    """A JSON header as other implementations write it."""

    code: Int32 = 0
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str | Int32 | None = None
    remark: str | None = None
    ext_fields: dict[str, _FieldValue] | None = msgspec.field(default=None, name="extFields")


_decode_json = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_encode_json = msgspec.json.Encoder().encode


def decode_command(frame: Frame) -> Command:
    """Decode a frame of either encoding.

    Raises:
        RemoteProtocolError: the header is malformed.
    """
    command = _from_json(frame.header) if frame.serializer == JSON else _from_binary(frame.header)
    command.body = bytes(frame.body)
    command.serializer = frame.serializer
    return command


class _FieldsHeader(msgspec.Struct):
    """Only the fields of a JSON header, all of them texts."""

    fields: dict[str, str] = msgspec.field(name="extFields")


_decode_fields = msgspec.json.Decoder(_FieldsHeader).decode


def decode_fields(header: memoryview) -> dict[str, str] | None:
    """Return the fields of a JSON header; None if it has none, or some are not texts: the general path reads these."""
    try:
        return _decode_fields(header).fields
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def encode_command(command: Command) -> bytes:
    """Return the whole frame of *command*, with the header encoding that `command.serializer` names.

    Raises:
        LocalProtocolError: the binary encoding cannot represent *command*.
    """
    return encode_head(command, len(command.body)) + command.body


def encode_head(command: Command, body_size: int) -> bytes:
    """Return the frame up to its body, so that a body of *body_size* bytes need not be copied.

    Raises:
        LocalProtocolError: the binary encoding cannot represent *command*.
    """
    header = _to_json(command) if command.serializer == JSON else _to_binary(command)
    return frame_prefix(command.serializer, len(header), body_size) + header


def response(
    request: Command,
    code: int = 0,
    remark: str | None = None,
    *,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Return the answer to *request*, in the request's header encoding."""
    return Command(
        code=code,
        opaque=request.opaque,
        flag=RESPONSE,
        fields=fields or {},
        body=body,
        remark=remark,
        serializer=request.serializer,
    )


def _from_json(header: memoryview) -> Command:
    try:
        decoded = _decode_json(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"JSON header cannot be read: {error}") from error
    language = decoded.language
    if isinstance(language, int):
        language = _language_name(language)
    return Command(
        code=decoded.code,
        opaque=decoded.opaque,
        flag=decoded.flag,
        fields={key: _text(value) for key, value in (decoded.ext_fields or {}).items() if value is not None},
        remark=decoded.remark,
        language=language or "OTHER",
        version=decoded.version,
    )


def _text(value: _FieldValue) -> str:
    """Return a field value as the text that other peers would have sent."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _to_json(command: Command) -> bytes:
    # Keys are in upstream's order. Absent members are left out, never written as null.
    header: dict[str, object] = {"code": command.code}
    if command.fields:
        header["extFields"] = command.fields
    header |= {"flag": command.flag, "language": command.language, "opaque": command.opaque}
    if command.remark is not None:
        header["remark"] = command.remark
    return _encode_json(header | {"serializeTypeCurrentRPC": "JSON", "version": command.version})


def _from_binary(header: memoryview) -> Command:
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_START.unpack_from(header, 0)
        remark, at = _read_text(header, _BINARY_START.size, remark_size)
        (fields_size,) = _I32.unpack_from(header, at)
        at += 4
        if fields_size < 0 or at + fields_size > len(header):
            raise RemoteProtocolError(f"field map of {fields_size} bytes does not fit its header")
        fields = _binary_fields(header[at : at + fields_size])
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"binary header cannot be read: {error}") from error
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        fields=fields,
        remark=remark or None,
        language=_language_name(language),
        version=version,
    )


def _binary_fields(data: memoryview) -> dict[str, str]:
    fields: dict[str, str] = {}
    at = 0
    while at < len(data):
        (key_size,) = _I16.unpack_from(data, at)
        key, at = _read_text(data, at + 2, key_size)
        (value_size,) = _I32.unpack_from(data, at)
        value, at = _read_text(data, at + 4, value_size)
        if key:
            fields[key] = value
    return fields


def _read_text(data: memoryview, at: int, size: int) -> tuple[str, int]:
    """Return the text of *size* bytes at *at*, and its end."""
    if size < 0 or at + size > len(data):
        raise RemoteProtocolError(f"text of {size} bytes does not fit its header")
    return str(data[at : at + size], "utf-8"), at + size


def _to_binary(command: Command) -> bytes:
    if not -0x8000 <= command.code <= 0x7FFF:
        raise LocalProtocolError(f"code {command.code} does not fit the binary header; use JSON")
    remark = (command.remark or "").encode()
    pieces: list[bytes] = []
    for key, value in command.fields.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        if len(key_bytes) > 0x7FFF:
            raise LocalProtocolError(f"field name of {len(key_bytes)} bytes does not fit the binary header")
        pieces += (_I16.pack(len(key_bytes)), key_bytes, _I32.pack(len(value_bytes)), value_bytes)
    fields = b"".join(pieces)
    language = LANGUAGE_NAMES.index(command.language) if command.language in LANGUAGE_NAMES else 7
    start = _BINARY_START.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    return b"".join((start, remark, _I32.pack(len(fields)), fields))


def _language_name(number: int) -> str:
    return LANGUAGE_NAMES[number] if 0 <= number < len(LANGUAGE_NAMES) else "OTHER"


__all__ = [
    "BINARY",
    "JSON",
    "ONE_WAY",
    "RESPONSE",
    "Command",
    "decode_command",
    "decode_fields",
    "encode_command",
    "encode_head",
    "response",
]
