"""Tracks the configuration files that the disk has no space for, and logs when that begins and ends.

The shell retries the writes (`WriteFile.is_retried`), topics and groups are retried by their timer: nothing is lost
that memory still has, and no restart is needed.
"""

from __future__ import annotations

from holdfast.machine.effects import Effect, Log


class UnwrittenFiles:
    """Paths of files whose last write was refused for want of space."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def failed(self, path: str, reason: str) -> list[Effect]:
        """Note that *path* could not be written."""
        is_first = not self._paths
        self._paths.add(path)
        if not is_first:
            return []
        hint = "free space; the write is retried, and messages are still taken while the log and its index have space"
        return [Log("error", "no space for configuration files", {"file": path, "reason": reason, "hint": hint})]

    def written(self, path: str) -> list[Effect]:
        """Note that *path* was written."""
        if path not in self._paths:
            return []
        self._paths.remove(path)
        return [] if self._paths else [Log("info", "configuration files are written again", {"file": path})]
