"""Look at the index of a topic that shall be converted: what its queues hold, and into which pieces it falls.

    files      ... | 0 0 gone gone | m m m blank m m | m m 0 0 ...     first: the first m; end: behind the last
    pieces                           [m m m blank) [m m m m)         each with its place in the new index

Pieces are in the order of the log, whichever queue they are of: it is read once, from its beginning to its end. Refuses
what the other kind cannot say. Changes nothing.
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
    """Return the queues of the index at *place*, those without an entry left out.

    Raises:
        StoreError: there is something that the other kind of index cannot say, or that is no index.
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
    """Let *queue* have the files that are there. False when there are none."""
    starts = parse_names(disk.list(queue.folder))
    size = queue.files.file_size
    for number, start in enumerate(starts):
        if start != starts[0] + number * size or disk.find_size(f"{queue.folder}/{file_name(start)}") != size:
            raise StoreError(
                f"{queue.folder}/{file_name(start)} is not where it should be, or not as long: start a broker on the "
                "folder once, it mends that"
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
            f"queue {queue.queue_id} of topic {queue.topic} goes on at offset {queue.offset_max}, and no message is "
            "there to tell so in the other kind of index: send one to this queue first"
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
    """Return the whole plan.

    Raises:
        StoreError: a record holds more than one message where each must hold one; the text names it.
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
"""Where the records of a piece begin, the piece, and behind which entry of the new index it ends."""


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
