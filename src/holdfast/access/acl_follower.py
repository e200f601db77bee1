"""Follows RocketMQ's ACL 1.0 files: reads them again when they change, all or nothing.

    every second: which files, of which size and time? ─┬─ as read ─────────────────────> nothing to do
                                                        ├─ other than a second ago ─────> still being written: wait
                                                        └─ as a second ago, not read ──> read: all of them are used,
                                                                                         or those from before

The operator names a file, usually `conf/plain_acl.yml`: then every `*.yml` and `*.yaml` in the folder `acl` beside it
is followed, too, as in RocketMQ. Or the operator names a folder: then every such file in it is, except `tools.yml`. The
files are never written. At the start of the role a file that cannot be used stops the start; later it is reported, and
the rules from before stay in force. So do they while the named file is missing.

The component reads the folder through a `Disk`, as kept files are loaded: small files, and without waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from holdfast.access.acl_file_reader import FILE_SIZE_MAX, read_acl_files
from holdfast.access.directory_store import AccessStore
from holdfast.machine.component import Component
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.errors import ConfigError, DiskFailed
from holdfast.store.base.disk import Disk

TIMER: Final = "acl-files"
LOOK_MS: Final = 1_000
FOLDER: Final = "acl"
_ENDINGS: Final = (".yml", ".yaml")
_TOOLS: Final = "tools.yml"
"""The credentials of RocketMQ's own tools, which often are in the same folder."""
_FILES_MAX: Final = 1_000
_DEPTH_MAX: Final = 8

_State = dict[str, tuple[int, int]]
"""Path to size and time of the last write."""


class AclFollower(Component):
    """Keeps the content of the ACL 1.0 files in effect.

    Args:
        store: Where it is used, beside the directory.
        disk: The folder that the operator named, or that contains the file.
        name: The name of the file; empty: the operator named the folder.
        turn: The turn of the role.

    Raises:
        ConfigError: a file cannot be used, or the one that the operator named does not exist.
    """

    def __init__(self, store: AccessStore, disk: Disk, name: str, turn: Turn) -> None:
        self._store = store
        self._disk = disk
        self._name = name
        self._turn = turn
        self._fault = ""
        self._seen = self._read = self._used = self._look()
        self._use(self._seen)

    def timers(self) -> dict[str, Callable[[], None]]:
        """Return the timers of this component, by name."""
        return {TIMER: self._on_timer}

    def start(self) -> None:
        """Begin to look for changes."""
        self._turn.set_timer(TIMER, self._turn.now_ms + LOOK_MS)

    def metrics(self) -> Iterator[Sample]:
        """Yield whether the files as they are now are in effect."""
        yield Sample(
            "access_acl_file_faults", "gauge", "1 while the ACL 1.0 files cannot be used.", int(self._fault != "")
        )

    def _on_timer(self) -> None:
        self._turn.set_timer(TIMER, self._turn.now_ms + LOOK_MS)
        try:
            before, self._seen = self._seen, self._look()
            if self._seen == self._used:  # Perhaps again: a missing file has come back.
                self._fault, self._read = "", self._used
            elif self._seen == before and self._seen != self._read:
                self._read = self._seen
                self._use(self._seen)
                self._fault, self._used = "", self._seen
                self._turn.log("info", "ACL 1.0 files read again", files=len(self._seen))
        except (ConfigError, DiskFailed) as error:
            if self._fault != str(error):
                self._fault = str(error)
                event = "ACL 1.0 files not used, the rules from before stay in force"
                self._turn.log("error", event, reason=self._fault)

    def _look(self) -> _State:
        """Return the state of all files.

        Raises:
            ConfigError: the file that the operator named does not exist, or there are too many.
        """
        if self._name and self._disk.find_size(self._name) is None:
            raise ConfigError(f"the ACL file {self._name} does not exist: correct acl_file, or create it")
        paths = [self._name] if self._name else []
        folders = [(FOLDER if self._name else "", 1)]
        while folders:
            folder, depth = folders.pop()
            for name in self._disk.list(folder):
                path = f"{folder}/{name}" if folder else name
                if name.endswith("/") and depth < _DEPTH_MAX:
                    folders.append((path.removesuffix("/"), depth + 1))
                elif name.endswith(_ENDINGS) and name != _TOOLS:
                    paths.append(path)
            if len(paths) > _FILES_MAX:
                raise ConfigError(f"there are more than {_FILES_MAX} ACL files: merge some, or correct acl_file")
        if not paths:
            raise ConfigError("the folder has no ACL file (*.yml): correct acl_file")
        # Of several definitions of an account the first counts, so the named file comes first.
        paths[self._name != "" :] = sorted(paths[self._name != "" :])
        return {path: self._stat(path) for path in paths}

    def _stat(self, path: str) -> tuple[int, int]:
        size = self._disk.find_size(path)
        return (-1, -1) if size is None else (size, self._disk.modified_ms(path))

    def _use(self, state: _State) -> None:
        """Read the files and put their content into effect.

        Raises:
            ConfigError: one of them cannot be used. Nothing was changed.
        """
        files = []
        for path, (size, _) in state.items():
            if size > FILE_SIZE_MAX:
                raise ConfigError(f"the ACL file {path} has {size} bytes, at most {FILE_SIZE_MAX} are read")
            files.append((path, self._disk.read_file(path) or b""))
        acl = read_acl_files(files)
        for warning in acl.warnings:
            self._turn.log("warning", "ACL 1.0 file", reason=warning)
        self._store.follow(acl)
