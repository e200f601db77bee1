"""All queues of a store: found on disk, made on demand, removed with their topic.

    consumequeue/<topic>/<queue id>/00000000000000000000        this index
    batchconsumequeue/<topic>/...                               another kind: left untouched

Knows how to find the end of a queue in its files; what should be in it is recovery's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.model.errors import DiskFailed, StoreError
from holdfast.model.numbers import parse_count
from holdfast.store.consume_queue import BLANK_ENTRY_SIZE, ENTRY, ENTRY_SIZE, FOLDER, QueueFiles, QueueLog
from holdfast.store.disk import Disk
from holdfast.store.log_file import file_name, parse_names

BATCH_FOLDER = "batchconsumequeue"

EntryTest = Callable[[int, int], bool]
"""Whether an entry (position, record size) is of those that are looked for."""


class QueueTable:
    """The queues, by topic and number."""

    def __init__(self, disk: Disk, files: QueueFiles, batch_topics: frozenset[str]) -> None:
        self.disk = disk
        self.files = files
        self.batch_topics = batch_topics
        self.queues: dict[tuple[str, int], QueueLog] = {}
        self.newest = 0  # Where the newest record begins that a restored queue knows.

    def __iter__(self) -> Iterator[QueueLog]:
        return iter(self.queues.values())

    def find(self, topic: str, queue_id: int) -> QueueLog | None:
        """Return a queue, or None when nothing was ever stored in it."""
        return self.queues.get((topic, queue_id))

    def get(self, topic: str, queue_id: int) -> QueueLog:
        """Return a queue, making it when it is new.

        Raises:
            StoreError: the topic's index is of another kind.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if topic in self.batch_topics:
                raise StoreError(f"topic {topic} has a batch index, which this store does not serve")
            queue = self.queues[topic, queue_id] = QueueLog(self.files, topic, queue_id)
        return queue

    def remove_topic(self, topic: str) -> None:
        """Forget the queues of *topic* and remove their files."""
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]
        folder = f"{FOLDER}/{topic}"
        self._forget_unsynced(folder)
        self.files.cache.remove(folder)

    def remove_files(self, queue: QueueLog) -> None:
        """Empty a queue: its entries are gone, in memory and on disk."""
        self._forget_unsynced(queue.folder)
        self.files.cache.remove(queue.folder)
        queue.tail = bytearray()
        queue.first_file = queue.file_end = 0
        queue.offset_min = 0
        self._set_end(queue, 0)

    def _forget_unsynced(self, folder: str) -> None:
        self.files.unsynced = {path: None for path in self.files.unsynced if not path.startswith(folder + "/")}

    def load(self) -> None:
        """Find every queue in its folder, up to its last entry."""
        for topic in self.disk.list(FOLDER):
            for queue_id in self.disk.list(f"{FOLDER}/{topic.rstrip('/')}"):
                number = parse_count(queue_id[:-1], -1)
                if topic.endswith("/") and queue_id.endswith("/") and number >= 0:
                    self._load_queue(topic[:-1], number)

    def _load_queue(self, topic: str, queue_id: int) -> None:
        queue = QueueLog(self.files, topic, queue_id)
        starts = parse_names(self.disk.list(queue.folder))
        while starts and not self.disk.find_size(f"{queue.folder}/{file_name(starts[-1])}"):
            self.disk.remove(f"{queue.folder}/{file_name(starts.pop())}")
        if not starts:
            return
        self._check_sizes(queue, starts)
        end = starts[0]
        for start in starts:
            if start != end:
                # Behind a file that was lost: recovery makes these again, from where the queue ends now.
                self.files.cache.remove(f"{queue.folder}/{file_name(start)}")
            else:
                end += self.files.file_size
        self.adopt(queue, starts[0], end)
        self._set_end(queue, find_entry_end(queue, lambda _position, size: size > 0))

    def _check_sizes(self, queue: QueueLog, starts: list[int]) -> None:
        for start in {starts[0], starts[-1]}:
            size = self.disk.find_size(f"{queue.folder}/{file_name(start)}")
            if size != self.files.file_size or start % self.files.file_size:
                raise StoreError(
                    f"{queue.folder}/{file_name(start)} has {size} bytes where files of {self.files.file_size} are "
                    f"expected: remove the folder {FOLDER}, it is rebuilt from the log"
                )

    def adopt(self, queue: QueueLog, first_file: int, file_end: int) -> None:
        """Take *queue* into the table with the files it has."""
        queue.first_file = first_file
        queue.file_end = file_end
        queue.offset_min = first_file // ENTRY_SIZE
        self._set_end(queue, file_end // ENTRY_SIZE)
        self.queues[queue.topic, queue.queue_id] = queue

    def restore(self, queue: QueueLog, offset_min: int, offset_max: int) -> bool:
        """Take *queue* in with the bounds noted at the last orderly end; False when its files do not bear them out."""
        file_size = self.files.file_size
        last = (offset_max - 1) * ENTRY_SIZE
        base = last - last % file_size
        try:
            file = self.disk.open(f"{queue.folder}/{file_name(base)}")
        except DiskFailed:
            return False
        if file.size != file_size:
            return False
        position, size, _ = ENTRY.unpack(file.read(last - base, last - base + ENTRY_SIZE))
        if size <= 0:
            return False
        self.adopt(queue, offset_min * ENTRY_SIZE // file_size * file_size, base + file_size)
        self._set_end(queue, offset_max)
        queue.offset_min = offset_min
        if size != BLANK_ENTRY_SIZE:
            self.newest = max(self.newest, position)
        return True

    @staticmethod
    def _set_end(queue: QueueLog, offset: int) -> None:
        assert not queue.tail
        queue.offset_max = queue.next_offset = queue.tail_offset = queue.hot_offset = offset
        queue.offset_min = min(queue.offset_min, offset)

    def cut(self, queue: QueueLog, position: int) -> None:
        """Forget the entries of records at or behind *position*, on disk too."""
        end = find_entry_end(queue, lambda at, size: size > 0 and at < position)
        if end == queue.first_file // ENTRY_SIZE < queue.offset_max:
            # No entry is left to tell where the queue begins: the log will.
            self.remove_files(queue)
            return
        self.erase_behind(queue, end)
        self._set_end(queue, end)

    def erase_behind(self, queue: QueueLog, offset: int) -> None:
        """Make everything from *offset* on zeros, and remove the files behind it."""
        size = self.files.file_size
        at = offset * ENTRY_SIZE
        keep = max(queue.first_file, at - at % size)
        for start in range(keep + size, queue.file_end, size):
            path = f"{queue.folder}/{file_name(start)}"
            self.files.unsynced.pop(path, None)
            self.files.cache.remove(path)
        queue.file_end = min(queue.file_end, keep + size)
        if keep < queue.file_end and at < queue.file_end:
            path = f"{queue.folder}/{file_name(keep)}"
            self.files.cache.open(path).erase(max(0, at - keep), size)
            self.files.unsynced[path] = None

    def correct_min(self, queue: QueueLog, log_start: int) -> None:
        """Move the queue's first offset up to the first record that is still in the log; drop files before it."""
        low, high = queue.offset_min, queue.offset_max
        middle = low  # Mostly nothing has changed: then one look is enough.
        while low < high:
            position, size, _ = queue.get_entry(middle)
            if position >= log_start and (position, size) != (0, BLANK_ENTRY_SIZE):
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        queue.offset_min = low
        size = self.files.file_size
        # The last file stays, as upstream keeps it: it holds the place where the queue goes on.
        while queue.first_file + size <= min(low * ENTRY_SIZE, queue.file_end - size):
            path = f"{queue.folder}/{file_name(queue.first_file)}"
            self.files.unsynced.pop(path, None)
            self.files.cache.remove(path)
            queue.first_file += size


def find_entry_end(queue: QueueLog, holds: EntryTest) -> int:
    """Return the offset behind the last entry on disk for which *holds*; it holds for all before, for none behind."""
    low, high = queue.first_file // ENTRY_SIZE, min(queue.offset_max, queue.file_end // ENTRY_SIZE)
    step = 1
    while low < high:
        # Most queues are far shorter than their file: steps grow from the front until one goes too far.
        middle = min(low + step, high) - 1 if step else (low + high) // 2
        position, size, _ = ENTRY.unpack(queue.files.read(queue.folder, middle * ENTRY_SIZE, ENTRY_SIZE))
        if holds(position, size):
            low = middle + 1
            step *= 2
        else:
            high = middle
            step = 0
    return low
