"""An event loop in a background thread."""

import asyncio
import threading

import pytest

from holdfast.model.errors import LocalProtocolError
from holdfast.runtime.process.background_loop import BackgroundLoop


async def where() -> threading.Thread:
    return threading.current_thread()


def test_every_caller_shares_one_thread():
    """Which ends with the process, not before."""
    loop = BackgroundLoop("test")

    thread = loop.run(where())

    assert (thread.name, thread.daemon) == ("test", True)
    assert loop.run(where()) is thread is not threading.current_thread()


def test_exceptions_come_out():
    """In the thread that called."""

    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        BackgroundLoop("test").run(fail())


def test_a_call_need_not_be_waited_for():
    """It happens on the loop."""
    called = threading.Event()
    BackgroundLoop("test").call_soon(called.set)
    assert called.wait(30)


def test_the_loop_does_not_wait_for_itself():
    """That would never end."""
    loop = BackgroundLoop("test")

    async def wait_here() -> None:
        loop.run(asyncio.sleep(0))

    with pytest.raises(LocalProtocolError, match="event loop that has to serve it"):
        loop.run(wait_here())
