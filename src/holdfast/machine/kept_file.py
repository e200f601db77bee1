"""A value that a role keeps in one small file, from one process to the next.

    clean --mark_changed--> changed --save_soon--> being written --written--> clean
                               ↑                        └────────failed─────> changed
                               └────────────────(the retry timer saves)──────────┘

A save off the loop is a `WriteFile` effect, and at most one is in progress for each file. Changes meanwhile are written
together by the next one, so the file never gets older. A failed write has a reason in `fault` until one succeeds.

`save_if_changed` saves in one of three ways, which the owner of the value chooses:

    off the loop     for most values
    after the log    for a value that says how far records are processed, or repeats them: a snapshot is taken, and
                     written once the log is on disk up to its present end. A power loss leaves no file that is ahead
                     of its log
    at once          for a value whose changes are acknowledged when they are on disk. Blocks on the disk, but no save
                     off the loop can bring back an older version

With a backup, the previous version is in `path.bak`. It is used if the file is missing or damaged.

A file with secrets is private: only its owner may read and write it. If others may, or if it is missing or damaged, the
role does not start, and an operator decides about the backup. It may contain users whose rights were revoked since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.machine.effects import WriteFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, StoreError
from holdfast.store.base.disk import Disk
from holdfast.store.base.file_versions import DAMAGED, backup_path, load_newest, versions_of

RETRY_MS: Final = 5_000
UNREADABLE: Final = ".unreadable"

_T = TypeVar("_T")

Then = Callable[[str | None], None]
"""Called when a save has ended: with None if the value is on disk, otherwise with the reason why it is not."""


class UnreadableFile(StoreError):
    """A file exists, but neither it nor its backup can be used.

    Attributes:
        reason: Why the file cannot be decoded.
        content: The bytes of the file.
    """

    def __init__(self, text: str, reason: str, content: bytes) -> None:
        super().__init__(text)
        self.reason = reason
        self.content = content


class ExposedFile(StoreError):
    """A file with secrets can be read or written by others than its owner."""


class KeptFile(Generic[_T]):
    """One value and its file.

    Args:
        turn: The turn of the role.
        disk: Where the file is; None: the value is only in memory, and every save succeeds at once.
        path: The path of the file.
        value: Returns the present value. Called once for each save, so that it may count them.
        encode: Encodes a value.
        decode: Decodes a value. Raises `msgspec.ValidationError` if the content is whole but is not such a value, and
            `RemoteProtocolError` or another `msgspec.DecodeError` if it is damaged.
        retry_timer: The timer that repeats a failed save; None: the next `save_if_changed` does.
        bytes_per_ms: How much to write at most, on average: after each save the next one waits, for `retry_timer`.
            Limits the time that encoding takes.
        has_backup: Whether the previous version is kept.
        log_end: Returns the end of the log on which the value depends; None if it depends on none. Asked at once, too:
            the log must have been recovered, and nothing been written to it since.
        saves_at_once: Whether `save_if_changed` saves before it returns.
        is_private: Whether only the owner may read and write it. Its backup is never loaded.

    Attributes:
        is_changed: The value differs from the file, and from the version that is being written.
        fault: Why the last write failed; None if it succeeded.
        size: Bytes of the version that was written last.
    """

    def __init__(  # noqa: PLR0913 - one name for each option
        self,
        turn: Turn,
        disk: Disk | None,
        path: str,
        value: Callable[[], _T],
        *,
        encode: Callable[[_T], bytes],
        decode: Callable[[bytes], _T],
        retry_timer: str | None = None,
        bytes_per_ms: int | None = None,
        has_backup: bool = True,
        log_end: Callable[[], int] | None = None,
        saves_at_once: bool = False,
        is_private: bool = False,
    ) -> None:
        self.path = path
        assert bytes_per_ms is None or retry_timer is not None, "a pause ends by a timer"
        self.retry_timer = retry_timer
        self.is_changed = False
        self.fault: str | None = None
        self.size = 0
        self._turn = turn
        self._disk = disk
        self._value = value
        self._encode = encode
        self._decode = decode
        self._bytes_per_ms = bytes_per_ms
        self._has_backup = has_backup
        self._log_end = log_end
        self._saves_at_once = saves_at_once
        self._is_private = is_private
        self._is_own = False  # The file is known to have been written by this process, so it is not damaged.
        self._is_pausing = False  # No save begins until the timer fires.
        self._is_requested = False  # A save has to begin when the present one has ended.
        self._waiting: list[Then] = []  # for the next save
        self._ending: list[Then] = []  # for the present save
        self._unwritten: set[str] = set()  # Paths of the present save whose results are still to come.
        self._failure: str | None = None  # of the present save
        self._snapshot: tuple[int, bytes] | None = None  # Waits for the log to be on disk up to the position.
        # A file is built when its role starts: everything in the log is on disk then.
        self._synced_end = -1 if log_end is None else log_end()

    @property
    def is_durable(self) -> bool:
        """Whether there is a disk."""
        return self._disk is not None

    @property
    def waits_for_log(self) -> bool:
        """Whether saves wait for the log, so that `on_synced` must be called."""
        return self._log_end is not None

    @property
    def is_being_written(self) -> bool:
        """Whether a save off the loop is in progress."""
        return bool(self._unwritten)

    @property
    def paths(self) -> Sequence[str]:
        """All paths that a save may write."""
        return versions_of(self.path) if self._has_backup else (self.path,)

    # Loading.

    def load(self) -> _T | None:
        """Return the value in the file, or else in its backup; None if there is neither.

        Raises:
            ExposedFile: the file is private, but others may read or write it.
            UnreadableFile: the file exists, but cannot be used.
        """
        if self._disk is None:
            return None
        if self._is_private:
            return self._load_private(self._disk)
        newest = load_newest(self._disk.read_file, self.paths, self._decode_whole)
        if newest is None:
            self._refuse_damaged(self._disk.read_file(self.path))
            return None
        path, value = newest
        if path != self.path:
            event = "configuration missing or damaged, the version before it is used"
            self._turn.log("warning", event, file=self.path, used=path)
        return value

    def _load_private(self, disk: Disk) -> _T | None:
        """Return the value in a private file; None if there is neither the file nor its backup."""
        content, backup = disk.read_file(self.path), backup_path(self.path)
        for path in self.paths:
            if disk.read_file(path) is not None and not disk.is_private(path):
                raise ExposedFile(
                    f"{path} contains secrets, but others than its owner may read or write it: run chmod 600 on it. If"
                    " others may have read it, change the secrets in it"
                )
        if content is None:
            if self._has_backup and disk.read_file(backup) is not None:
                text = (
                    f"{self.path} is missing, but {backup} exists: rename it to restore it, or remove it to start anew"
                )
                raise UnreadableFile(text, "the file is missing", b"")
            return None
        try:
            return self._decode_whole(self.path, content)
        except DAMAGED as error:
            text = (
                f"{self.path} is damaged: restore it from {backup} if that is recent enough, or from a backup of yours"
            )
            raise UnreadableFile(text, str(error), content) from error

    def load_or_forget(self, event: str) -> _T | None:
        """Return the value in the file; None if there is none, or none that can be used.

        A file that cannot be used is logged as *event*, and copied to `path.unreadable`: the next save replaces it.
        This is for values that the role can learn again, so that one file does not keep it from starting.
        """
        try:
            return self.load()
        except UnreadableFile as error:
            self._turn.log("warning", event, file=self.path, reason=error.reason)
            self._turn.cause(WriteFile(self.path + UNREADABLE, error.content))
            return None

    def _refuse_damaged(self, content: bytes | None) -> None:
        reason = None if content is None else self._find_damage(content)
        if content is None or reason is None:
            return
        text = f"{self.path} cannot be read: {reason}"
        if self._has_backup:
            text = (
                f"{self.path} cannot be read and its .bak is missing or damaged; restore it, or remove it to start anew"
            )
        raise UnreadableFile(text, reason, content)

    def _decode_whole(self, path: str, content: bytes) -> _T:
        """Decode the content of a file. An older version does not replace one that is whole but has another shape."""
        try:
            return self._decode(content)
        except msgspec.ValidationError as error:
            text = f"{path} is readable JSON but has unexpected content: {error}"
            raise UnreadableFile(text, str(error), content) from error

    # Saving.

    def mark_changed(self) -> None:
        """Record that the value changed. Nothing is saved yet."""
        self.is_changed = True

    def save_change(self) -> None:
        """Record that the value changed, and save it in the way that was chosen for it.

        Raises:
            DiskFailed: see `save_if_changed`.
        """
        self.mark_changed()
        self.save_if_changed()

    def save_soon(self, then: Then | None = None) -> None:
        """Begin to save the value off the loop, or when the present save has ended.

        Args:
            then: Called when the save that contains the present value has ended.
        """
        if then is not None:
            self._waiting.append(then)
        self._is_requested = True
        self._begin()

    def save_if_changed(self) -> None:
        """Save the value if it changed, in the way that was chosen for it.

        Raises:
            DiskFailed: the value is saved at once, and that failed; it counts as changed.
        """
        if not self.is_changed:
            return
        if self._saves_at_once:
            self.save_now()
        elif self._log_end is None:
            self.save_soon()
        elif self._snapshot is None:  # Later changes wait for the next call.
            self._take_snapshot(self._log_end())

    def save_last(self) -> None:
        """Save the value if it changed: the role stops. A snapshot that waits for the log is replaced by a newer one.

        Raises:
            DiskFailed: see `save_if_changed`.
        """
        if self.is_changed:
            self._snapshot = None
            self.save_if_changed()

    def _take_snapshot(self, position: int) -> None:
        self.is_changed = False
        self._snapshot = (position, self._encode(self._value()))
        self._begin()

    def on_synced(self, position: int) -> None:
        """Record that the log is on disk up to *position*."""
        self._synced_end = max(self._synced_end, position)
        if self._snapshot is not None:
            self._begin()

    def save_now(self) -> None:
        """Save the value before returning. Blocks on the disk.

        Raises:
            DiskFailed: the value is not saved, and counts as changed.
        """
        # A save in progress may reach the disk later with an older value.
        self._is_requested = self._is_requested or self.is_being_written
        self._snapshot = None
        try:
            if self._disk is not None:
                for path, content in self._plan(self._disk, self._encode(self._value())):
                    self._disk.replace(path, content, is_private=self._is_private)
        except DiskFailed as error:
            self.is_changed, self.fault = True, str(error)
            raise
        self.is_changed, self.fault, self._is_own = False, None, True
        ended, self._waiting = self._waiting, []
        for then in ended:
            then(None)

    def _begin(self) -> None:
        """Begin the next save, unless one is in progress, or was just now."""
        if self._unwritten or self._is_pausing:
            return
        if self._snapshot is not None and self._snapshot[0] <= self._synced_end:
            (_, data), self._snapshot = self._snapshot, None
        elif self._is_requested:
            self._is_requested = self.is_changed = False
            self._ending, self._waiting = self._waiting, []
            data = self._encode(self._value()) if self._disk is not None else b""
        else:
            return
        self.size = len(data)
        writes = self._plan(self._disk, data) if self._disk is not None else []
        self._unwritten = {path for path, _ in writes}
        for path, content in writes:
            self._turn.cause(WriteFile(path, content, self._is_private))
        if not writes:
            self._end()

    def _plan(self, disk: Disk, data: bytes) -> list[tuple[str, bytes]]:
        """Return the writes that save *data*, in order.

        A damaged file does not become the backup: the one that it would replace is the only good version until *data*
        is written.
        """
        if not self._has_backup:
            return [(self.path, data)]
        previous = disk.read_file(self.path)
        if previous == data:
            return []
        backup = [(backup_path(self.path), previous)] if previous and not self._is_damaged(previous) else []
        return [*backup, (self.path, data)]

    def _is_damaged(self, content: bytes) -> bool:
        return not self._is_own and self._find_damage(content) is not None

    def _find_damage(self, content: bytes) -> str | None:
        """Return why *content* cannot be decoded. None if it is whole, even if it has another shape."""
        try:
            self._decode(content)
        except msgspec.ValidationError:
            return None
        except DAMAGED as error:
            return str(error)
        return None

    # Results of writes.

    def on_written(self, path: str) -> None:
        """Record that a write to *path* has succeeded."""
        self._note_result(path, None)

    def on_failed(self, path: str, reason: str) -> None:
        """Record that a write to *path* has failed."""
        self._note_result(path, reason)

    def _note_result(self, path: str, failure: str | None) -> None:
        if path in self._unwritten:
            self._unwritten.remove(path)
            self._failure = self._failure or failure
            if not self._unwritten:
                self._end()

    def _end(self) -> None:
        """End the present save: call back those who wait for it, and begin the next save."""
        self.fault, self._failure = self._failure, None
        self.is_changed = self.is_changed or self.fault is not None
        self._is_own = self._is_own or self.fault is None
        ended, self._ending = self._ending, []
        failure = self.fault
        for then in ended:
            then(failure)
        if self._bytes_per_ms is not None and not self._unwritten:
            self._is_pausing = True
            pause_ms = self.size // self._bytes_per_ms if failure is None else RETRY_MS
            self._turn.set_timer(self.retry_timer or "", self._turn.now_ms + pause_ms)
            return
        self._begin()
        if failure is not None and self.retry_timer is not None:
            self._turn.set_timer(self.retry_timer, self._turn.now_ms + RETRY_MS)

    def on_timer(self) -> None:
        """Continue after a pause, and repeat a failed save."""
        self._is_pausing = False
        self.save_if_changed()
        self._begin()
