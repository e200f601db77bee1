"""Checks the arguments of API calls, at the call itself.

An argument of a wrong type must fail at the call that passes it, with its name. Found later, while a request is
encoded, it would look like a failure of the connection, which other callers share.

    TypeError            the value has a type that the signature does not allow
    ValueError           the type is right, but no such value can work
    LocalProtocolError   the text is valid, but RocketMQ does not allow it there

Pure: inspects values only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from reprlib import repr as short_repr
from types import UnionType
from typing import Final

from holdfast.model.errors import LocalProtocolError
from holdfast.model.message import DELAY_LEVEL_MAX, Message
from holdfast.model.queue import MessageQueue
from holdfast.model.topic import find_name_fault

# The defaults of a message that sets neither keys nor numbers. Compared by identity, the quickest way to see that there
# is nothing to check: any other object is checked.
NO_KEYS: Final[tuple[str, ...]] = ()
ZERO: Final = 0
_START: Final = "'earliest', 'latest' or a datetime"


def wrong_type(name: str, value: object, expected: str) -> TypeError:
    """Return the error for an argument of a wrong type."""
    return TypeError(f"{name} must be {expected}, not {type(value).__name__}: {short_repr(value)}")


def check_kind(name: str, value: object, kind: type | UnionType, *, optional: bool = False) -> None:
    """Check that *value* is an instance of *kind*, or None if it is *optional*."""
    if not (isinstance(value, kind) or (optional and value is None)):
        expected = kind.__name__ if isinstance(kind, type) else str(kind)
        raise wrong_type(name, value, expected + (" or None" if optional else ""))


def check_text(name: str, value: object, *, optional: bool = False) -> None:
    """Check that *value* is a text that UTF-8 can encode."""
    check_kind(name, value, str, optional=optional)
    if isinstance(value, str) and not is_encodable(value):
        raise ValueError(f"{name} cannot be encoded as UTF-8: {value!r} holds half of a surrogate pair")


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 can encode *text*. It cannot encode a lone surrogate."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def check_name(name: str, value: object) -> None:
    """Check that *value* can be the name of a group, a namespace or a topic."""
    check_kind(name, value, str)
    fault = find_name_fault(str(value))
    if fault is not None:
        raise LocalProtocolError(f"{name}: {fault}")


def check_count(name: str, value: object, *, least: int = 0, optional: bool = False) -> None:
    """Check that *value* is a whole number, at least *least*."""
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(name, value, "int" + (" or None" if optional else ""))
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def check_seconds(name: str, value: object, *, least: float = -math.inf, optional: bool = False) -> None:
    """Check that *value* is a number of seconds. Without *least*, a negative value means that the time has run out."""
    if optional and value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(name, value, "a number of seconds" + (" or None" if optional else ""))
    if not value >= least or math.isnan(value):
        raise ValueError(
            f"{name} must be a number of seconds{'' if math.isinf(least) else f' >= {least:g}'}, not {value}"
        )


def check_callable(name: str, value: object) -> None:
    """Check that *value* is callable or None."""
    if value is not None and not callable(value):
        raise wrong_type(name, value, "a function or None")


def check_start(name: str, value: object) -> None:
    """Check that *value* is a position to start from: 'earliest', 'latest' or a datetime."""
    if isinstance(value, str):
        if value not in {"earliest", "latest"}:
            raise ValueError(f"{name} must be {_START}, not {value!r}")
    elif not isinstance(value, datetime):
        raise wrong_type(name, value, _START)
    else:
        _check_datetime(name, value)


def _check_datetime(name: str, value: datetime) -> None:
    """Check that *value* has a timestamp: local times in the first days of year 1 have none."""
    try:
        value.timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name} is {value}, which has no timestamp: {error}") from error


def check_position(name: str, value: object) -> None:
    """Check that *value* is an offset, 'earliest', 'latest' or a datetime."""
    if isinstance(value, int) and not isinstance(value, bool):
        check_count(name, value)
    elif isinstance(value, str | datetime):
        check_start(name, value)
    else:
        raise wrong_type(name, value, f"an offset, {_START}")


def check_queue(name: str, value: object) -> None:
    """Check that *value* names a queue."""
    if not isinstance(value, MessageQueue):
        raise wrong_type(name, value, "MessageQueue")
    check_text(f"the topic of {name}", value.topic)
    check_text(f"the broker name of {name}", value.broker_name)
    check_count(f"the number of {name}", value.queue_id)


def check_delay_level(value: object, *, least: int = 0) -> None:
    """Check that *value* is a delay level."""
    check_count("delay_level", value, least=least)
    if isinstance(value, int) and value > DELAY_LEVEL_MAX:
        raise ValueError(f"delay_level must be at most {DELAY_LEVEL_MAX}, not {value}")


def check_body(value: object) -> None:
    """Check that *value* can be the body of a message."""
    if not isinstance(value, bytes):
        hint = ""
        if isinstance(value, str):
            hint = ": encode it, as in text.encode()"
        elif isinstance(value, bytearray | memoryview):
            hint = ": copy it, as in bytes(body)"
        raise TypeError(f"body must be bytes, not {type(value).__name__}{hint}")


def check_message(value: object) -> None:
    """Check that *value* is a message whose fields have the right types. A broker may still refuse it."""
    if not isinstance(value, Message):
        raise wrong_type("message", value, "Message")
    # Nearly all messages have exactly these types, and that is quick to check.
    if not (
        value.topic.__class__ is str
        and value.body.__class__ is bytes
        and (value.key is None or value.key.__class__ is str)
        and (value.tags is None or value.tags.__class__ is str)
        and value.keys is NO_KEYS
        and not value.properties
        and value.delay_level.__class__ is int
        and value.flag.__class__ is int
    ):
        _check_parts(value)


def _check_parts(value: Message) -> None:
    check_kind("topic", value.topic, str)
    check_body(value.body)
    check_kind("tags", value.tags, str, optional=True)
    check_kind("key", value.key, str, optional=True)
    check_keys(value.keys)
    check_kind("delay_level", value.delay_level, int)
    check_kind("flag", value.flag, int)
    if value.properties:
        check_properties(value.properties)


def check_keys(keys: object) -> None:
    """Check that *keys* is a sequence of texts. A single text is rejected: each of its characters would be a key."""
    if not isinstance(keys, Sequence) or isinstance(keys, str | bytes):
        raise wrong_type("keys", keys, "a sequence of str")
    for key in keys:
        check_kind("every one of keys", key, str)


def check_properties(properties: object) -> None:
    """Check that *properties* maps texts to texts."""
    if not isinstance(properties, Mapping):
        raise wrong_type("properties", properties, "a mapping of str to str")
    for name, text in properties.items():
        check_kind("the name of a property", name, str)
        check_kind(f"the property {name!r}", text, str)
