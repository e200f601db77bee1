"""The processor time of each accelerated function, in Python and compiled, in one process.

    python -m benchmarks.native [--rounds 200]

Python and the extension take turns. Each figure is the median over all rounds, in nanoseconds per message, key or row.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast import native
from holdfast.columns import records
from holdfast.store.keys import key_links, key_scan
from holdfast.store.log import batch_records
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.inner_batch import INNER_BATCH
from holdfast.wire.records.record import LAYOUTS, MAGIC_V1, StoredRecord, encode_record

COUNT: Final = 256
SLOTS: Final = 5_000_000
KEY: Final = b"UNIQ_KEY\x017F0000010000251A69D70A1B%08X\x02WAIT\x01true\x02TAGS\x01TagA\x02"
HOST: Final = bytes(8)
HEAD: Final = LAYOUTS[0].pack(0, MAGIC_V1, 0, 3, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, 0)

KINDS: Final = ("python", "native")
Work = Callable[[str], object]
"""One round with the functions of a kind. The preparation of a round is not measured."""


def find(kind: str, function: Callable[..., object]) -> Any:
    """Return *function* of a kind."""
    name = function.__name__
    return native.REFERENCES[name] if kind == "python" else getattr(native.EXTENSION, name)


def a_log(count: int, sizes: list[int], properties: Callable[[], bytes], sys_flag: int = 0) -> bytes:
    """Return *count* records with bodies of these sizes in rotation."""
    data = bytearray()
    for number in range(count):
        body = (
            encode_items([(0, bytes(sizes[0]), properties()) for _ in range(100)])
            if sys_flag
            else bytes(sizes[number % len(sizes)])
        )
        text = b"" if sys_flag else properties()
        record = StoredRecord(
            0, len(data), "TopicTest", 1, number, 0, sys_flag, 5, HOST, 1000 + number, HOST, 0, 0, 0, body, text
        )
        data += encode_record(record)
    return bytes(data)


def index_rounds(sys_flag: int, count: int) -> Iterator[Work]:
    """Yield rounds that find the keys of a log and link them into the slots of an index file."""
    chance = random.Random(1)
    # Filled before: the first touch of a page would cost more than the key.
    tables = {kind: memoryview(bytearray(4 * SLOTS)) for kind in KINDS}
    dirty = bytearray(-(-SLOTS // 64))
    while True:
        data = memoryview(a_log(count, [1024], lambda: KEY % chance.getrandbits(32), sys_flag))

        def work(kind: str, data: memoryview = data) -> None:
            keys, _, _ = find(kind, key_scan.scan_keys)(data, 0, 1 << 20)
            find(kind, key_links.link_keys)(tables[kind], dirty, 64, keys, 1000, 0)

        yield work


def batch_rounds(size: int) -> Iterator[Work]:
    """Yield rounds that make records of a batch of 100."""
    chance = random.Random(1)
    while True:
        batch = encode_items([(0, chance.randbytes(size), KEY % number) for number in range(100)])
        yield lambda kind, batch=batch: find(kind, batch_records.pack_items)(
            batch, HEAD, b"\x09TopicTest", 0, 0, 1 << 30, 1 << 22
        )


def column_rounds(size: int) -> Iterator[Work]:
    """Yield rounds that read the fields of single records."""
    chance = random.Random(1)
    block = a_log(1000, [size, size + 1], lambda: KEY % chance.getrandbits(32))
    while True:
        yield lambda kind: find(kind, records.measure_records)(block)


def checksum_rounds(size: int) -> Iterator[Work]:
    """Yield rounds that check bodies of two sizes."""
    block = a_log(1000, [size, size + 1], lambda: b"")
    found = records.read_records(block)
    columns = (found.body_starts.tobytes(), found.body_sizes.tobytes(), found.crcs.tobytes())
    while True:
        yield lambda kind: find(kind, records.match_bodies)(block, *columns)


def measure(rounds: Iterator[Work], count: int, number: int) -> dict[str, float]:
    """Return the median time of both kinds of functions."""
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(number):
        work = next(rounds)
        for kind in KINDS if turn % 2 else KINDS[::-1]:
            start = time.thread_time_ns()
            work(kind)
            spent[kind].append((time.thread_time_ns() - start) / count)
    return {kind: statistics.median(figures) for kind, figures in spent.items()}


CELLS: Final[dict[str, tuple[Callable[[], Iterator[Work]], int]]] = {
    "keys of single records: find, hash, index": (lambda: index_rounds(0, COUNT), COUNT),
    "keys of Java's inner batches of 100": (lambda: index_rounds(INNER_BATCH, 2), 200),
    "outer batch of 100 x 1 KiB into records": (lambda: batch_rounds(1024), 100),
    "outer batch of 100 x 100 B into records": (lambda: batch_rounds(100), 100),
    "fields of records of 100 B and 101 B": (lambda: column_rounds(100), 1000),
    "fields of records of 1 KiB and 1,025 B": (lambda: column_rounds(1024), 1000),
    "checksums of bodies of 1 KiB and 1,025 B": (lambda: checksum_rounds(1024), 1000),
}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    if native.EXTENSION is None:
        print(f"nothing to compare: {native.DESCRIPTION}")
        return 1
    print("| ns | Python | native | ratio |\n|---|---|---|---|")
    for name, (make, count) in CELLS.items():
        found = measure(make(), count, rounds)
        python, compiled = found["python"], found["native"]
        print(f"| {name} | {python:,.0f} | {compiled:,.0f} | {python / compiled:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
