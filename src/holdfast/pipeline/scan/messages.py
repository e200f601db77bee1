"""Opens the records of a log as messages: one row per message, including those in batches stored as one record.

A batch that is damaged or cannot be opened is left out and reported; the other records are still read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.columns.inner_batches import are_batches, open_batches
from holdfast.columns.records import Records, find_valid_bodies
from holdfast.columns.slices import Block
from holdfast.model.errors import UnreadableBatch


def open_records(
    block: Block, records: Records, unreadable: list[UnreadableBatch] | None = None
) -> Iterator[tuple[Block, Records]]:
    """Yield rows, one per message of *records*, each with the block that contains them; in parts if there are many.

    Args:
        block: The bytes that contain the records.
        records: The records of one queue, in order.
        unreadable: Receives an error for each batch that cannot be opened.
    """
    is_batch = are_batches(records)
    if not is_batch.any():
        yield block, records
        return
    errors: list[UnreadableBatch] = [] if unreadable is None else unreadable
    is_valid = np.ones(len(records), dtype=np.bool_)
    is_valid[is_batch] = find_valid_bodies(block, records.select(is_batch))
    damaged = records.offsets[~is_valid].tolist()
    errors += [UnreadableBatch(offset, "the checksum of its body is wrong") for offset in damaged]
    yield from open_batches(block, records if is_valid.all() else records.select(is_valid), errors)
