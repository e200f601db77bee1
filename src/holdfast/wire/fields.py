"""Custom headers: a struct's attributes to and from a command's text fields.

Each conversation declares its request and response headers as structs with the wire's names (`rename`). Every value
travels as text. Peers differ in how they write it: booleans come as `true`, `TRUE` or `1`, numbers with leading zeros.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.model.errors import HoldfastError

_Header = TypeVar("_Header", bound=msgspec.Struct)


class BadField(HoldfastError):
    """A request lacks a field or has one that cannot be read. Answered, not fatal: the frame itself was sound."""


class _Plan(msgspec.Struct, frozen=True):
    """How to read one field."""

    attribute: str
    wire_name: str
    kind: type
    required: bool
    default: Any


@cache
def _plan(header: type[msgspec.Struct]) -> tuple[_Plan, ...]:
    hints = get_type_hints(header)
    return tuple(
        _Plan(
            field.name,
            field.encode_name,
            _kind(hints[field.name]),
            field.required,
            field.default,
        )
        for field in msgspec.structs.fields(header)
    )


def _kind(annotation: Any) -> type:
    """Return str, int or bool, whatever else the annotation says about absence."""
    if get_origin(annotation) in {Union, types.UnionType}:
        (annotation,) = (kind for kind in get_args(annotation) if kind is not type(None))
    kind = getattr(annotation, "__supertype__", annotation)
    assert kind in {str, int, bool}, f"a header field cannot be {annotation}"
    return kind  # type: ignore[no-any-return]


def from_fields(header: type[_Header], fields: dict[str, str]) -> _Header:
    """Read a custom header out of a command's fields; unknown fields are ignored.

    Raises:
        BadField: a required field is missing or a number is none.
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
        try:
            return int(text)
        except ValueError:
            raise BadField(f"field {plan.wire_name!r} is {text[:40]!r}, not a number") from None
    if plan.kind is bool:
        return text in {"1", "true"} or text.lower() == "true"
    return text


def to_fields(header: msgspec.Struct) -> dict[str, str]:
    """Return *header* as text fields; what is None is left out."""
    fields = {}
    for plan in _plan(type(header)):
        value = getattr(header, plan.attribute)
        if value is not None:
            fields[plan.wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return fields
