"""A program that a test starts: what it says is kept, what it should say is awaited, its end is certain.

    started --wait_for_line--> ready --stop (TERM) or kill (KILL)--> ended

Nothing here sleeps: a reader thread wakes whoever waits for a line. Knows neither RocketMQ nor Holdfast.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

_TAIL_LINES = 60


class ChildFailed(Exception):
    """A child ended, or stayed silent, where the test needed more of it; the text ends with its last lines."""


class Child:
    """One running program. Its standard output and error are one stream of lines."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self._lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,  # a Ctrl-C at the terminal is for the test run, which then stops its children
        )
        self._reader = threading.Thread(target=self._read, name=f"reader of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def memory_size(self) -> int:
        """Return how many bytes of memory it has for itself."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.partition("RssAnon:")[2].split()[0])

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended yet."""
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """Return every line heard so far."""
        with self._changed:
            return list(self._lines)

    def write_line(self, line: str) -> None:
        """Write one line to the program's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_for_line(self, pattern: str, *, timeout_s: float, after: int = 0) -> str:
        """Return the first line, from number *after* on, in which *pattern* is found; wait for it."""
        expression = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        first = after
        with self._changed:
            while True:
                for line in self._lines[first:]:
                    if expression.search(line):
                        return line
                first = max(first, len(self._lines))
                remaining_s = deadline - time.monotonic()
                if self._ended:
                    raise ChildFailed(self._describe(f"ended before it said {pattern!r}"))
                if remaining_s <= 0:
                    raise ChildFailed(self._describe(f"did not say {pattern!r} within {timeout_s:g} s"))
                self._changed.wait(remaining_s)

    def wait(self, *, timeout_s: float) -> int:
        """Return the exit status once the program has ended by itself, and everything it said has been heard."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ChildFailed(self._describe(f"did not end within {timeout_s:g} s")) from None
        self._close()
        return status

    def stop(self, *, timeout_s: float = 60) -> int:
        """Ask the program to end (SIGTERM) and return its exit status."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s=timeout_s)

    def kill(self) -> None:
        """End the program and what it started, as a crash would (SIGKILL)."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def last_lines(self) -> str:
        """Return the last lines, to explain a failure with."""
        return "\n".join(self.lines()[-_TAIL_LINES:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _describe(self, problem: str) -> str:
        return f"{self.name} {problem}:\n" + "\n".join(self._lines[-_TAIL_LINES:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _close(self) -> None:
        self._reader.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # the program ended with unread input: nothing of ours is lost
