"""Survey the index of a topic before its conversion: find the bounds of its queues, and plan the pieces.

    files      ... | 0 0 gone gone | m m m blank m m | m m 0 0 ...     first: the first m; end: after the last
    pieces                           [m m m blank) [m m m m)         each with its first entry in the new index

Pieces of all queues are in the order of the log, so that it is read once, from start to end. The survey refuses an
index that the other kind cannot represent. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.model.errors import StoreError
from holdfast.store.base.disk import Disk
from holdfast.store.base.log_file import file_name, parse_names
from holdfast.store.conversion.entry_conversion import read_message_entries, read_record_entries, require_narrow_gaps
from holdfast.store.conversion.record_headers import RecordHeaders
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, QueueIndex
from holdfast.store.queues.queue_table import find_entry_end, find_entry_min
from holdfast.store.recovery.conversion_plan import (
    PIECE_SIZE,
    ConversionPlan,
    ConvertedKind,
    IndexLayout,
    PiecePlan,
    SourceQueue,
    kind_before,
)


def survey(disk: Disk, layout: IndexLayout, to: ConvertedKind, headers: RecordHeaders) -> list[SourceQueue]:
    """Return the queues of the index at *layout* that have entries.

    Raises:
        StoreError: a file is not a valid index, or the other kind of index cannot represent a queue.
    """
    files = layout.open(disk)
    topic = layout.folder.rpartition("/")[2]
    found: list[SourceQueue] = []
    for name in disk.list(layout.folder):
        if not name.endswith("/") or not name[:-1].isdecimal():
            continue
        queue = kind_before(to)(files, topic, int(name[:-1]))
        if _attach_files(disk, queue) and (source := _survey_queue(queue, headers)) is not None:
            found.append(source)
    return sorted(found, key=lambda queue: queue.queue_id)


def _attach_files(disk: Disk, queue: QueueIndex) -> bool:
    """Load the existing files into *queue*. Return False if there are none."""
    starts = parse_names(disk.list(queue.folder))
    size = queue.files.file_size
    for number, start in enumerate(starts):
        if start != starts[0] + number * size or disk.find_size(f"{queue.folder}/{file_name(start)}") != size:
            raise StoreError(
                f"{queue.folder}/{file_name(start)} is not where it should be, or has a wrong size: start a broker on "
                "the folder once to repair that"
            )
    if starts:
        queue.attach_files(starts[0], starts[-1] + size)
        queue.set_end(find_entry_end(queue, lambda _position, size: size > 0))
    return bool(starts)


def _survey_queue(queue: QueueIndex, headers: RecordHeaders) -> SourceQueue | None:
    first, end = find_entry_min(queue, headers.files.start), queue.entry_end
    is_empty = end == queue.first_file // queue.files.entry_size
    if is_empty and not queue.offset_max:
        return None
    last = (
        b"" if is_empty else queue.files.read(queue.folder, (end - 1) * queue.files.entry_size, queue.files.entry_size)
    )
    position, size = queue.parse_location(last) if last else (0, BLANK_ENTRY_SIZE)
    if size == BLANK_ENTRY_SIZE:
        raise StoreError(
            f"queue {queue.queue_id} of topic {queue.topic} continues at offset {queue.offset_max}, but the other kind "
            "of index cannot store that offset without a message: send one to this queue first"
        )
    is_gone = first == end
    return SourceQueue(
        queue_id=queue.queue_id,
        first=end - 1 if is_gone else first,
        end=end,
        is_gone=is_gone,
        last=last,
        last_ms=0 if is_gone else headers.store_times([position])[0],
    )


def plan_pieces(
    disk: Disk,
    source: IndexLayout,
    target: IndexLayout,
    to: ConvertedKind,
    queues: list[SourceQueue],
    piece_size: int = PIECE_SIZE,
) -> ConversionPlan:
    """Return the plan of the whole conversion.

    Raises:
        StoreError: a record holds more than one message, but the new kind allows only one; the text names it.
    """
    files = source.open(disk)
    topic = source.folder.rpartition("/")[2]
    placed: list[tuple[int, PiecePlan]] = []
    spans: dict[int, tuple[int, int]] = {}
    for queue in queues:
        split = _split_message_entries if to == "batch" else _split_record_entries
        folder = f"{source.folder}/{queue.queue_id}"
        pieces = list(split(files, folder, queue, piece_size))
        spans[queue.queue_id] = pieces[0][1].target, pieces[-1][2]
        placed += [(position, piece) for position, piece, _ in pieces]
    return ConversionPlan(
        topic=topic,
        to=to,
        source_file_size=source.file_size,
        target_file_size=target.file_size,
        queues=queues,
        spans=spans,
        pieces=[
            msgspec.structs.replace(piece, number=number)
            for number, (_, piece) in enumerate(sorted(placed, key=lambda pair: pair[0]))
        ],
    )


_SplitPieces = Iterator[tuple[int, PiecePlan, int]]
"""The position of a piece's first record, the piece, and the number after its last entry in the new index."""


def _split_message_entries(files: QueueFiles, folder: str, queue: SourceQueue, piece_size: int) -> _SplitPieces:
    target = 0
    for start in range(queue.first, queue.end, piece_size):
        end = min(start + piece_size, queue.end)
        entries = files.read(folder, start * files.entry_size, (end - start) * files.entry_size)
        count = len(read_message_entries(entries, start).offsets)
        yield int.from_bytes(entries[:8], "big"), PiecePlan(0, queue.queue_id, start, end, target), target + count
        target += count


def _split_record_entries(files: QueueFiles, folder: str, queue: SourceQueue, piece_size: int) -> _SplitPieces:
    next_offset: int | None = None
    for start in range(queue.first, queue.end, piece_size):
        end = min(start + piece_size, queue.end)
        record_entries = files.read(folder, start * files.entry_size, (end - start) * files.entry_size)
        try:
            offsets = read_record_entries(record_entries).offsets
            target = offsets[0] if next_offset is None else next_offset
            require_narrow_gaps(offsets, target)
        except StoreError as error:
            raise StoreError(f"queue {queue.queue_id}: {error}") from error
        next_offset = offsets[-1] + 1
        position = int.from_bytes(record_entries[:8], "big")
        yield position, PiecePlan(0, queue.queue_id, start, end, target), next_offset
