"""Calls the application's listener with a message.

An async function runs on the event loop; a plain function runs in a thread, so that it may block. Returning means that
the message is done. Raising means that it is to be redelivered; `RetryLater` chooses when.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from holdfast.client.consume.send_back import TO_DEAD_LETTER
from holdfast.model.message import ReceivedMessage

log = logging.getLogger("holdfast.client")

Listener = Callable[[ReceivedMessage], Awaitable[None] | None]


class RetryLater(Exception):
    """Raise it in a listener to get the message redelivered after a delay of your choice.

    Args:
        delay_level: 1..18, see `Message.delay_level`; 0 lets the broker choose, longer each time; -1 means never again:
            the message goes to the dead-letter topic now.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"retry with delay level {delay_level}")
        self.delay_level = delay_level


def delay_level_of(error: BaseException) -> int:
    """Return the delay level for a message whose listener raised *error*."""
    return error.delay_level if isinstance(error, RetryLater) else 0


def is_final(error: BaseException) -> bool:
    """Return whether *error* of a listener asks for no redelivery."""
    return delay_level_of(error) == TO_DEAD_LETTER


def log_failure(message: ReceivedMessage, error: Exception) -> None:
    """Log that a listener failed. A `RetryLater` is intended, and logged only as information."""
    if isinstance(error, RetryLater):
        log.info("message %s: %s", message.message_id, error)
    else:
        log.warning("message %s failed (%d times before)", message.message_id, message.reconsume_times, exc_info=error)


class ListenerCall:
    """A listener and the threads in which it runs, if it is a plain function.

    Args:
        listener: The application's function.
        threads_max: The maximum number of concurrent calls of a plain function.
    """

    def __init__(self, listener: Listener, threads_max: int) -> None:
        self._listener = listener
        called = listener if inspect.isroutine(listener) else getattr(listener, "__call__", listener)  # noqa: B004 - its kind is asked
        self._is_async = inspect.iscoroutinefunction(called)
        self._threads = None if self._is_async else ThreadPoolExecutor(threads_max, thread_name_prefix="listener")

    async def __call__(self, message: ReceivedMessage) -> None:
        """Call the listener and return when it is done. Its exceptions propagate."""
        if self._threads is None:
            result = self._listener(message)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, self._listener, message)
        if inspect.isawaitable(result):
            await result

    def close(self) -> None:
        """Start no more threads. Does not wait for running calls."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
