"""From the bytes of a pull answer to Arrow: single records beside batches that were kept whole. Needs pyarrow.

    python -m benchmarks.columns        one core, some seconds; prints a table

An answer has about a megabyte. Every message has an id, a key and a tag, as our producer writes them. Compressed bodies
are words out of a few hundred, others are random. The figure is processor time, the best of several turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from benchmarks.tables import number, table

from holdfast.columns.message_columns import TYPES, RecordOrigin, RowSelection, to_batches
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import wrap_items
from holdfast.wire.records.record import StoredRecord, encode_record

ANSWER_BYTES: Final = 1_000_000
TURNS: Final = 9
HOST: Final = bytes(8)
ORIGIN: Final = RecordOrigin("orders", 0, "broker-a", 1)
COLUMNS: Final = {"all columns": tuple(TYPES), "key, body, offset": ("key", "body", "offset"), "body": ("body",)}
Bodies = Callable[[], bytes]


def main() -> None:
    for size in (100, 1024):
        rows = [[name, *rates] for name, rates in measure(size, Random(size))]
        sys.stdout.write(table([f"{size:,} bytes, messages/s", *COLUMNS], rows) + "\n\n")


def measure(size: int, random: Random) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each kind of answer, and how many of its messages per second become columns."""
    words = [b"%08x" % random.getrandbits(32) for _ in range(300)]

    def even() -> bytes:
        return random.randbytes(size)

    def uneven() -> bytes:
        return random.randbytes(random.randrange(size // 2, size * 3 // 2))

    def texts() -> bytes:
        return b"".join(random.choices(words, k=size // 8))

    kinds: list[tuple[str, int, Bodies, Codec | None]] = [
        ("single records", 0, even, None),
        ("single records of many sizes", 0, uneven, None),
        *((f"batches of {count}", count, even, None) for count in (10, 100, 1000)),
        *((f"batches of {count}, many sizes", count, uneven, None) for count in (10, 100, 1000)),
        *((f"batches of 100, {codec.name.lower()}", 100, texts, codec) for codec in Codec),
    ]
    for name, count, body, codec in kinds:
        block, messages = make_answer(count, body, codec)
        yield name, [number(messages / best_s(block, messages, columns)) for columns in COLUMNS.values()]


def best_s(block: bytes, messages: int, columns: tuple[str, ...]) -> float:
    """Return the best processor time for one answer, in seconds."""
    best = float("inf")
    for _ in range(TURNS):
        begun_s = time.process_time()
        rows = sum(batch.num_rows for batch in to_batches(block, ORIGIN, RowSelection(columns, 0, 1 << 62)))
        best = min(best, time.process_time() - begun_s)
        assert rows == messages
    return best


def make_answer(count: int, body: Bodies, codec: Codec | None) -> tuple[bytes, int]:
    """Return an answer with batches of *count* messages (0: single records), and its number of messages."""
    records: list[bytes] = []
    size = offset = 0
    while size < ANSWER_BYTES:
        if count:
            items = encode_items([(0, body(), properties_of(offset + step)) for step in range(count)])
            keys = [f"key-{step % 997}" for step in range(offset, offset + count)]
            whole = wrap_items(items, count, f"{offset:032X}", keys=keys, tags=["blue"], codec=codec)
            records.append(record_of(offset, whole.body, whole.properties.encode(), whole.sys_flag))
        else:
            records.append(record_of(offset, body(), properties_of(offset), 0))
        offset += count or 1
        size += len(records[-1])
    return b"".join(records), offset


def properties_of(offset: int) -> bytes:
    key = offset % 997
    text = f"UNIQ_KEY\x01{offset:032X}\x02KEYS\x01key-{key}\x02__SHARDINGKEY\x01key-{key}\x02TAGS\x01blue\x02"
    return text.encode()


def record_of(offset: int, body: bytes, properties: bytes, sys_flag: int) -> bytes:
    return encode_record(
        StoredRecord(
            size=0, position=0, topic="orders", queue_id=0, offset=offset, flag=0, sys_flag=sys_flag, born_ms=1,
            born_host=HOST, store_ms=1, store_host=HOST, reconsume_times=0, prepared_position=0, body_crc=0,
            body=body, properties=properties,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
