"""What an archive holds, and how a run becomes a part of it: all of it or nothing.

    ARCHIVE/
      topic=orders/day=2026-11-16/000007-broker-a-00000000001073741824-0.parquet      what everybody reads
      _holdfast/manifest.json         up to where each broker's log is in the archive, and which offsets are
      _holdfast/runs/000007.json      the files that a run added
      _holdfast/lock                  held by the run that goes on
      _staging/000007/                files of a run that is not committed; Spark does not look there

    tasks write to _staging ─ runs/N.json ─ manifest.json replaced: committed ─ files are moved to their places

A crash before the manifest is replaced leaves nothing but files in `_staging`, which the next run removes. A crash
after it leaves moves to be done: the next run does them first. So whoever reads the archive sees a row once or, for the
moment between commit and move, not yet; never twice.

Needs a file system with atomic renames that all workers see under one path.
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
from holdfast.pipeline.scan.read_only import replace_small, sync_folder

_OURS: Final = "_holdfast"
_STAGING: Final = "_staging"
VERSION: Final = 1

Interval = tuple[int, int]
"""Offsets [first, behind last)."""


class ArchiveBroken(HoldfastError):
    """The archive is not what its manifest says; the text says where."""


class ArchivedFile(msgspec.Struct, frozen=True):
    """One Parquet file.

    Attributes:
        staged: Its name in the staging folder of its run.
        path: Where it belongs, from the archive's folder.
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
        position: Everything before it is.
        tail: Checksum of the last bytes before it: another log is not taken for this one.
        tail_size: How many bytes these are.
    """

    position: int
    tail: int = 0
    tail_size: int = 0


class RunRecord(msgspec.Struct, frozen=True):
    """What a run added."""

    number: int
    finished_ms: int
    files: list[ArchivedFile]


class Manifest(msgspec.Struct, kw_only=True):
    """The state of an archive.

    Attributes:
        run: The number of the last run that is a part of it.
        is_moved: The files of that run are where they belong.
        topics: Which topics are archived, as was said at the first run.
        logs: By broker.
        offsets: By topic and queue, the offsets that are in the archive. A queue of a normal topic is `broker/number`.
    """

    version: int = VERSION
    run: int = 0
    is_moved: bool = True
    topics: list[str] = []
    logs: dict[str, ArchivedLog] = {}
    offsets: dict[str, dict[str, list[Interval]]] = {}


class Archive:
    """The folder of an archive, held by one run at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = Manifest()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the archive for the time of the block; what an earlier run left undone is done, or thrown away.

        Raises:
            ConfigError: another run holds it, or it is of a later version.
            ArchiveBroken: the manifest cannot be read, or a file that it knows is missing.
        """
        (self.root / _OURS).mkdir(parents=True, exist_ok=True)
        with (self.root / _OURS / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"another run writes to the archive {self.root}; wait for its end") from None
            self.manifest = self._load()
            self.finish_moves()
            shutil.rmtree(self.root / _STAGING, ignore_errors=True)
            yield

    def begin_run(self) -> Path:
        """Return the staging folder of the next run."""
        folder = self.root / _STAGING / f"{self.manifest.run + 1:06d}"
        folder.mkdir(parents=True)
        return folder

    def commit(self, manifest: Manifest, files: list[ArchivedFile], now_ms: int) -> None:
        """Make a run a part of the archive, and move its files to where they belong."""
        if files:
            sync_folder(self.root / _STAGING / f"{manifest.run:06d}")
        record = RunRecord(manifest.run, now_ms, files)
        replace_small(self._run_path(manifest.run), msgspec.json.encode(record))
        manifest.is_moved = False
        self._save(manifest)
        self.finish_moves()

    def finish_moves(self) -> None:
        """Move the files of the last run to where they belong, those that are not there yet.

        Raises:
            ArchiveBroken: one is neither there nor in staging.
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
                    raise ArchiveBroken(f"{target} is a part of the archive, but is nowhere") from None
        for folder in sorted(folders):
            sync_folder(folder)
        self._save(msgspec.structs.replace(manifest, is_moved=True))
        shutil.rmtree(self.root / _STAGING, ignore_errors=True)

    def read_run(self, number: int) -> RunRecord:
        """Return what a run added.

        Raises:
            ArchiveBroken: that is not known any more.
        """
        path = self._run_path(number)
        try:
            return msgspec.json.decode(path.read_bytes(), type=RunRecord)
        except (OSError, msgspec.MsgspecError) as error:
            raise ArchiveBroken(f"{path} cannot be read: {error}") from error

    def _run_path(self, number: int) -> Path:
        return self.root / _OURS / "runs" / f"{number:06d}.json"

    def _save(self, manifest: Manifest) -> None:
        replace_small(self.root / _OURS / "manifest.json", msgspec.json.encode(manifest))
        self.manifest = manifest

    def _load(self) -> Manifest:
        path = self.root / _OURS / "manifest.json"
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return Manifest()
        except (OSError, msgspec.MsgspecError) as error:
            raise ArchiveBroken(f"{path} cannot be read: {error}") from error
        if manifest.version > VERSION:
            raise ConfigError(f"the archive {self.root} was written by a later version")
        return manifest


def place_of(topic: str, day: str, name: str) -> str:
    """Return where a file belongs: Spark takes topic and day from the names of folders."""
    return f"topic={quote(topic, safe='')}/day={day}/{name}"


def join_intervals(parts: Iterable[Interval]) -> list[Interval]:
    """Return the same offsets in as few intervals as possible."""
    joined: list[Interval] = []
    for first, end in sorted(parts):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((first, end))
    return joined
