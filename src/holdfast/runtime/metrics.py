"""The HTTP port for `/metrics` (Prometheus text) and `/health` of a role.

    scraper ──> HTTP thread ──asks──> event loop: read the role's plain counters ──> samples ──> text

Nothing is on the hot path: a role counts in plain attributes. Only a scrape reads them, on the loop between two events,
so the numbers are consistent. `/health` uses the loop, too, so it also shows whether the loop is responsive.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.access.scrape_guard import ScrapeGuard
from holdfast.machine.sample import Sample
from holdfast.runtime.address import to_listen_error
from holdfast.runtime.tls import TLS_FIRST_BYTE, Emit, RoleTls

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

LOOP_TIMEOUT_S: Final = 5.0

_Result = TypeVar("_Result")


ReadSamples = Callable[[], Iterable[Sample]]
FindFault = Callable[[], str | None]


class MetricsServer:
    """Serves the metrics and the health of one role until it is stopped.

    Args:
        read_samples: Returns the role's samples; called on the loop.
        find_fault: Returns why the role cannot serve, or None if it can; called on the loop.
        tls: How to use TLS; None for plain connections only.
        guard: Decides who may read the metrics; None: everybody. The health is for everybody.
        emit: Writes the log line of a refusal.
    """

    def __init__(
        self,
        read_samples: ReadSamples,
        find_fault: FindFault,
        tls: RoleTls | None = None,
        guard: ScrapeGuard | None = None,
        emit: Emit | None = None,
    ) -> None:
        self._guard = guard
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._read_samples = read_samples
        self._find_fault = find_fault
        self._tls = tls
        self._server: WSGIServer | None = None

    def start(self, host: str, port: int) -> int:
        """Listen on *host*:*port* (0: any free port) and return the port.

        Raises:
            ConfigError: the address is invalid.
            PortTaken: another process listens there.
        """
        # Imported only if metrics are enabled: it adds a tenth of a second to the start of a role.
        from holdfast.runtime.exposition import build_server  # noqa: PLC0415

        try:
            self._server = build_server(host, port, self._samples, self._health, self._secure, self._find_refusal)
        except OSError as error:
            raise to_listen_error(host, port, error, option="metrics-listen") from error
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True).start()
        return self._server.server_port

    def stop(self) -> None:
        """Close the port. Answers that wait for the loop are dropped."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _secure(self, sock: socket.socket, peer: str) -> socket.socket | None:
        """Return *sock* with TLS if the peer uses it; None if it must not be served. Called in the thread of *sock*."""
        if self._tls is None or self._tls.certificate is None:
            return sock
        sock.settimeout(self._tls.handshake_timeout_s)
        first = sock.recv(1, socket.MSG_PEEK)
        if first == TLS_FIRST_BYTE:
            return self._tls.certificate.current.wrap_socket(sock, server_side=True)
        if first and self._tls.is_enforcing:
            self._loop.call_soon_threadsafe(self._tls.report_plain, peer)
            return None
        return sock if first else None

    def _find_refusal(self, authorization: str, peer: str) -> str | None:
        """Return why a scraper may not read the metrics, or None if it may."""
        guard = self._guard
        if guard is None:
            return None
        refused = self._call_on_loop(lambda: guard.find_refusal(authorization, peer))
        if refused is None:
            return None
        if self._emit is not None:
            self._loop.call_soon_threadsafe(self._emit, refused)
        return str(refused.fields["reason"])

    def _samples(self) -> list[Sample]:
        return self._call_on_loop(lambda: list(self._read_samples()))

    def _health(self) -> str | None:
        try:
            return self._call_on_loop(self._find_fault)
        except TimeoutError:
            return f"the event loop has not answered for {LOOP_TIMEOUT_S:g} s"

    def _call_on_loop(self, read: Callable[[], _Result]) -> _Result:
        """Return the result of *read*, called on the loop between two events of the role."""
        result: Future[_Result] = Future()

        def run() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(read())
                except Exception as error:  # noqa: BLE001 - reported to the scraper; the role continues
                    result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        try:
            return result.result(LOOP_TIMEOUT_S)
        finally:
            result.cancel()


__all__ = ["FindFault", "MetricsServer", "ReadSamples", "Sample"]
