"""Calling the user's code."""

import logging
import threading

import pytest
from tests.support.deliveries import a_received_message

from holdfast.client.consume.listener import ListenerCall, RetryLater, delay_level_of, is_final, log_failure
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue

MESSAGE = a_received_message(MessageQueue("t", "b", 0), 5)


async def test_an_async_function_runs_on_the_loop():
    """In its thread; also one that is a method of an object that can be called."""
    threads: list[threading.Thread] = []

    async def listen(message: ReceivedMessage) -> None:
        threads.append(threading.current_thread())

    class Callable:
        async def __call__(self, message: ReceivedMessage) -> None:
            await listen(message)

    await ListenerCall(listen, 1)(MESSAGE)
    await ListenerCall(Callable(), 1)(MESSAGE)
    assert threads == [threading.main_thread()] * 2


async def test_a_plain_function_runs_in_a_thread():
    """So that it may block."""
    threads: list[threading.Thread] = []

    def listen(message: ReceivedMessage) -> None:
        threads.append(threading.current_thread())

    call = ListenerCall(listen, 1)
    await call(MESSAGE)
    call.close()

    assert threads != [threading.main_thread()]


async def test_a_plain_function_that_returns_an_awaitable_is_awaited():
    """As lambdas around async functions do."""
    got: list[ReceivedMessage] = []

    async def listen(message: ReceivedMessage, extra: str) -> None:
        got.append(message)

    call = ListenerCall(lambda message: listen(message, "x"), 1)
    await call(MESSAGE)
    call.close()

    assert got == [MESSAGE]


async def test_what_the_listener_raises_comes_out():
    """Of either kind."""

    async def on_loop(message: ReceivedMessage) -> None:
        raise ValueError("a")

    def in_thread(message: ReceivedMessage) -> None:
        raise ValueError("b")

    for listener in (on_loop, in_thread):
        call = ListenerCall(listener, 1)
        with pytest.raises(ValueError, match=r"a|b"):
            await call(MESSAGE)
        call.close()


def test_retry_later_says_when():
    """Anything else leaves it to the broker."""
    assert delay_level_of(RetryLater(3)) == 3
    assert delay_level_of(ValueError()) == 0
    assert is_final(RetryLater(-1))
    assert not is_final(ValueError())


def test_a_failure_is_logged_with_its_trace_and_a_wish_is_not(caplog: pytest.LogCaptureFixture):
    """Raising `RetryLater` is no mistake."""
    caplog.set_level(logging.INFO, "holdfast.client")

    log_failure(MESSAGE, ValueError("x"))
    log_failure(MESSAGE, RetryLater(3))

    assert [(record.levelname, record.exc_info is not None) for record in caplog.records] == [
        ("WARNING", True),
        ("INFO", False),
    ]
