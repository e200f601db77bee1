"""The throttle of one outgoing connection: its server has asked this client to wait (7063)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.wire.access.throttle import read_wait_ms
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

log = logging.getLogger("holdfast.client")


class Throttle:
    """Waits as long as a server asks for; of several requests, the one that ends last counts.

    Args:
        address: The server.
        on_end: Called when the wait is over.
    """

    def __init__(self, address: str, on_end: Callable[[], None]) -> None:
        self._address = address
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_active(self) -> bool:
        """Whether the server wants no more requests now."""
        return self._timer is not None

    def accept(self, command: Command) -> bool:
        """Begin to wait if a server's request asks for that; return whether it does.

        Raises:
            RemoteProtocolError: the request does not say for how long.
        """
        if command.code != RequestCode.THROTTLE:
            return False
        wait_ms = read_wait_ms(command)
        end_s = self._loop.time() + wait_ms / 1000
        if self._timer is None:
            log.debug("%s asks to wait %d ms: the user is above its rate", self._address, wait_ms)
        elif self._timer.when() >= end_s:
            return True
        self.cancel()
        self._timer = self._loop.call_at(end_s, self.end)
        return True

    def end(self) -> None:
        """Wait no longer."""
        self.cancel()
        self._on_end()

    def cancel(self) -> None:
        """Wait no longer, because the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
