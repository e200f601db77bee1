"""The contents of a store folder: its log, its indexes, and how much of both is settled.

    log      |=== files ===|=== file ===|== file ..... 0 0 0|      start ... settled ... end
    indexes  every queue with its files

*end* is the end of the last whole record. *settled* is the position up to which a job may check and archive records:

    no `abort` file               clean shutdown: the whole log
    our position in `checkpoint`  everything before it is on disk, indexes included; a live broker moves it every 10 s
    neither (Java's, killed)      the end of the last record that any index contains

So a job never reports or archives records that a broker is still writing, or that a power failure may undo.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from holdfast.model.errors import ConfigError
from holdfast.pipeline.scan.queue_entries import QueueFolder, QueueReader
from holdfast.pipeline.scan.read_only import ReadOnlyFile, read_small_file
from holdfast.store.base.config_files import load_config
from holdfast.store.base.log_file import LogFiles, file_name, parse_names
from holdfast.store.log.commit_log import FOLDER as LOG_FOLDER
from holdfast.store.log.log_scanner import LogWalk, StopReason, WalkedRecord, validate_record_at
from holdfast.store.queues.index_kinds import KINDS, IndexKind
from holdfast.store.recovery.checkpoint import PATH as CHECKPOINT_PATH
from holdfast.store.recovery.checkpoint import parse_checkpoint
from holdfast.store.recovery.log_repair import find_next_record
from holdfast.store.recovery.open_store import ABORT_PATH
from holdfast.store.recovery.queue_snapshot import DELETED_PATH, erased_key

_MAPPING_FILE: Final = "topicQueueMapping.json"


class StoreFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one broker's store.

    Attributes:
        root: The folder.
        broker: The broker that owns the store.
        file_size: Of every log file; 0 when there is none.
        log_files: The start of each log file, lowest first; they are adjacent.
        end: The end of the last whole record.
        settled: Before this position log and indexes are complete and on disk.
        first_ms, last_ms: The store times of the first and the last record; 0 when there is none.
        is_closed: No broker uses the store, or its broker shut down cleanly.
        queues: The index of every queue.
        topics: The topics configured on this broker.
        deleted: By topic, or `topic/queue`: earlier records belong to a topic or queue that was deleted.
        unused: Files outside the unbroken chain, and folders that are not a valid index.
    """

    root: str
    broker: str
    file_size: int = 0
    log_files: tuple[int, ...] = ()
    end: int = 0
    settled: int = 0
    first_ms: int = 0
    last_ms: int = 0
    is_closed: bool = True
    queues: tuple[QueueFolder, ...] = ()
    topics: frozenset[str] = frozenset()
    deleted: dict[str, int] = {}
    unused: tuple[str, ...] = ()

    @property
    def start(self) -> int:
        """The position of the first byte of the log."""
        return self.log_files[0] if self.log_files else 0

    def open_log(self) -> AbstractContextManager[LogFiles]:
        """Return a context that opens the log read-only."""
        return _open_log(self.root, self.file_size, self.log_files)

    def log_path(self, position: int) -> tuple[str, int]:
        """Return the log file that contains a position, and the byte within that file."""
        at = position % self.file_size if self.file_size else position
        return f"{self.root}/{LOG_FOLDER}/{file_name(position - at)}", at

    def deleted_before(self, topic: str, queue_id: int) -> int:
        """Return the position before which records belong to a deleted topic or queue of this name."""
        return max(self.deleted.get(topic, 0), self.deleted.get(erased_key(topic, queue_id), 0))


def inspect_store(root: str, broker: str | None = None) -> StoreFolder:
    """Inspect a store folder and return its contents.

    Args:
        root: The folder.
        broker: The broker that owns it; by default the broker named in its mapping file, else the folder's name.

    Raises:
        ConfigError: *root* is not a store folder.
    """
    if not (Path(root) / LOG_FOLDER).is_dir():
        raise ConfigError(f"{root} is not a store folder: it has no {LOG_FOLDER}/")
    # Check this first: a broker may open the store during the inspection.
    is_closed = read_small_file(root, ABORT_PATH) is None
    mark = parse_checkpoint(read_small_file(root, CHECKPOINT_PATH) or b"").position
    size, starts, unused = _find_log_files(root)
    queues = tuple(_find_queues(root, unused))
    indexed = _find_last_indexed(queues)
    with _open_log(root, size, starts) as log:
        end, last_ms = _find_end(log, [position for position in (mark, indexed[0]) if position is not None])
        first = validate_record_at(log, log.start, check_body=False)
    settled = end if is_closed else min(end, mark if mark is not None else indexed[1])
    return StoreFolder(
        root=root,
        broker=broker or find_broker(root) or Path(root).resolve().name,
        file_size=size,
        log_files=starts,
        end=end,
        settled=max(settled, starts[0] if starts else 0),
        first_ms=first.store_ms if isinstance(first, WalkedRecord) else 0,
        last_ms=last_ms,
        is_closed=is_closed,
        queues=queues,
        topics=frozenset(_find_topics(root)),
        deleted=_find_deleted(root),
        unused=tuple(unused),
    )


