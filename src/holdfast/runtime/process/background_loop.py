"""An event loop in a background thread, for callers without asyncio.

    any thread ── run(coroutine) ──> the loop's thread runs it ──> its result, in the thread that called

The loop starts with the first call and ends with the process. A forked child has no such thread: it starts a new loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.model.errors import LocalProtocolError
from holdfast.runtime.process.fork import register_after_fork

_T = TypeVar("_T")


class BackgroundLoop:
    """The loop and its thread.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._start_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Loops of the processes that forked this one.
        self._inherited_loops: list[asyncio.AbstractEventLoop | None] = []
        register_after_fork(self._disown)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run *coroutine* on the loop and return its result. An interrupt of the caller cancels it.

        Raises:
            LocalProtocolError: the caller runs on the loop itself, which would deadlock.
        """
        loop = self._get_loop()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise LocalProtocolError(
                "a blocking call was made on the event loop that has to serve it, by an async listener or checker: "
                "use a plain function, which runs in a thread, or the asyncio client"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Let the loop call *function*, without waiting for it."""
        self._get_loop().call_soon_threadsafe(function)

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        with self._start_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def _disown(self) -> None:
        """Start afresh in a forked child. The parent's loop is kept, because closing it would affect the parent."""
        self._inherited_loops.append(self._loop)
        self._loop = self._thread = None
        self._start_lock = threading.Lock()  # A thread that does not exist here may have held the old lock.
