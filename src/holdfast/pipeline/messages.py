"""Records of a log as messages: one row each, also of those that came in a batch that was kept whole.

The one place of the pipeline that opens batches. A batch that cannot be opened is left out and told of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.model.errors import RemoteProtocolError
from holdfast.spark.records import Records
from holdfast.spark.slices import Block
from holdfast.store.dispatch import INNER_BITS
from holdfast.wire.inner_batch import unwrap_items
from holdfast.wire.record import body_crc


def open_records(block: Block, records: Records, broken: list[int] | None = None) -> tuple[Block, Records]:
    """Return a row for each message of *records*, and the block that they lie in.

    Args:
        block: What the records lie in.
        records: The records, in order.
        broken: Gets the offset of every batch that cannot be opened.
    """
    is_batch = (records.flags & INNER_BITS) == INNER_BITS
    if not is_batch.any():
        return block, records
    opener = _Opener(block, records)
    for row, opens in enumerate(is_batch.tolist()):
        if not opens:
            opener.keep(row)
        elif not opener.open(row) and broken is not None:
            broken.append(int(records.offsets[row]))
    return opener.finish()


class _Opener:
    """Puts bodies and properties one behind the other, anew."""

    def __init__(self, block: Block, records: Records) -> None:
        self._view = memoryview(block)
        self._records = records
        self._pieces: list[bytes | memoryview] = []
        self._rows: list[int] = []
        self._columns: dict[str, list[int]] = {
            name: []
            for name in (
                "offsets", "flags", "crcs", "body_starts", "body_sizes", "properties_starts", "properties_sizes",
            )
        }  # fmt: skip
        self._size = 0

    def keep(self, row: int) -> None:
        """Take a record that is one message."""
        records = self._records
        body = self._slice(records.body_starts[row], records.body_sizes[row])
        properties = self._slice(records.properties_starts[row], records.properties_sizes[row])
        self._add(row, int(records.offsets[row]), int(records.flags[row]), int(records.crcs[row]), body, properties)

    def open(self, row: int) -> bool:
        """Take the messages of a batch; False if it cannot be opened."""
        records = self._records
        flag = int(records.flags[row])
        body = self._slice(records.body_starts[row], records.body_sizes[row])
        properties = bytes(self._slice(records.properties_starts[row], records.properties_sizes[row]))
        try:
            items = unwrap_items(body, flag, properties)
        except RemoteProtocolError:
            return False
        for number, (_, mine, own) in enumerate(items):
            # Uncompressed, and a message of its own: nothing is left of the batch.
            self._add(row, int(records.offsets[row]) + number, 0, body_crc(mine), mine, own)
        return True

    def finish(self) -> tuple[Block, Records]:
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.array(values, dtype=np.int32 if name in {"flags", "crcs"} else np.int64)
            for name, values in self._columns.items()
        }
        return b"".join(self._pieces), replace(self._records.select(np.array(self._rows, dtype=np.int64)), **columns)

    def _slice(self, start: np.int64, size: np.int64) -> memoryview:
        return self._view[int(start) : int(start + size)]

    def _add(
        self, row: int, offset: int, flag: int, crc: int, body: memoryview, properties: bytes | memoryview
    ) -> None:
        start, middle = self._size, self._size + len(body)
        self._pieces += (body, properties)
        self._size = middle + len(properties)
        self._rows.append(row)
        for column, value in zip(
            self._columns.values(), (offset, flag, crc, start, len(body), middle, len(properties)), strict=True
        ):
            column.append(value)
