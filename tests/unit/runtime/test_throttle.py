"""The wait that a server asks for, on one connection."""

import asyncio

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.runtime.throttle import Throttle
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command


def throttle_of(wait_ms: str) -> Command:
    return Command(code=RequestCode.THROTTLE, flag=ONE_WAY, fields={"waitMs": wait_ms})


async def test_a_wait_begins_with_the_request_for_it_and_ends_in_time():
    """Its owner is notified then. No other request has to do with it."""
    ended = asyncio.Event()
    throttle = Throttle("server:1", ended.set)

    assert not throttle.accept(Command(code=RequestCode.GET_ALL_PRODUCER_INFO))
    assert not throttle.is_active
    assert throttle.accept(throttle_of("1"))
    assert throttle.is_active
    await ended.wait()
    assert not throttle.is_active


async def test_the_wait_that_ends_last_counts():
    """Whichever was asked for last."""
    throttle = Throttle("server:1", lambda: None)
    for wait_ms in ("10000", "20000", "1"):
        assert throttle.accept(throttle_of(wait_ms))

    assert throttle._timer is not None
    assert throttle._timer.when() > asyncio.get_running_loop().time() + 15
    throttle.cancel()
    assert not throttle.is_active


async def test_a_wait_that_cannot_be_read_changes_nothing():
    """It is an error of the server."""
    throttle = Throttle("server:1", lambda: None)

    with pytest.raises(RemoteProtocolError, match="waitMs"):
        throttle.accept(throttle_of("soon"))

    assert not throttle.is_active
