"""Batches that are kept whole, put into the store of a broker desk as its topic's producers would send them."""

from __future__ import annotations

import msgspec
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.stores import HOST

from holdfast.model import property_names as names
from holdfast.model.java_hash import java_hash
from holdfast.model.topic import BATCH_QUEUE
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import wrap_items
from holdfast.wire.records.properties import find_property

BATCH_ATTRIBUTES = {"queue.type": "BatchCQ"}
JAVA_4 = ("JAVA", 407)
JAVA_5 = ("JAVA", 513)


class Item(msgspec.Struct, frozen=True):
    """A message of a batch."""

    body: bytes
    unique_key: str
    tags: str | None = None
    keys: str = ""
    flag: int = 0

    @property
    def properties(self) -> bytes:
        """As the item has them."""
        text = f"UNIQ_KEY\x01{self.unique_key}\x02"
        text += f"TAGS\x01{self.tags}\x02" if self.tags else ""
        text += f"KEYS\x01{self.keys}\x02" if self.keys else ""
        return text.encode()


def a_batch_harness(**options: object) -> BrokerHarness:
    """Return a desk with a topic T, whose index is by record."""
    harness = BrokerHarness(**options)  # type: ignore[arg-type]
    host_batches(harness)
    return harness


def host_batches(harness: BrokerHarness, topic: str = "T") -> None:
    """Host a topic whose index is by record."""
    harness.make_topic(topic, attributes=BATCH_ATTRIBUTES)
    harness.store.set_queue_type(topic, BATCH_QUEUE)


def make_items(start: int, count: int, *, tags: tuple[str | None, ...] = (None,), size: int = 3) -> list[Item]:
    """Return *count* messages that say their number, from *start* on; tags in turn."""
    return [
        Item(b"%0*d" % (size, number), f"U{number}", tags[number % len(tags)], f"k{number}", number % 7)
        for number in range(start, start + count)
    ]


def put_batch(
    harness: BrokerHarness, batch: list[Item], *, codec: Codec | None = None, queue: int = 0, topic: str = "T"
) -> int:
    """Store a batch as one record; return its position."""
    body = encode_items([(item.flag, item.body, item.properties) for item in batch])
    tags = [item.tags for item in batch]
    keys = [item.keys for item in batch if item.keys]
    record = wrap_items(body, len(batch), f"B{batch[0].unique_key}", keys=keys, tags=tags, codec=codec)
    return put_record(harness, record.body, record.properties.encode(), record.sys_flag, queue=queue, topic=topic)


def put_record(
    harness: BrokerHarness, body: bytes, properties: bytes, sys_flag: int = 0, *, queue: int = 0, topic: str = "T"
) -> int:
    """Store any record, and let those know who wait for it; return its position."""
    store, now_ms = harness.store, harness.now_ms
    tag = find_property(properties, names.TAGS.encode())
    code = 0 if tag is None else java_hash(tag.decode())
    log = store.queue(topic, queue)
    position, _ = store.stage(log, body, properties, 5, sys_flag, now_ms - 1, HOST, code, now_ms)
    store.write()
    store.confirm(store.written)
    return position
