"""The shell of the console: it listens and runs the application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn

from holdfast.admin.operations import Admin, now_ms
from holdfast.client.access.credentials_options import CredentialsArguments
from holdfast.console.app import build_app
from holdfast.console.context import Context
from holdfast.console.options import ConsoleOptions, check_console_address
from holdfast.console.plans import PendingPlans
from holdfast.console.poller import Poller
from holdfast.machine.effects import Log
from holdfast.runtime.address import to_listen_error
from holdfast.runtime.logs import Emit

CONNECTIONS_MAX: Final = 256
_STOP_S: Final = 3


class ConsoleService:
    """One console.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, options: ConsoleOptions, emit: Emit) -> None:
        self.address = options.listen
        self._host, self._port = check_console_address(options.listen)
        self._emit = emit
        access: CredentialsArguments = {} if options.credentials is None else options.credentials.to_arguments()
        self._admin = Admin(options.namesrv, timeout_s=options.timeout_s, tls=options.tls, **access)
        self._poller = Poller(self._admin, emit)
        self._context = Context(self._admin, PendingPlans(now_ms), self._poller, emit, options.is_read_only)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where browsers reach it."""
        return f"http://{self.address}/"

    async def start(self) -> None:
        """Start to serve; return once it serves."""
        listening = self._listen()
        await self._admin.__aenter__()
        self._poller.start()
        config = uvicorn.Config(
            build_app(self._context),
            lifespan="off",
            http="h11",
            ws="none",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            proxy_headers=False,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=_STOP_S,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve([listening]))
        await self._server.ready.wait()
        self._emit(Log("info", "console listening", {"address": self.address}))

    async def stop(self) -> None:
        """Shut down in order."""
        await self._poller.stop()
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        await self._admin.__aexit__()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self._host, self._port))
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise to_listen_error(self._host, self._port, error, option="listen") from error
        port = listening.getsockname()[1]
        self.address = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        return listening


class _Server(uvicorn.Server):
    """A server that says when it serves, and leaves signals to the command that runs it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve."""
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
