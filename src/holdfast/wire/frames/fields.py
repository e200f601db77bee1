"""Custom headers: convert a struct's attributes to a command's text fields and back.

Each request declares its request and response headers as structs with the wire's names (`rename`). Every value is sent
as text. Peers write values differently: booleans as `true`, `TRUE` or `1`, numbers with leading zeros.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.numbers import Int32

_INT32_MAX: Final = 0x7FFFFFFF
_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF

_Header = TypeVar("_Header", bound=msgspec.Struct)


class BadField(HoldfastError):
    """A request lacks a field or has an unreadable one. It is answered with an error: the frame itself was valid."""


class _Plan(msgspec.Struct, frozen=True):
    """How to decode one field."""

    attribute: str
    wire_name: str
    kind: type
    number_max: int
    required: bool
    default: Any


@cache
def _plan(header: type[msgspec.Struct]) -> tuple[_Plan, ...]:
    hints = get_type_hints(header, include_extras=True)
    return tuple(
        _Plan(
            field.name,
            field.encode_name,
            *_kind(hints[field.name]),
            field.required,
            field.default,
        )
        for field in msgspec.structs.fields(header)
    )


def _kind(annotation: Any) -> tuple[type, int]:
    """Return the field's type (str, int or bool) without its optionality, and its largest number."""
    if get_origin(annotation) in {Union, types.UnionType}:
        (annotation,) = (kind for kind in get_args(annotation) if kind is not type(None))
    number_max = _INT32_MAX if annotation == Int32 else _INT64_MAX
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kind = getattr(annotation, "__supertype__", annotation)
    assert kind in {str, int, bool}, f"a header field cannot be {annotation}"
    return kind, number_max


def from_fields(header: type[_Header], fields: dict[str, str]) -> _Header:
    """Decode a custom header from a command's fields; unknown fields are ignored.

    Raises:
        BadField: a required field is missing, or a number is invalid or out of range.
    """
    values: dict[str, Any] = {}
    for plan in _plan(header):
        text = fields.get(plan.wire_name)
        if text is None or (not text and plan.kind is not str):
            if plan.required:
                raise BadField(f"field {plan.wire_name!r} is missing")
            values[plan.attribute] = plan.default
        else:
            values[plan.attribute] = _read(plan, text)
    return header(**values)


def _read(plan: _Plan, text: str) -> object:
    if plan.kind is int:
        return _number(plan, text)
    if plan.kind is bool:
        return text in {"1", "true"} or text.lower() == "true"
    return text


def _number(plan: _Plan, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise BadField(f"field {plan.wire_name!r} is {text[:40]!r}, not a number") from None
    if not ~plan.number_max <= number <= plan.number_max:
        raise BadField(f"field {plan.wire_name!r} is {text[:40]!r}, more than {plan.number_max}")
    return number


def to_fields(header: msgspec.Struct) -> dict[str, str]:
    """Return *header* as text fields, without those that are None."""
    fields = {}
    for plan in _plan(type(header)):
        value = getattr(header, plan.attribute)
        if value is not None:
            fields[plan.wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return fields
