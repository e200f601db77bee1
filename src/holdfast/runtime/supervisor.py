"""Start child processes, wait until each reports that it is ready, and restart those that die.

    starting ──ready line──> running ──ended──> waiting (back-off) ──> starting
                                └──────stop──────> stopped

A child prints one JSON line on its standard output when it is ready. It stops in order on SIGTERM or when its standard
input ends, so no child outlives a supervisor that was killed. Each child has a separate session, so that Ctrl-C at the
terminal reaches only the supervisor, which decides the order of stopping.

Independent of the children's purpose and configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.machine.effects import Log
from holdfast.model.errors import HoldfastError
from holdfast.runtime.logs import Emit

READY_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
BACK_OFF_FIRST_S: Final = 0.2
BACK_OFF_LAST_S: Final = 10.0
# A child that lived this long was healthy: after its next death the back-off starts again from the beginning.
HEALTHY_AFTER_S: Final = 10.0


class ChildFailed(HoldfastError):
    """A child ended, or printed no ready line, before it was ready."""


class ChildSpec(msgspec.Struct, frozen=True):
    """The command to run. It stays the same over restarts."""

    name: str
    command: tuple[str, ...]


class Child:
    """One supervised process.

    Attributes:
        pid: The id of the running process, or None.
        restarts: How often it died and was restarted.
        ready: Set while the child is ready.
    """

    def __init__(self, spec: ChildSpec, emit: Emit) -> None:
        self.name = spec.name
        self.restarts = 0
        self.ready = asyncio.Event()
        self._spec = spec
        self._emit = emit
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._monitor_task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> dict[str, Any]:
        """Start the process for the first time and return its ready line; from then on keep it running.

        Raises:
            ChildFailed: it ended first. There is no retry: a failed first start is a mistake to report.
        """
        ready_line = await self._launch()
        self._monitor_task = asyncio.create_task(self._monitor())
        return ready_line

    async def stop(self) -> None:
        """Stop the process in order; kill it after a long wait, and log that."""
        self._stopping.set()
        await self._terminate()
        if self._monitor_task is not None:
            await self._monitor_task

    def kill(self) -> None:
        """Kill the process at once, as a crash would."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _launch(self) -> dict[str, Any]:
        self._process = await asyncio.create_subprocess_exec(
            *self._spec.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        if self._stopping.is_set():
            await self._terminate()
            raise ChildFailed(f"{self.name} was stopped while it started")
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                ready_line = await self._read_ready_line(self._process)
        except BaseException as error:
            await self._terminate()
            if isinstance(error, TimeoutError):
                raise ChildFailed(f"{self.name} was not ready within {READY_TIMEOUT_S:g} s") from error
            raise
        self.ready.set()
        self._log("info", "ready", pid=self._process.pid, address=ready_line.get("address"))
        return ready_line

    async def _read_ready_line(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        assert process.stdout is not None
        line = await process.stdout.readline()
        try:
            ready_line = json.loads(line)
        except ValueError:
            ready_line = None
        if not isinstance(ready_line, dict):
            reason = describe_exit(await process.wait()) if not line else f"said {line[:80]!r}"
            raise ChildFailed(f"{self.name} could not start ({reason}); its own output is above")
        return ready_line

    async def _monitor(self) -> None:
        """Wait for the end of the process; restart it unless it is being stopped."""
        delay_s = BACK_OFF_FIRST_S
        while True:
            assert self._process is not None
            started_s = time.monotonic()
            reason = describe_exit(await self._process.wait())
            self.ready.clear()
            if self._stopping.is_set():
                return
            if time.monotonic() - started_s > HEALTHY_AFTER_S:
                delay_s = BACK_OFF_FIRST_S
            self._log("error", "died, restarting", reason=reason, in_s=delay_s)
            if await self._is_stopped_within(delay_s):
                return
            delay_s = min(2 * delay_s, BACK_OFF_LAST_S)
            self.restarts += 1
            # A failed restart has ended its process: the loop continues with a longer pause.
            with contextlib.suppress(ChildFailed):
                await self._launch()

    async def _is_stopped_within(self, delay_s: float) -> bool:
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _terminate(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            self._log("error", "did not stop, killed", after_s=STOP_TIMEOUT_S)
            process.kill()
            await process.wait()

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._emit(Log(level, event, {"role": self.name, **fields}))


class Supervisor:
    """The children of one process, stopped in reverse order of their start."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.children: list[Child] = []

    async def start(self, specs: Sequence[ChildSpec]) -> list[dict[str, Any]]:
        """Start *specs* concurrently and return their ready lines, in order.

        Raises:
            ChildFailed: a child could not start. The others keep running until `stop`.
        """
        children = [Child(spec, self._emit) for spec in specs]
        self.children += children
        results = await asyncio.gather(*(child.start() for child in children), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    def has_child(self, name: str) -> bool:
        """Return whether a child with that name was started."""
        return any(child.name == name for child in self.children)

    def get_child(self, name: str) -> Child:
        """Return the child with that name."""
        return next(child for child in self.children if child.name == name)

    async def stop(self, names: Sequence[str] | None = None) -> None:
        """Stop the children in *names* concurrently, or all children, the last started first."""
        if names is not None:
            await asyncio.gather(*(self.get_child(name).stop() for name in names))
            return
        for child in reversed(self.children):
            await child.stop()

    def kill(self) -> None:
        """Kill every child at once; everything that they acknowledged is on disk."""
        for child in self.children:
            child.kill()


def describe_exit(status: int) -> str:
    """Return a description of how a process ended."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