def inspect_stores(stores: Sequence[str]) -> list[StoreFolder]:
    """Return the contents of each folder in *stores*, given as `folder` or `name=folder`.

    Raises:
        ConfigError: a folder is not a store, or two belong to the same broker name.
    """
    folders: list[StoreFolder] = []
    for text in stores:
        name, equals, path = text.partition("=")
        folders.append(inspect_store(path, name) if equals else inspect_store(text))
    names = [folder.broker for folder in folders]
    for folder in folders:
        if names.count(folder.broker) > 1:
            roots = " and ".join(other.root for other in folders if other.broker == folder.broker)
            raise ConfigError(
                f"{roots} both belong to {folder.broker}, by folder name or by mapping file: name their brokers with "
                "NAME=FOLDER"
            )
    return folders


def find_broker(root: str) -> str | None:
    """Return the broker named in the folder's mapping file; None if there is no such file."""
    content = load_config(partial(read_small_file, root), _MAPPING_FILE)
    table = content.get("topicQueueMappingInfoMap") if isinstance(content, dict) else None
    for detail in table.values() if isinstance(table, dict) else ():
        name = detail.get("bname") if isinstance(detail, dict) else None
        if isinstance(name, str) and name:
            return name
    return None


def _find_log_files(root: str) -> tuple[int, tuple[int, ...], list[str]]:
    """Return the size of log files, the starts of the last unbroken chain, and the files outside that chain."""
    folder = Path(root) / LOG_FOLDER
    sizes = _sizes_in(folder)
    size = next(iter(sizes.values()), 0)
    chain: list[int] = []
    unused: list[str] = []
    for start, file_size in sizes.items():
        if file_size != size or start % size:
            unused.append(str(folder / file_name(start)))
            continue
        if chain and chain[-1] + size != start:
            unused.extend(str(folder / file_name(skipped)) for skipped in chain)
            chain = []
        chain.append(start)
    return size, tuple(chain), unused


def _sizes_in(folder: Path) -> dict[int, int]:
    """Return the size of each file by its start. Leave out files of size 0, which are being created."""
    names = [path.name for path in folder.iterdir()]
    sizes = {start: _size_of(folder / file_name(start)) for start in parse_names(names)}
    return {start: size for start, size in sizes.items() if size}


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # The file was removed after the listing.


@contextmanager
def _open_log(root: str, size: int, starts: tuple[int, ...]) -> Iterator[LogFiles]:
    # LogFiles uses its disk only to add or remove files, so it needs none here.
    log = LogFiles(None, LOG_FOLDER, max(1, size))  # type: ignore[arg-type]
    for start in starts:
        log.files[start // size] = ReadOnlyFile(f"{root}/{LOG_FOLDER}/{file_name(start)}", size)
    try:
        yield log
    finally:
        # A Spark worker runs many tasks, and a file that a broker removed occupies disk space until it is closed.
        for file in log.files.values():
            file.close()


def _find_queues(root: str, unused: list[str]) -> list[QueueFolder]:
    found: list[QueueFolder] = []
    for kind in KINDS:
        for folder in sorted((Path(root) / kind.kind_folder).glob("*/*")):
            if not (folder.name.isascii() and folder.name.isdigit() and folder.is_dir()):
                unused.append(str(folder))
                continue
            queue = _find_queue(folder, kind, unused)
            if queue is not None:
                found.append(queue)
    return found


def _find_queue(folder: Path, kind: IndexKind, unused: list[str]) -> QueueFolder | None:
    sizes, entry_size = _sizes_in(folder), kind.entry_size
    size = next(iter(sizes.values()), 0)
    for start, file_size in sizes.items():
        if file_size != size or start % size or size % entry_size:
            unused.append(str(folder / file_name(start)))
    starts = tuple(
        start for start, file_size in sizes.items() if file_size == size and not (start % size or size % entry_size)
    )
    if not starts:
        return None
    return QueueFolder(folder.parent.name, int(folder.name), kind.queue_type, str(folder), starts, size)


def _find_last_indexed(queues: tuple[QueueFolder, ...]) -> tuple[int | None, int]:
    """Return the start and the end of the last record that any index contains."""
    start, end = None, 0
    for queue in queues:
        try:
            with closing(QueueReader(queue)) as reader:
                last = reader.find_last()
        except FileNotFoundError:
            continue  # The topic was deleted after the listing.
        if last is not None and sum(last) > end:
            start, end = last[0], sum(last)
    return start, end


def _find_end(log: LogFiles, hints: list[int]) -> tuple[int, int]:
    """Return the end of the log, and the store time of its last record.

    Start the scan at the highest of *hints* at which a record begins, to save time.
    """
    position, last_ms = log.start, 0
    for number in reversed(log.files):
        if isinstance(validate_record_at(log, number * log.size, check_body=False), WalkedRecord):
            position = number * log.size
            break
    for hint in hints:
        if hint > position and isinstance(validate_record_at(log, hint, check_body=False), WalkedRecord):
            position = hint
    while True:
        walk = LogWalk(log, position, check_body=False)
        for record in walk:
            last_ms = record.store_ms
        next_record = None if walk.stop is StopReason.END else find_next_record(log, walk.position + 1)
        if next_record is None:
            return walk.position, last_ms
        position = next_record


def _find_topics(root: str) -> list[str]:
    content = load_config(partial(read_small_file, root), "topics.json")
    table = content.get("topicConfigTable") if isinstance(content, dict) else None
    return list(table) if isinstance(table, dict) else []


def _find_deleted(root: str) -> dict[str, int]:
    try:
        return msgspec.json.decode(read_small_file(root, DELETED_PATH) or b"{}", type=dict[str, int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
