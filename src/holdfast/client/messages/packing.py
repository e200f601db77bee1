"""From a message to what its request carries: properties as text, the body compressed if it is large.

Pure: whoever calls brings the id and the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.client.messages.arguments import NO_KEYS, ZERO, check_message, check_text, is_encodable
from holdfast.model import property_names as names
from holdfast.model.errors import LocalProtocolError
from holdfast.model.message import KEY_SEPARATOR, Message, find_message_fault
from holdfast.wire.records.compression import Codec, compress, flag_of
from holdfast.wire.records.properties import NAME_END, PROPERTIES_SIZE_MAX, VALUE_END, format_properties

COMPRESS_OVER: Final = 4096
BODY_SIZE_MAX: Final = 4 * 1024 * 1024
UNIQUE_KEY_SIZE_MAX: Final = len(names.UNIQUE_KEY) + 2 + 56
"""Of the property that says the id of a message."""


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message as it goes out."""

    message_id: str
    properties: str
    body: bytes
    sys_flag: int
    flag: int


class Packing(msgspec.Struct, frozen=True):
    """How to pack.

    Attributes:
        compress_over: Bodies of at least this many bytes are compressed; None for never.
        codec: How.
        body_size_max: What brokers take.
    """

    compress_over: int | None = COMPRESS_OVER
    codec: Codec = Codec.ZLIB
    body_size_max: int = BODY_SIZE_MAX


def pack(message: Message, message_id: str, packing: Packing, extra: Mapping[str, str] | None = None) -> Outgoing:
    """Return *message* as it goes out. *extra* are properties of the system.

    Raises:
        TypeError: a part of it has a wrong type.
        LocalProtocolError: it cannot be sent unchanged; the text says why.
    """
    text = unique_key(message_id) + describe(message, extra)
    body, sys_flag = shrink(message.body, packing)
    check_body_size(len(body), packing.body_size_max)
    # Four bytes is the most that a character takes: only long texts are worth encoding to count.
    if len(text) * 4 > PROPERTIES_SIZE_MAX:
        check_properties_size(len(text.encode()))
    return Outgoing(message_id, text, body, sys_flag, message.flag)


def shrink(body: bytes, packing: Packing) -> tuple[bytes, int]:
    """Return *body* compressed, if that is wanted and makes it smaller, and the system's flag that says so."""
    if packing.compress_over is not None and len(body) >= packing.compress_over:
        smaller = compress(body, packing.codec)
        if len(smaller) < len(body):
            return smaller, flag_of(packing.codec)
    return body, 0


def unique_key(message_id: str) -> str:
    """Return how the properties of a message begin."""
    return f"{names.UNIQUE_KEY}\x01{message_id}\x02"


def describe(message: Message, extra: Mapping[str, str] | None = None) -> str:
    """Return the properties of *message* that follow its id. *extra* are properties of the system.

    Raises:
        TypeError: a part of it has a wrong type.
        LocalProtocolError: it cannot be sent unchanged; the text says why.
    """
    check_message(message)
    fault = find_message_fault(message)
    if fault is not None:
        raise LocalProtocolError(fault)
    text = ""
    if message.key or message.keys:
        text += _keys(message.key, message.keys)
    if message.tags:
        text += _tag(message.tags)
    if message.delay_level:
        text += f"{names.DELAY}\x01{message.delay_level}\x02"
    if message.properties:
        text += format_properties(message.properties)
    if extra:
        text += format_properties(extra)
    if not (text.isascii() or is_encodable(text)):
        raise LocalProtocolError(
            f"{text!r} cannot be encoded as UTF-8: a key, the tag or a property holds half of a surrogate pair"
        )
    return text


def describe_key(key: str) -> bytes:
    """Return the properties of a message that has a key and nothing else."""
    return _keys(key, ()).encode() if key else b""


@lru_cache(maxsize=256)
def describe_tag(tag: str) -> bytes:
    """Return the properties of a message that has a tag and nothing else. The latest are cached: tags repeat.

    Raises:
        TypeError, ValueError: it is not a text, or not one that can be encoded.
        LocalProtocolError: it cannot be sent unchanged; the text says why.
    """
    check_text("tags", tag)
    return _tag(tag).encode() if tag else b""


def describe_all(messages: Sequence[Message]) -> list[bytes]:
    """Return the properties of each of *messages* that follow its id, and check that all of them can be sent unchanged.

    Raises:
        TypeError: one is not a message, or has a part of a wrong type.
        LocalProtocolError: one cannot; the text says why.
    """
    texts = [b"" if is_plain(message) else describe(message).encode() for message in messages]
    for one_of_its_topic in {message.topic: message for message in messages}.values():
        describe(one_of_its_topic)
    check_body_size(max((len(message.body) for message in messages), default=0))
    check_properties_size(UNIQUE_KEY_SIZE_MAX + max(map(len, texts), default=0))
    return texts


def is_plain(message: Message) -> bool:
    """Say whether *message* is a topic and a body and nothing else: then there is nothing to describe, nor to check."""
    return not (
        message.__class__ is not Message
        or message.key is not None
        or message.tags is not None
        or message.keys is not NO_KEYS
        or message.properties
        or message.delay_level is not ZERO
        or message.flag is not ZERO
        or message.body.__class__ is not bytes
        or not message.body
    )


def check_body_size(size: int, size_max: int = BODY_SIZE_MAX) -> None:
    """Check that brokers take a body of *size* bytes.

    Raises:
        LocalProtocolError: they do not.
    """
    if size > size_max:
        raise LocalProtocolError(f"the body has {size} bytes, at most {size_max} are taken")


def check_properties_size(size: int) -> None:
    """Check that properties of *size* bytes, the id among them, can be stored.

    Raises:
        LocalProtocolError: they cannot.
    """
    if size > PROPERTIES_SIZE_MAX:
        raise LocalProtocolError(f"the properties have {size} bytes, at most {PROPERTIES_SIZE_MAX} can be stored")


def _keys(key: str | None, keys: tuple[str, ...]) -> str:
    """Return the key, which decides on the queue, and everything by which the message can be found."""
    # A key with blanks in it would be found by its words: upstream's index knows no other.
    joined = KEY_SEPARATOR.join(keys if key is None else (key, *keys))
    _check_text("key", joined)
    sharding = f"{names.SHARDING_KEY}\x01{key}\x02" if key else ""
    return f"{names.KEYS}\x01{joined}\x02{sharding}"


def _tag(tag: str) -> str:
    _check_text("tag", tag)
    return f"{names.TAGS}\x01{tag}\x02"


def _check_text(what: str, text: str) -> None:
    if NAME_END in text or VALUE_END in text:
        raise LocalProtocolError(f"the {what} {text!r} holds a separator of properties (\\x01 or \\x02)")
