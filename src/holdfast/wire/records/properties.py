"""The properties of a message as one text.

    name 0x01 value 0x02 name 0x01 value 0x02 ...

The last 0x02 may be missing. A piece without a name, a value or the 0x01 between them is dropped, as upstream drops it;
of two pieces with the same name the later one counts. Does not interpret the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import AnyStr

from holdfast.model.errors import LocalProtocolError

NAME_END = "\x01"
VALUE_END = "\x02"

PROPERTIES_SIZE_MAX = 32767
"""The length is stored as a signed 16-bit number."""


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in *text*, in their order."""
    found: dict[str, str] = {}
    for piece in text.split(VALUE_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            found[name] = value
    return found


def format_properties(properties: Mapping[str, str]) -> str:
    """Return *properties* as one text that ends with 0x02; empty when there are none.

    Raises:
        LocalProtocolError: a name or a value contains a separator, or a name is empty.
    """
    for name, value in properties.items():
        if not name or NAME_END in name or VALUE_END in name or VALUE_END in value:
            fault = "holds a separator (\\x01 or \\x02)" if name else "has an empty name"
            raise LocalProtocolError(f"property {name!r} with value {value!r} cannot be stored: it {fault}")
    return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items() if value)


def find_property(text: AnyStr, name: AnyStr) -> AnyStr | None:
    """Return the value of one property without parsing the others, or None. Accepts text or its UTF-8 bytes."""
    if isinstance(text, str):
        return find_by_marker(text, name + NAME_END, VALUE_END)
    return find_by_marker(text, name + b"\x01", b"\x02")


def find_by_marker(text: AnyStr, marker: AnyStr, value_end: AnyStr) -> AnyStr | None:
    """Return the value of one property, or None. *marker* is its name with 0x01 appended, prepared by hot callers."""
    at = text.rfind(marker)
    while at >= 0:
        # The marker must be a whole name, not the end of a longer one or a part of a value.
        if at == 0 or text[at - 1 : at] == value_end:
            start = at + len(marker)
            end = text.find(value_end, start)
            value = text[start:end] if end >= 0 else text[start:]
            if value:
                return value
        at = text.rfind(marker, 0, at)
    return None
