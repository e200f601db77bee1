"""Survey the index of a topic before its conversion: find the bounds of its queues, and plan the pieces.

    files      ... | 0 0 gone gone | m m m blank m m | m m 0 0 ...     first: the first m; end: after the last
    pieces                           [m m m blank) [m m m m)         each with its place in the new index

Pieces of all queues are in the order of the log, so that it is read once, from start to end. The survey refuses an
index that the other kind cannot represent. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.model.errors import StoreError
from holdfast.store.base.disk import Disk
from holdfast.store.base.log_file import file_name, parse_names
from holdfast.store.conversion.entry_conversion import read_entries, read_units, require_narrow_gaps
from holdfast.store.conversion.record_headers import RecordHeads
from holdfast.store.queues.batch_consume_queue import BatchQueue
from holdfast.store.queues.consume_queue import SimpleQueue
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.queues.queue_log import BLANK_ENTRY_SIZE, QueueLog
from holdfast.store.queues.queue_table import find_entry_end, find_entry_min
from holdfast.store.recovery.conversion_plan import PIECE_SIZE, IndexPlace, PiecePlan, Plan, SourceQueue, Target


def survey(disk: Disk, place: IndexPlace, to: Target, heads: RecordHeads) -> list[SourceQueue]:
    """Return the queues of the index at *place* that have entries.

    Raises:
        StoreError: a file is not a valid index, or the other kind of index cannot represent a queue.
    """
    files = place.open(disk)
    topic = place.folder.rpartition("/")[2]
    found: list[SourceQueue] = []
    for name in disk.list(place.folder):
        if not name.endswith("/") or not name[:-1].isdecimal():
            continue
        kind = SimpleQueue if to == "batch" else BatchQueue
        queue = kind(files, topic, int(name[:-1]))
        if _adopt(disk, queue) and (source := _survey_queue(queue, heads)) is not None:
            found.append(source)
    return sorted(found, key=lambda queue: queue.queue_id)


def _adopt(disk: Disk, queue: QueueLog) -> bool:
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
        queue.adopt(starts[0], starts[-1] + size)
        queue.set_end(find_entry_end(queue, lambda _position, size: size > 0))
    return bool(starts)


def _survey_queue(queue: QueueLog, heads: RecordHeads) -> SourceQueue | None:
    first, end = find_entry_min(queue, heads.files.start), queue.entry_end
    is_empty = end == queue.first_file // queue.files.entry_size
    if is_empty and not queue.offset_max:
        return None
    last = (
        b"" if is_empty else queue.files.read(queue.folder, (end - 1) * queue.files.entry_size, queue.files.entry_size)
    )
    position, size = queue.parse_place(last) if last else (0, BLANK_ENTRY_SIZE)
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
        last_ms=0 if is_gone else heads.store_times([position])[0],
    )


def plan_pieces(
    disk: Disk,
    place: IndexPlace,
    target: IndexPlace,
    to: Target,
    queues: list[SourceQueue],
    piece_size: int = PIECE_SIZE,
) -> Plan:
    """Return the plan of the whole conversion.

    Raises:
        StoreError: a record holds more than one message, but the new kind allows only one; the text names it.
    """
    files = place.open(disk)
    topic = place.folder.rpartition("/")[2]
    placed: list[tuple[int, PiecePlan]] = []
    spans: dict[int, tuple[int, int]] = {}
    for queue in queues:
        cut = _cut_entries if to == "batch" else _cut_units
        folder = f"{place.folder}/{queue.queue_id}"
        pieces = list(cut(files, folder, queue, piece_size))
        spans[queue.queue_id] = pieces[0][1].target, pieces[-1][2]
        placed += [(position, piece) for position, piece, _ in pieces]
    return Plan(
        topic=topic,
        to=to,
        source_file_size=place.file_size,
        target_file_size=target.file_size,
        queues=queues,
        spans=spans,
        pieces=[
            msgspec.structs.replace(piece, number=number)
            for number, (_, piece) in enumerate(sorted(placed, key=lambda pair: pair[0]))
        ],
    )


_Cut = Iterator[tuple[int, PiecePlan, int]]
"""The position of a piece's first record, the piece, and the number after its last entry in the new index."""


def _cut_entries(files: QueueFiles, folder: str, queue: SourceQueue, piece_size: int) -> _Cut:
    target = 0
    for start in range(queue.first, queue.end, piece_size):
        end = min(start + piece_size, queue.end)
        entries = files.read(folder, start * files.entry_size, (end - start) * files.entry_size)
        count = len(read_entries(entries, start).offsets)
        yield int.from_bytes(entries[:8], "big"), PiecePlan(0, queue.queue_id, start, end, target), target + count
        target += count


def _cut_units(files: QueueFiles, folder: str, queue: SourceQueue, piece_size: int) -> _Cut:
    before: int | None = None
    for start in range(queue.first, queue.end, piece_size):
        end = min(start + piece_size, queue.end)
        units = files.read(folder, start * files.entry_size, (end - start) * files.entry_size)
        try:
            offsets = read_units(units).offsets
            target = offsets[0] if before is None else before
            require_narrow_gaps(offsets, target)
        except StoreError as error:
            raise StoreError(f"queue {queue.queue_id}: {error}") from error
        before = offsets[-1] + 1
        yield int.from_bytes(units[:8], "big"), PiecePlan(0, queue.queue_id, start, end, target), before
