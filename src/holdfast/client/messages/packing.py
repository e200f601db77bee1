"""Packs a message for its send request: properties as text, the body compressed if it is large.

Pure: the caller supplies the message id and the system properties.
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
"""Size of the property that carries the message id."""


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message packed for sending."""

    message_id: str
    properties: str
    body: bytes
    sys_flag: int
    flag: int


class Packing(msgspec.Struct, frozen=True):
    """How to pack messages.

    Attributes:
        compress_over: Bodies of at least this many bytes are compressed; None for never.
        codec: The compression codec.
        body_size_max: The largest body that brokers accept, in bytes.
    """

    compress_over: int | None = COMPRESS_OVER
    codec: Codec = Codec.ZLIB
    body_size_max: int = BODY_SIZE_MAX


def pack(message: Message, message_id: str, packing: Packing, extra: Mapping[str, str] | None = None) -> Outgoing:
    """Return *message* packed for sending, with the system properties *extra*.

    Raises:
        TypeError: a field of the message has a wrong type.
        LocalProtocolError: the message cannot be sent unchanged; the text says why.
    """
    text = unique_key_property(message_id) + message_properties(message, extra)
    body, sys_flag = shrink(message.body, packing)
    check_body_size(len(body), packing.body_size_max)
    # UTF-8 needs at most four bytes for a character, so that only long texts need to be encoded to be counted.
    if len(text) * 4 > PROPERTIES_SIZE_MAX:
        check_properties_size(len(text.encode()))
    return Outgoing(message_id, text, body, sys_flag, message.flag)


def shrink(body: bytes, packing: Packing) -> tuple[bytes, int]:
    """Return *body*, compressed if *packing* asks for it and it gets smaller, and the system flag that says so."""
    if packing.compress_over is not None and len(body) >= packing.compress_over:
        smaller = compress(body, packing.codec)
        if len(smaller) < len(body):
            return smaller, flag_of(packing.codec)
    return body, 0


def unique_key_property(message_id: str) -> str:
    """Return the property that carries the message id. It comes first among the properties."""
    return f"{names.UNIQUE_KEY}\x01{message_id}\x02"


def message_properties(message: Message, extra: Mapping[str, str] | None = None) -> str:
    """Return the properties of *message* that follow its id, and the system properties *extra*.

    Raises:
        TypeError: a field of the message has a wrong type.
        LocalProtocolError: the message cannot be sent unchanged; the text says why.
    """
    check_message(message)
    fault = find_message_fault(message)
    if fault is not None:
        raise LocalProtocolError(fault)
    text = ""
    if message.key or message.keys:
        text += _format_keys(message.key, message.keys)
    if message.tags:
        text += _format_tag(message.tags)
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


def key_properties(key: str) -> bytes:
    """Return the properties of a message that has only a key."""
    return _format_keys(key, ()).encode() if key else b""


@lru_cache(maxsize=256)
def tag_properties(tag: str) -> bytes:
    """Return the properties of a message that has only a tag. The latest results are cached, because tags repeat.

    Raises:
        TypeError, ValueError: *tag* is not a text, or UTF-8 cannot encode it.
        LocalProtocolError: the tag cannot be sent unchanged; the text says why.
    """
    check_text("tags", tag)
    return _format_tag(tag).encode() if tag else b""


def all_properties(messages: Sequence[Message]) -> list[bytes]:
    """Return for each message the properties that follow its id, and check that all can be sent unchanged.

    Raises:
        TypeError: an item is not a message, or a field of it has a wrong type.
        LocalProtocolError: a message cannot be sent unchanged; the text says why.
    """
    texts = [b"" if is_plain(message) else message_properties(message).encode() for message in messages]
    for one_of_its_topic in {message.topic: message for message in messages}.values():
        message_properties(one_of_its_topic)
    check_body_size(max((len(message.body) for message in messages), default=0))
    check_properties_size(UNIQUE_KEY_SIZE_MAX + max(map(len, texts), default=0))
    return texts


def is_plain(message: Message) -> bool:
    """Return whether *message* has only a topic and a body: then it has no properties and needs no checks."""
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
    """Check that brokers accept a body of *size* bytes.

    Raises:
        LocalProtocolError: the body is too large.
    """
    if size > size_max:
        raise LocalProtocolError(f"the body has {size} bytes; at most {size_max} are allowed")


def check_properties_size(size: int) -> None:
    """Check that properties of *size* bytes, including the id, can be stored.

    Raises:
        LocalProtocolError: the properties are too large.
    """
    if size > PROPERTIES_SIZE_MAX:
        raise LocalProtocolError(f"the properties have {size} bytes; at most {PROPERTIES_SIZE_MAX} can be stored")


def _format_keys(key: str | None, keys: tuple[str, ...]) -> str:
    """Return the properties for the key, which chooses the queue, and for all keys by which to find the message."""
    # A key that contains blanks is indexed word by word, as in upstream's index.
    joined = KEY_SEPARATOR.join(keys if key is None else (key, *keys))
    _check_text("key", joined)
    sharding = f"{names.SHARDING_KEY}\x01{key}\x02" if key else ""
    return f"{names.KEYS}\x01{joined}\x02{sharding}"


def _format_tag(tag: str) -> str:
    _check_text("tag", tag)
    return f"{names.TAGS}\x01{tag}\x02"


def _check_text(field: str, text: str) -> None:
    if NAME_END in text or VALUE_END in text:
        raise LocalProtocolError(f"the {field} {text!r} contains a separator of properties (\\x01 or \\x02)")
