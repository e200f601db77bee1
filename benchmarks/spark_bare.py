"""Data sources that do almost nothing: a query then takes only Spark's time, and no source can be faster.

The reader yields ready-made batches from memory: either all rows, each once, as any real source must; or only the first
batch repeatedly, which never leaves the processor's cache. The writer discards rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


class BareReader(DataSourceReader):
    """Yields the rows of a file, in as many tasks as our source would have."""

    def __init__(self, file: str, tasks: int, repeated_rows: int | None) -> None:
        self._file, self._tasks, self._repeated_rows = file, tasks, repeated_rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self._repeated_rows is None:
            batches = read_batches(self._file)
            first, last = (len(batches) * number // self._tasks for number in (partition.value, partition.value + 1))
            yield from batches[first:last]
            return
        (batch,) = read_batches(self._file, 1)
        remaining = self._repeated_rows // self._tasks
        while remaining > 0:
            yield batch.slice(0, remaining)
            remaining -= len(batch)


class BareWriter(DataSourceArrowWriter):
    """Discards every batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Bare(DataSource):
    """`format("bare")`: the rows of the option `file`, each once, or the first batch until there are `again` rows."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> StructType:
        with pa.OSFile(self.options["file"]) as source:
            return from_arrow_schema(pa.ipc.open_stream(source).schema)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        again = self.options.get("again")
        return BareReader(self.options["file"], int(self.options["tasks"]), None if again is None else int(again))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002, FBT001
        return BareWriter()


def store_batches(batches: Iterable[pa.RecordBatch], file: str) -> None:
    """Store *batches*, at least one, for `read_batches`."""
    first, *rest = batches
    with pa.OSFile(file, "wb") as out, pa.ipc.new_stream(out, first.schema) as stream:
        for batch in (first, *rest):
            stream.write_batch(batch)


@lru_cache(maxsize=3)
def read_batches(file: str, count: int | None = None) -> list[pa.RecordBatch]:
    """Return the stored batches, or the first *count*. They stay in memory: reading the file is not measured."""
    with pa.OSFile(file) as source:
        return list(islice(pa.ipc.open_stream(source), count))
