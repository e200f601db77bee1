"""Appends audit lines to a file, as JSON.

    Log with a kind of audit ─┬─> the log of the role, like all others
                              └─> one line at the end of the file; if that fails: an error in the log, with the line

Only the owner can read the file. Rotate it with logrotate or by hand: when it has been moved away, the next line
begins a new file. Nothing is ever deleted here.

Any client can cause failed logins and refusals, enough of them to fill the disk. Above a limit they are counted, and
the file says how many there were. Changes by administrators are never left out.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast.machine.effects import AuditKind, Log
from holdfast.model.errors import ConfigError
from holdfast.runtime.logs import Emit

WINDOW_S: Final = 10.0
LINES_MAX: Final = 1_000
"""Of failed logins, and of refusals, that the file gets in each window."""
NOT_WRITTEN: Final = "audit line not written"
"""The event of the error for each line that the file does not contain."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class AuditFile:
    """The audit file of one role.

    Args:
        path: The file; it need not exist.
        server: Who writes, for readers.
        emit: Writes one line to the log.
        clock: Measures the windows.

    Raises:
        ConfigError: the file cannot be opened, or others may have access to it.
    """

    def __init__(self, path: str, server: str, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._server = server
        self._log = emit
        self._clock = clock
        self._windows: dict[AuditKind, tuple[float, int]] = {}  # begin, lines since then
        self._is_torn = False  # whether the file ends with a part of a line
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise ConfigError(f"audit_file: cannot write to {path}: {error.strerror or error}") from None

    def emit(self, effect: Log) -> None:
        """Write *effect* to the log, and to the file if it is an audit line."""
        self._log(effect)
        if effect.audit is not None and self._admit(effect.audit):
            self._append(effect.audit, effect.event, effect.fields)

    def close(self) -> None:
        """Write how many lines were left out, and close the file."""
        for kind, (_, count) in self._windows.items():
            self._note_left_out(kind, count)
        os.close(self._descriptor)

    def _admit(self, kind: AuditKind) -> bool:
        """Return whether the file gets one more line of this kind."""
        if kind == "change":
            return True
        now = self._clock()
        begin, count = self._windows.get(kind, (now, 0))
        if now - begin >= WINDOW_S:
            self._note_left_out(kind, count)
            begin, count = now, 0
        self._windows[kind] = begin, count + 1
        return count < LINES_MAX

    def _note_left_out(self, kind: AuditKind, count: int) -> None:
        if count > LINES_MAX:
            self._append(kind, "not recorded", {"times": count - LINES_MAX})

    def _append(self, kind: AuditKind, event: str, fields: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"time": at, "server": self._server, "kind": kind, "event": event, **fields}
        line = msgspec.json.encode(entry, enc_hook=str)
        try:
            self._follow_rotation()
            self._write(line)
        except (OSError, ConfigError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            lost: dict[str, object] = {"file": self._path, "reason": reason, "line": line.decode(errors="replace")}
            self._log(Log("error", NOT_WRITTEN, lost))

    def _write(self, line: bytes) -> None:
        data = memoryview((b"\n" if self._is_torn else b"") + line + b"\n")
        while data:
            written = os.write(self._descriptor, data)
            data = data[written:]
            self._is_torn = bool(data)

    def _follow_rotation(self) -> None:
        """Begin a new file if the present one was moved away."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - a path from an option, as text
        except FileNotFoundError:
            found = None
        current = os.fstat(self._descriptor)
        if found is None or (found.st_dev, found.st_ino) != (current.st_dev, current.st_ino):
            following = self._open()
            os.close(self._descriptor)
            self._descriptor, self._is_torn = following, False

    def _open(self) -> int:
        """Return a descriptor of the file, which is created if there is none.

        Raises:
            OSError: it cannot be opened.
            ConfigError: it is no regular file, or others may have access to it.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # A pipe must not block.
        descriptor = os.open(self._path, flags, 0o600)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) and not mode & _OTHERS:
            return descriptor
        os.close(descriptor)
        if not stat.S_ISREG(mode):
            raise ConfigError(f"audit_file: {self._path} is not a regular file")
        raise ConfigError(
            f"audit_file: others may have access to {self._path} (mode {stat.S_IMODE(mode):o}): run"
            f" `chmod 600 {self._path}`"
        )
