"""The contents of an archive, and the atomic commit of a run.

    ARCHIVE/
      topic=orders/day=2026-11-16/000007-broker-a-00000000001073741824-0.parquet      the files for readers
      _holdfast/manifest.json         how far each broker's log is archived, and which offsets are
      _holdfast/runs/000007.json      the files that a run added
      _holdfast/lock                  held by the current run
      _staging/000007/                files of an uncommitted run; Spark ignores this folder

    tasks write to _staging ─ runs/N.json ─ manifest.json replaced: committed ─ files are moved to their final paths

A crash before the manifest is replaced leaves only files in `_staging`, which the next run removes. After a later
crash, the next run first completes the moves. So a reader of the archive sees a row once or, between commit and move,
not yet; never twice.

Needs a file system with atomic renames, which all workers see under the same path.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from holdfast.model.errors import ConfigError, HoldfastError
from holdfast.pipeline.scan.read_only import replace_file, sync_folder

_STATE_FOLDER: Final = "_holdfast"
_STAGING: Final = "_staging"
VERSION: Final = 1

Interval = tuple[int, int]
"""Offsets [first, end)."""


class ArchiveBroken(HoldfastError):
    """The archive does not match its manifest, or the manifest cannot be read; the text names the file."""


class ArchivedFile(msgspec.Struct, frozen=True):
    """One Parquet file.

    Attributes:
        staged: The file name in the staging folder of its run.
        path: The final path, relative to the archive's folder.
    """

    staged: str
    path: str
    topic: str
    day: str
    rows: int
    size: int


class ArchivedLog(msgspec.Struct, frozen=True):
    """How far a broker's log is archived.

    Attributes:
        position: Everything before this position is archived.
        tail: Checksum of the last bytes before *position*, to detect another log.
        tail_size: The number of bytes in the checksum.
    """

    position: int
    tail: int = 0
    tail_size: int = 0


class RunRecord(msgspec.Struct, frozen=True):
    """The files that a run added."""

    number: int
    finished_ms: int
    files: list[ArchivedFile]


class Manifest(msgspec.Struct, kw_only=True):
    """The state of an archive.

    Attributes:
        run: The number of the last committed run.
        is_moved: The files of that run are at their final paths.
        topics: The topic patterns of the first run.
        logs: How far each log is archived, by broker.
        offsets: The archived offsets by topic and queue. A queue of a normal topic is named `broker/number`.
    """

    version: int = VERSION
    run: int = 0
    is_moved: bool = True
    topics: list[str] = []
    logs: dict[str, ArchivedLog] = {}
    offsets: dict[str, dict[str, list[Interval]]] = {}


class Archive:
    """The folder of an archive, locked by one run at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = Manifest()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the archive while the block runs. Complete a committed earlier run; discard an uncommitted one.

        Raises:
            ConfigError: another run holds the lock, or a later version wrote the archive.
            ArchiveBroken: the manifest cannot be read, or one of its files is missing.
        """
        (self.root / _STATE_FOLDER).mkdir(parents=True, exist_ok=True)
        with (self.root / _STATE_FOLDER / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"another run is writing to the archive {self.root}: wait until it ends") from None
            self.manifest = self._load()
            self.finish_moves()
            shutil.rmtree(self.root / _STAGING, ignore_errors=True)
            yield

    def begin_run(self) -> Path:
        """Create and return the staging folder of the next run."""
        folder = self.root / _STAGING / f"{self.manifest.run + 1:06d}"
        folder.mkdir(parents=True)
        return folder

    def commit(self, manifest: Manifest, files: list[ArchivedFile], now_ms: int) -> None:
        """Commit a run, and move its files to their final paths."""
        if files:
            sync_folder(self.root / _STAGING / f"{manifest.run:06d}")
        record = RunRecord(manifest.run, now_ms, files)
        replace_file(self._run_path(manifest.run), msgspec.json.encode(record))
        manifest.is_moved = False
        self._save(manifest)
        self.finish_moves()

    def finish_moves(self) -> None:
        """Move the remaining files of the last run from staging to their final paths.

        Raises:
            ArchiveBroken: a file is at neither path.
        """
        manifest = self.manifest
        if manifest.is_moved:
            return
        staging = self.root / _STAGING / f"{manifest.run:06d}"
        folders: set[Path] = set()
        for file in self.read_run(manifest.run).files:
            target = self.root / file.path
            if not target.parent.is_dir():
                target.parent.mkdir(parents=True)
                folders |= {target.parent.parent, self.root}
            folders.add(target.parent)
            try:
                (staging / file.staged).rename(target)
            except FileNotFoundError:
                if not target.is_file():
                    raise ArchiveBroken(f"{target} belongs to the archive, but is nowhere") from None
        for folder in sorted(folders):
            sync_folder(folder)
        self._save(msgspec.structs.replace(manifest, is_moved=True))
        shutil.rmtree(self.root / _STAGING, ignore_errors=True)

    def read_run(self, number: int) -> RunRecord:
        """Return the files that a run added.

        Raises:
            ArchiveBroken: the record of the run cannot be read.
        """
        path = self._run_path(number)
        try:
            return msgspec.json.decode(path.read_bytes(), type=RunRecord)
        except (OSError, msgspec.MsgspecError) as error:
            raise ArchiveBroken(f"{path} cannot be read: {error}") from error

    def _run_path(self, number: int) -> Path:
        return self.root / _STATE_FOLDER / "runs" / f"{number:06d}.json"

    def _save(self, manifest: Manifest) -> None:
        replace_file(self.root / _STATE_FOLDER / "manifest.json", msgspec.json.encode(manifest))
        self.manifest = manifest

    def _load(self) -> Manifest:
        path = self.root / _STATE_FOLDER / "manifest.json"
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return Manifest()
        except (OSError, msgspec.MsgspecError) as error:
            raise ArchiveBroken(f"{path} cannot be read: {error}") from error
        if manifest.version > VERSION:
            raise ConfigError(f"the archive {self.root} was written by a later version of Holdfast: use that version")
        return manifest


def final_path(topic: str, day: str, name: str) -> str:
    """Return the final path of a file: Spark reads topic and day from the folder names."""
    return f"topic={quote(topic, safe='')}/day={day}/{name}"


def join_intervals(parts: Iterable[Interval]) -> list[Interval]:
    """Return the offsets of *parts* in as few intervals as possible."""
    joined: list[Interval] = []
    for first, end in sorted(parts):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((first, end))
    return joined
