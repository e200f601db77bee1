"""The rows that Spark is measured with. Needs pyarrow.

    python -m benchmarks.spark_rows NAMESRV TOPIC FILE      stores the topic's rows for the bare source

Keys repeat and determine the queue. Bodies are random and all different: none can be compressed, and no file format can
store equal ones once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet
from benchmarks.spark_bare import store_batches

from holdfast import arrow

KEYS: Final = 997
FILES: Final = 4
BATCH_ROWS: Final = 8192
POOL_BYTES: Final = 64 << 20
BARE: Final = {"": arrow.COLUMNS, "-slim": ("body", "offset")}


def write_rows(folder: Path, rows: int, size: int) -> None:
    """Write *rows* rows with a key and a value of *size* bytes, as files of equal length below *folder*."""
    folder.mkdir(parents=True)
    pool = os.urandom(min(POOL_BYTES, rows * size))
    bodies = len(pool) // size
    for number in range(FILES):
        numbers = range(rows * number // FILES, rows * (number + 1) // FILES)
        starts = [n % bodies * size for n in numbers]
        table = pa.table(
            {
                "key": pa.array([f"key-{n % KEYS}" for n in numbers], pa.string()),
                "value": pa.array([pool[start : start + size] for start in starts], pa.binary()),
            }
        )
        pa.parquet.write_table(table, folder / f"{number}.parquet", compression="none", use_dictionary=False)


def store_bare_rows(namesrv: str, topic: str, file: str) -> None:
    """Store the rows of *topic* for the bare source, with all columns in *file* and with two in *file*-slim."""
    for ending, columns in BARE.items():
        rows = pa.Table.from_batches(arrow.read(namesrv, topic, columns=columns))
        store_batches(rows.combine_chunks().to_batches(BATCH_ROWS), file + ending)


if __name__ == "__main__":
    store_bare_rows(*sys.argv[1:])
