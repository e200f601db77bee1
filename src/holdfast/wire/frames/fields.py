"""Custom headers: convert a struct's attributes to a command's text fields and back.

Each request declares its request and response headers as structs with the wire's names (`rename`). Every value is sent
as text. Peers write values differently: booleans as `true`, `TRUE` or `1`, numbers with leading zeros.

A `KnownInt32`, `KnownInt64` or `KnownQueueId` that is not known is None here and -1 on the wire.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.numbers import INT32, Int32, Int64
from holdfast.model.queue import LogicalQueueId

_INT32_MAX: Final = 0x7FFFFFFF
_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF

_Header = TypeVar("_Header", bound=msgspec.Struct)


_NEGATIVE_IS_NONE: Final = msgspec.Meta(extra={"negative": "none"})

KnownInt32 = Annotated[Int32, _NEGATIVE_IS_NONE] | None
KnownInt64 = Annotated[Int64, _NEGATIVE_IS_NONE] | None
KnownQueueId = Annotated[LogicalQueueId, INT32, _NEGATIVE_IS_NONE] | None


class BadField(HoldfastError):
    """A request lacks a field or has an unreadable one. It is answered with an error: the frame itself was valid."""


class NoFields(msgspec.Struct, frozen=True):
    """Header of requests without fields."""


class _FieldSpec(msgspec.Struct, frozen=True):
    """How to decode one field."""

    attribute: str
    wire_name: str
    kind: type
    number_max: int
    negative_is_none: bool
    required: bool
    default: Any


@cache
def _field_specs(header: type[msgspec.Struct]) -> tuple[_FieldSpec, ...]:
    hints = get_type_hints(header, include_extras=True)
    return tuple(
        _FieldSpec(
            field.name,
            field.encode_name,
            *_kind(hints[field.name]),
            field.required,
            field.default,
        )
        for field in msgspec.structs.fields(header)
    )


def _kind(annotation: Any) -> tuple[type, int, bool]:
    """Return the field's type (str, int or bool), its largest number, and whether a negative one means None."""
    if get_origin(annotation) in {Union, types.UnionType}:
        (annotation,) = (kind for kind in get_args(annotation) if kind is not type(None))
    limits = get_args(annotation)
    number_max = _INT32_MAX if INT32 in limits else _INT64_MAX
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kind = getattr(annotation, "__supertype__", annotation)
    assert kind in {str, int, bool}, f"a header field cannot be {annotation}"
    return kind, number_max, _NEGATIVE_IS_NONE in limits


def from_fields(header: type[_Header], fields: dict[str, str]) -> _Header:
    """Decode a custom header from a command's fields; unknown fields are ignored.

    Raises:
        BadField: a required field is missing, or a number is invalid or out of range.
    """
    values: dict[str, Any] = {}
    for spec in _field_specs(header):
        text = fields.get(spec.wire_name)
        if text is None or (not text and spec.kind is not str):
            if spec.required:
                raise BadField(f"field {spec.wire_name!r} is missing")
            values[spec.attribute] = spec.default
        else:
            values[spec.attribute] = _parse_value(spec, text)
    return header(**values)


def _parse_value(spec: _FieldSpec, text: str) -> object:
    if spec.kind is int:
        return _parse_number(spec, text)
    if spec.kind is bool:
        return text in {"1", "true"} or text.lower() == "true"
    return text


def _parse_number(spec: _FieldSpec, text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        raise BadField(f"field {spec.wire_name!r} is {text[:40]!r}, not a number") from None
    if not ~spec.number_max <= number <= spec.number_max:
        raise BadField(f"field {spec.wire_name!r} is {text[:40]!r}, more than {spec.number_max}")
    return None if number < 0 and spec.negative_is_none else number


def to_fields(header: msgspec.Struct) -> dict[str, str]:
    """Return *header* as text fields, without those that are None and have no number for that."""
    fields = {}
    for spec in _field_specs(type(header)):
        value = getattr(header, spec.attribute)
        if value is None and spec.negative_is_none:
            fields[spec.wire_name] = "-1"
        elif value is not None:
            fields[spec.wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return fields
