"""All queues of a store: found on disk, created on demand, removed with their topic.

    <folder of the kind>/<topic>/<queue id>/00000000000000000000

This module finds the end of a queue in its files. Recovery decides which entries a queue should have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from holdfast.model.errors import DiskFailed, StoreError
from holdfast.model.numbers import parse_count
from holdfast.store.base.disk import Disk, File
from holdfast.store.base.log_file import file_name, parse_names
from holdfast.store.queues.index_kinds import DEFAULT_KIND, KINDS, IndexKind
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, QueueIndex

EntryTest = Callable[[int, int], bool]
"""Returns whether an entry (position, record size) matches."""


class QueueTable:
    """The queues of a store, by topic and number.

    Attributes:
        files: The files of each kind of index.
        kinds: The kind of each topic that does not have the default one.
        newest_position: Position of the newest record that a restored queue indexes.
    """

    def __init__(self, disk: Disk, files: Mapping[IndexKind, QueueFiles], kinds: Mapping[str, IndexKind]) -> None:
        self.disk = disk
        self.files = files
        self.kinds = dict(kinds)
        self.queues: dict[tuple[str, int], QueueIndex] = {}
        self.newest_position = 0

    @property
    def unsynced(self) -> dict[str, None]:
        """Paths of files of every kind that were written since the last checkpoint."""
        return self.files[DEFAULT_KIND].unsynced

    def open_file(self, path: str) -> File:
        """Return the open file of an index."""
        return self.files[DEFAULT_KIND].cache.open(path)

    def __iter__(self) -> Iterator[QueueIndex]:
        return iter(self.queues.values())

    def find(self, topic: str, queue_id: int) -> QueueIndex | None:
        """Return a queue, or None if nothing was ever stored in it."""
        return self.queues.get((topic, queue_id))

    def get(self, topic: str, queue_id: int) -> QueueIndex:
        """Return a queue; create it if it does not exist."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = self.queues[topic, queue_id] = self.make(topic, queue_id)
        return queue

    def make(self, topic: str, queue_id: int) -> QueueIndex:
        """Return a new, empty queue of its topic's kind without adding it to the table."""
        return self._make(self.kinds.get(topic, DEFAULT_KIND), topic, queue_id)

    def _make(self, kind: IndexKind, topic: str, queue_id: int) -> QueueIndex:
        return kind(self.files[kind], topic, queue_id)

    def find_queue_type(self, topic: str) -> str | None:
        """Return the `queue.type` of the queues of *topic*; None if it has no queues."""
        return next((queue.queue_type for queue in self if queue.topic == topic), None)

    def set_kind(self, topic: str, kind: IndexKind) -> None:
        """Give the queues of *topic* this kind of index from now on.

        Raises:
            StoreError: the topic has queues of another kind.
        """
        found = self.find_queue_type(topic)
        if found is not None and found != kind.queue_type:
            raise StoreError(f"topic {topic} has queues of the type {found}, so it cannot have {kind.queue_type}")
        self.kinds[topic] = kind

    def remove_topic(self, topic: str) -> None:
        """Forget the queues of *topic* and its kind of index, and remove their files."""
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]
        files = self.files[self.kinds.pop(topic, DEFAULT_KIND)]
        folder = f"{files.folder}/{topic}"
        files.forget_unsynced(folder)
        files.cache.remove(folder)

    def remove_files(self, queue: QueueIndex) -> None:
        """Empty a queue: remove its entries from memory and disk."""
        queue.files.forget_unsynced(queue.folder)
        queue.files.cache.remove(queue.folder)
        queue.clear()

    def load(self) -> None:
        """Load every queue from its folder, up to its last entry.

        Raises:
            StoreError: some files cannot be an index, or a topic has indexes of two kinds.
        """
        for kind in KINDS:
            for topic, queue_id in find_queues(self.disk, kind.kind_folder):
                self._load_queue(kind, topic, queue_id)

    def refuse_two_kinds(self) -> None:
        """Check that no topic has indexes of two kinds. For a start that does not list the queues on disk.

        Raises:
            StoreError: a topic has two.
        """
        for topic, own in sorted(self.kinds.items(), key=lambda item: item[0]):
            for kind in KINDS:
                for name in self.disk.list(f"{kind.kind_folder}/{topic}") if kind is not own else ():
                    number = parse_count(name[:-1])
                    if name.endswith("/") and number is not None:
                        self._load_queue(kind, topic, number)

    def load_unnoted(self) -> list[QueueIndex]:
        """Load the queues not of the default kind that are not in the table. Return those that are not empty."""
        known = set(self.queues)
        for kind in KINDS:
            for topic, queue_id in find_queues(self.disk, kind.kind_folder) if kind is not DEFAULT_KIND else ():
                if (topic, queue_id) not in known:
                    self._load_queue(kind, topic, queue_id)
        return [queue for key, queue in self.queues.items() if key not in known and queue.offset_max]

    def _load_queue(self, kind: IndexKind, topic: str, queue_id: int) -> None:
        files, queue = self.files[kind], self.make(topic, queue_id)
        folder = f"{files.folder}/{topic}/{queue_id}"
        starts = parse_names(self.disk.list(folder))
        while starts and not self.disk.find_size(f"{folder}/{file_name(starts[-1])}"):
            self.disk.remove(f"{folder}/{file_name(starts.pop())}")
        if not starts:
            return
        if queue.folder != folder:
            raise StoreError(
                f"{folder} exists, but the index of topic {topic} is {queue.files.folder}: if that is right, move "
                f"{files.folder}/{topic} out of the folder; otherwise restore the topic's queue.type"
            )
        self._check_sizes(queue, starts)
        end = starts[0]
        for start in starts:
            if start != end:
                # The file before it was lost: recovery recreates this one, from the new end of the queue on.
                files.cache.remove(f"{folder}/{file_name(start)}")
            else:
                end += files.file_size
        self.queues[topic, queue_id] = queue
        queue.attach_files(starts[0], end)
        queue.set_end(find_entry_end(queue, lambda _position, size: size > 0))

    def _check_sizes(self, queue: QueueIndex, starts: list[int]) -> None:
        files = queue.files
        for start in {starts[0], starts[-1]}:
            size = self.disk.find_size(f"{queue.folder}/{file_name(start)}")
            if size != files.file_size or start % files.file_size:
                raise StoreError(
                    f"{queue.folder}/{file_name(start)} has {size} bytes where files of {files.file_size} are "
                    f"expected: remove the folder {files.folder}, it is rebuilt from the log"
                )

    def restore(self, kind: IndexKind, topic: str, queue_id: int, bounds: tuple[int, ...]) -> bool:
        """Add a queue with the *bounds* noted at the last clean shutdown; return False if its files do not match."""
        queue = self._make(kind, topic, queue_id)
        return self._open_last(queue, *queue.entry_bounds(bounds)) > 0 and queue.restore(bounds)

    def _open_last(self, queue: QueueIndex, entry_min: int, entry_end: int) -> int:
        """Add *queue* with the files it should have to the table. Return the record size in its last entry."""
        files = queue.files
        last = (entry_end - 1) * files.entry_size
        base = last - last % files.file_size
        try:
            file = self.disk.open(f"{queue.folder}/{file_name(base)}")
        except DiskFailed:
            return 0
        if file.size != files.file_size:
            return 0
        position, size = queue.parse_location(file.read(last - base, last - base + files.entry_size))
        if size > 0:
            queue.attach_files(
                entry_min * files.entry_size // files.file_size * files.file_size, base + files.file_size
            )
            self.queues[queue.topic, queue.queue_id] = queue
            if size != BLANK_ENTRY_SIZE:
                self.newest_position = max(self.newest_position, position)
        return size

    def truncate(self, queue: QueueIndex, position: int) -> None:
        """Remove the entries of records at or after *position*, on disk, too."""
        end = find_entry_end(queue, lambda at, size: size > 0 and at < position)
        if end == queue.first_file // queue.files.entry_size < queue.entry_end:
            # No entry is left that shows where the queue begins: the log decides.
            self.remove_files(queue)
            return
        self.erase_from(queue, end)
        queue.set_end(end)

    def erase_from(self, queue: QueueIndex, number: int) -> None:
        """Zero everything from entry *number* on, and remove the later files."""
        files, size = queue.files, queue.files.file_size
        at = number * files.entry_size
        kept_file = max(queue.first_file, at - at % size)
        for start in range(kept_file + size, queue.file_end, size):
            path = f"{queue.folder}/{file_name(start)}"
            files.unsynced.pop(path, None)
            files.cache.remove(path)
        queue.file_end = min(queue.file_end, kept_file + size)
        if kept_file < queue.file_end and at < queue.file_end:
            path = f"{queue.folder}/{file_name(kept_file)}"
            files.cache.open(path).erase(max(0, at - kept_file), size)
            files.unsynced[path] = None

    def correct_min(self, queue: QueueIndex, log_start: int) -> list[str]:
        """Advance the queue's first offset to the first record that is still in the log; return the removed files."""
        low = find_entry_min(queue, log_start)
        queue.set_min(low)
        files, size = queue.files, queue.files.file_size
        removed = []
        while queue.first_file + size <= min(low * files.entry_size, queue.last_file):
            path = f"{queue.folder}/{file_name(queue.first_file)}"
            files.unsynced.pop(path, None)
            files.cache.remove(path)
            queue.first_file += size
            removed.append(path)
        return removed


