"""Data sources that do next to nothing: what is left of a query is Spark's own work, and no source can be faster.

The reader yields one ready-made batch again and again; the writer throws rows away.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

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
    """Yields as many rows as are asked for, in as many tasks as our source would have."""

    def __init__(self, rows: int, tasks: int, file: str) -> None:
        self._rows, self._tasks, self._file = rows, tasks, file

    def partitions(self) -> list[InputPartition]:
        ends = [self._rows * n // self._tasks for n in range(self._tasks + 1)]
        return [InputPartition(end - start) for start, end in itertools.pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = int(partition.value)
        batch = read_batch(self._file)
        while left > 0:
            yield batch.slice(0, left)
            left -= len(batch)


class BareWriter(DataSourceArrowWriter):
    """Takes every batch and forgets it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Bare(DataSource):
    """`format("bare")`; its columns are those of the batch in the option `file`."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> StructType:
        return from_arrow_schema(read_batch(self.options["file"]).schema)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return BareReader(int(self.options["rows"]), int(self.options["tasks"]), self.options["file"])

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002, FBT001
        return BareWriter()


def keep_batch(batch: pa.RecordBatch, file: str) -> None:
    """Keep *batch* where `read_batch` finds it."""
    with pa.OSFile(file, "wb") as out, pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)


def read_batch(file: str) -> pa.RecordBatch:
    """Return the batch that was kept."""
    with pa.OSFile(file) as source:
        return pa.ipc.open_stream(source).read_next_batch()
