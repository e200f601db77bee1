"""Tracks the configuration files that could not be written because the disk is full; logs when that begins and ends.

The shell retries the writes (`WriteFile.is_retried`), and a timer retries topics and groups. Nothing is lost while the
process runs, and no restart is needed.
"""

from __future__ import annotations

from holdfast.machine.effects import Effect, Log


class UnwrittenFiles:
    """Paths of the files whose last write failed because the disk was full."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def write_failed(self, path: str, reason: str) -> list[Effect]:
        """Record that *path* could not be written; log it if it is the first such file."""
        is_first = not self._paths
        self._paths.add(path)
        if not is_first:
            return []
        hint = "free space; the write is retried, and sends are still accepted while the log and its index have space"
        return [Log("error", "no space for configuration files", {"file": path, "reason": reason, "hint": hint})]

    def write_succeeded(self, path: str) -> list[Effect]:
        """Record that *path* was written; log it if no other file is left."""
        if path not in self._paths:
            return []
        self._paths.remove(path)
        return [] if self._paths else [Log("info", "configuration files are written again", {"file": path})]