def find_queues(disk: Disk, folder: str) -> Iterator[tuple[str, int]]:
    """Yield topic and number of every queue that has files below *folder*."""
    for topic in disk.list(folder):
        for queue_id in disk.list(f"{folder}/{topic.rstrip('/')}"):
            number = parse_count(queue_id[:-1])
            if topic.endswith("/") and queue_id.endswith("/") and number is not None:
                yield topic[:-1], number


def find_entry_end(queue: QueueIndex, matches: EntryTest) -> int:
    """Return the number after the last entry on disk that *matches*; all entries before it match, none after it."""
    entry_size = queue.files.entry_size
    low, high = queue.first_file // entry_size, min(queue.entry_end, queue.file_end // entry_size)
    step = 1
    while low < high:
        # Most queues are far shorter than their file: steps double from the front until one goes too far.
        middle = min(low + step, high) - 1 if step else (low + high) // 2
        if matches(*queue.parse_location(queue.files.read(queue.folder, middle * entry_size, entry_size))):
            low = middle + 1
            step *= 2
        else:
            high = middle
            step = 0
    return low


def find_entry_min(queue: QueueIndex, log_start: int) -> int:
    """Return the number of the first entry whose record is still in the log; the end of the entries if none is."""
    low, high = queue.entry_min, queue.entry_end
    middle = low  # Usually nothing has changed: then one probe is enough.
    while low < high:
        position, size = queue.location_of(middle)
        if position >= log_start and (position, size) != (0, BLANK_ENTRY_SIZE):
            high = middle
        else:
            low = middle + 1
        middle = (low + high) // 2
    return low
