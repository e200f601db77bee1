"""Decodes the body of a pull answer into the messages that applications receive.

Verifies the checksum of every record. Uncompresses bodies, opens batches that a broker stored whole, and gives retried
messages the name of their original topic. Properties are parsed on first access.

Pure: bytes in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.client.messages.namespace import without_namespace
from holdfast.model import property_names as names
from holdfast.model.errors import RemoteProtocolError, UnreadableBatch
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import LogicalOffset, MessageQueue, Position
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.records.compression import CODEC_MASK, COMPRESSED, decompress
from holdfast.wire.records.inner_batch import is_inner_batch, unwrap_items
from holdfast.wire.records.properties import find_property, parse_properties
from holdfast.wire.records.record import StoredRecord, decode_records

UNCOMPRESSED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Once the compressed bodies of an answer have yielded this many bytes, the rest is left for another pull."""
_RETRY_TOPIC: Final = names.RETRY_TOPIC.encode()


class LazyProperties(Mapping[str, str]):
    """Properties that are parsed on first access."""

    __slots__ = ("_parsed", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._parsed: dict[str, str] | None = None

    def _read(self) -> dict[str, str]:
        if self._parsed is None:
            # An unknown producer may have written any bytes. Invalid UTF-8 must not make the message unconsumable.
            self._parsed = parse_properties(self._raw.decode("utf-8", "replace"))
        return self._parsed

    def __getitem__(self, name: str) -> str:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())


def read_messages(
    body: bytes,
    queue: MessageQueue | None,
    *,
    namespace: str | None = None,
    offset_delta: int = 0,
    unreadable: list[UnreadableBatch] | None = None,
) -> list[ReceivedMessage]:
    """Return the messages in the body of an answer, in order.

    Args:
        body: Records, one after another.
        queue: The queue that was pulled. None uses each record's own topic and queue id, without a broker name.
        namespace: Removed from the topics.
        offset_delta: Added to every offset, to convert physical offsets to logical ones.
        unreadable: Collects the errors of batches that cannot be opened; none of their messages are returned.
            Without this list the first error is raised.

    Raises:
        CorruptRecord: the checksum or the structure of a record is wrong.
        UnreadableBatch: a batch that was stored whole cannot be opened.
    """
    found: list[UnreadableBatch] = []
    messages, _ = read_limited(
        body, queue, unreadable=found if unreadable is None else unreadable, namespace=namespace,
        offset_delta=offset_delta, uncompressed_max=None,
    )  # fmt: skip
    if found:
        raise found[0]
    return messages


def read_limited(
    body: bytes,
    queue: MessageQueue | None,
    *,
    unreadable: list[UnreadableBatch],
    namespace: str | None = None,
    offset_delta: int = 0,
    uncompressed_max: int | None = UNCOMPRESSED_BYTES_MAX,
) -> tuple[list[ReceivedMessage], LogicalOffset | None]:
    """Return the messages of the first records, and the offset of the first record that was not read.

    That offset is usually None. But a few kilobytes may uncompress to gigabytes: once the compressed bodies have
    yielded more than *uncompressed_max* bytes, the rest is left for another pull.

    Raises:
        CorruptRecord: the checksum or the structure of a record is wrong.
    """
    messages: list[ReceivedMessage] = []
    uncompressed = 0
    for record in decode_records(body):
        is_compressed = record.sys_flag & COMPRESSED
        if is_compressed and uncompressed_max is not None and uncompressed > uncompressed_max:
            return messages, LogicalOffset(record.offset + offset_delta)
        before = len(messages)
        source = queue or MessageQueue(record.topic, "", record.queue_id)
        if is_inner_batch(record.sys_flag):
            try:
                messages += _open_batch(record, source, namespace, offset_delta)
            except UnreadableBatch as error:
                unreadable.append(error)
        else:
            message = _to_message(record, source, namespace, LogicalOffset(record.offset + offset_delta))
            messages.append(message)
        if is_compressed:
            uncompressed += sum([len(message.body) for message in messages[before:]])
    return messages, None


def _to_message(
    record: StoredRecord, queue: MessageQueue, namespace: str | None, offset: LogicalOffset
) -> ReceivedMessage:
    body, sys_flag = record.body, record.sys_flag
    if sys_flag & COMPRESSED:
        body, sys_flag = _uncompress(record)
    return ReceivedMessage(
        _topic_of(record, namespace),
        bytes(body),
        queue,
        offset,
        LazyProperties(record.properties),
        record.born_ms,
        record.store_ms,
        record.reconsume_times,
        record.flag,
        sys_flag,
        Position(record.position),
        record.born_host,
        record.store_host,
        record.prepared_position,
    )


def _topic_of(record: StoredRecord, namespace: str | None) -> str:
    topic = record.topic
    if topic.startswith(RETRY_PREFIX):
        origin_topic = find_property(record.properties, _RETRY_TOPIC)
        topic = topic if origin_topic is None else origin_topic.decode("utf-8", "replace")
    return without_namespace(namespace, topic) if namespace else topic


def _uncompress(record: StoredRecord) -> tuple[bytes, int]:
    """Return the uncompressed body and the flag without its compression bits; both as stored if that fails.

    The checksum was right, so the producer sent it like that. Deliver it, or no consumer would ever receive it.
    """
    try:
        return decompress(record.body, record.sys_flag), record.sys_flag & ~(COMPRESSED | CODEC_MASK)
    except RemoteProtocolError:
        return bytes(record.body), record.sys_flag


def _open_batch(
    record: StoredRecord, queue: MessageQueue, namespace: str | None, offset_delta: int
) -> list[ReceivedMessage]:
    first, position = record.offset + offset_delta, Position(record.position)
    try:
        items = unwrap_items(record.body, record.sys_flag, record.properties)
    except RemoteProtocolError as error:
        raise UnreadableBatch(first, str(error)) from error
    topic = _topic_of(record, namespace)
    sys_flag = record.sys_flag & ~(COMPRESSED | CODEC_MASK)
    return [
        ReceivedMessage(
            topic,
            bytes(body),
            queue,
            LogicalOffset(first + index),
            LazyProperties(properties),
            record.born_ms,
            record.store_ms,
            0,
            flag,
            sys_flag,
            position,
            record.born_host,
            record.store_host,
        )
        for index, (flag, body, properties) in enumerate(items)
    ]
