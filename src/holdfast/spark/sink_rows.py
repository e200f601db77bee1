"""From Arrow batches to messages, each with the queue that its key decides on.

    key ─> Java's hash of the text ─> abs(h % N) ─> logical queue        as every client of ours does it, and Java's
    no key ─> the queues in turn, from one that depends on the partition

Pure: knows neither brokers nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.client.send_plan import queue_for_key
from holdfast.model import property_names as names
from holdfast.model.errors import HoldfastError
from holdfast.model.queue import MessageQueue
from holdfast.spark.sink_options import BODIES
from holdfast.wire.properties import NAME_END, PROPERTIES_SIZE_MAX, VALUE_END

Row = tuple[bytes, bytes]
"""Body and properties of a message."""


class BadRow(HoldfastError):
    """A row cannot be a message; the text says why."""


@dataclass(slots=True)
class QueueChoice:
    """Chooses the queue of each message.

    Args:
        queues: Of each topic.
        turn: Whose turn it is among messages without a key.
    """

    queues: Mapping[str, tuple[MessageQueue, ...]]
    turn: int = 0
    _known: dict[tuple[str, str], MessageQueue] | None = None

    def choose(self, topic: str, key: str | None) -> MessageQueue:
        """Return where a message goes."""
        queues = self.queues[topic]
        if key is None:
            self.turn += 1
            return queues[self.turn % len(queues)]
        if self._known is None or len(self._known) > 100_000:
            self._known = {}
        found = self._known.get((topic, key))
        if found is None:
            found = self._known[topic, key] = queue_for_key(key, queues)
        return found


def to_rows(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, str | None, Row]]:
    """Yield the topic, the key and the message of each row.

    Raises:
        BadRow: one cannot be a message.
    """
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing: list[Any] = [None] * batch.num_rows
    bodies = next(columns[name] for name in BODIES if name in columns)
    topics = columns.get("topic") or nothing
    rows = zip(
        bodies,
        columns.get("key") or nothing,
        columns.get("tags") or nothing,
        columns.get("properties") or nothing,
        topics,
        strict=True,
    )
    for body, raw_key, tags, properties, own_topic in rows:
        if not body:
            raise BadRow("a row has no body, or an empty one, which is no message")
        place = own_topic or topic
        if place is None:
            raise BadRow("a row names no topic, and there is no option 'topic'")
        key = raw_key if raw_key is None or isinstance(raw_key, str) else _to_text(raw_key)
        message = body.encode() if isinstance(body, str) else body
        yield place, key, (message, _properties(key, tags, properties))


def _to_text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.decode("latin-1")


def _properties(key: str | None, tags: str | None, more: Iterable[tuple[str, str]] | None) -> bytes:
    """Return the properties of a message, as stored."""
    text = ""
    if key:
        text = f"{names.KEYS}\x01{key}\x02{names.SHARDING_KEY}\x01{key}\x02"
    if tags:
        text += f"{names.TAGS}\x01{tags}\x02"
    count = bool(key) * 2 + bool(tags)
    for name, value in more or ():
        if name in names.RESERVED:
            continue  # What a row brings along from a topic it was read from is this topic's to say.
        if name and value:
            text += f"{name}\x01{value}\x02"
            count += 1
    if text.count(VALUE_END) != count or text.count(NAME_END) != count:
        raise BadRow(f"a key, a tag or a property holds a separator of properties (\\x01 or \\x02): {text!r}")
    raw = text.encode()
    if len(raw) > PROPERTIES_SIZE_MAX:
        raise BadRow(f"the properties of a row have {len(raw)} bytes, at most {PROPERTIES_SIZE_MAX} can be stored")
    return raw
