"""Samples and health over HTTP: samples as Prometheus text, health as a status code.

    GET /metrics   200, every sample by family, and figures of the process; 401 for a scraper that may not read them
    GET /health    200 `ok`, or 503 and the reason

Independent of roles and the event loop: it calls two functions from its own threads.
"""

from __future__ import annotations

import socket
import socketserver
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import Lock
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from holdfast.machine.sample import Sample

PREFIX: Final = "holdfast_"
# Each has a thread. If more connect, the one that connected first is closed.
CONNECTIONS_MAX: Final = 64

Secure = Callable[[socket.socket, str], socket.socket | None]
"""Returns the socket of a new connection with TLS if its peer uses it; None to close it. May block."""


FindRefusal = Callable[[str, str], str | None]
"""Returns why a scraper may not read the metrics, by its `Authorization` header and its address; None if it may."""


def build_server(
    host: str,
    port: int,
    read: Callable[[], Iterable[Sample]],
    find_fault: Callable[[], str | None],
    secure: Secure | None = None,
    find_refusal: FindRefusal | None = None,
) -> WSGIServer:
    """Return a server that already listens; run `serve_forever` to answer.

    Raises:
        OSError: the address is invalid or in use.
    """
    registry = CollectorRegistry()
    registry.register(_RoleCollector(read))
    ProcessCollector(registry=registry)
    metrics_app = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            refusal = None
            if find_refusal is not None:
                refusal = find_refusal(environ.get("HTTP_AUTHORIZATION", ""), environ.get("REMOTE_ADDR", ""))
            if refusal is not None:
                challenge = [("WWW-Authenticate", 'Basic realm="holdfast"'), ("WWW-Authenticate", "Bearer")]
                return _respond_text(start_response, "401 Unauthorized", f"{refusal}\n", challenge)
            body: Iterable[bytes] = metrics_app(environ, start_response)
            return body
        if path != "/health":
            return _respond_text(start_response, "404 Not Found", "not found: use /metrics or /health\n")
        fault = find_fault()
        if fault is None:
            return _respond_text(start_response, "200 OK", "ok\n")
        return _respond_text(start_response, "503 Service Unavailable", f"{fault}\n")

    server = make_server(host, port, answer, _ThreadingServer, _QuietHandler)
    server.secure = secure
    return server


class _RoleCollector(Collector):
    """Converts samples to Prometheus families at scrape time."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for sample in self._read():
            family = families.get(sample.name)
            if family is None:
                kind = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
                family = families[sample.name] = kind(PREFIX + sample.name, sample.about, labels=list(sample.labels))
            family.add_metric(list(sample.labels.values()), sample.value)
        yield from families.values()

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not read samples."""
        return []


class _ThreadingServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    secure: Secure | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lock = Lock()
        self._connections: dict[socket.socket, None] = {}  # ordered by time

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one connection, in its thread."""
        # A second handle: TLS takes over the first one.
        with request.dup() as handle:
            self._limit_connections(handle)
            try:
                secured = request if self.secure is None else self.secure(request, str(client_address[0]))
                if secured is not None:
                    with secured:
                        super().finish_request(secured, client_address)
            except OSError:
                pass  # The peer has gone, or its connection was closed in favour of a later one.
            finally:
                with self._lock:
                    self._connections.pop(handle, None)

    def _limit_connections(self, handle: socket.socket) -> None:
        """Close the connection that began first, if there are too many with *handle*."""
        with self._lock:
            self._connections[handle] = None
            if len(self._connections) > CONNECTIONS_MAX:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # A silent scraper must not occupy its thread for ever.

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing: a scrape every few seconds is not an event."""


def _respond_text(
    start_response: StartResponse, status: str, text: str, headers: Iterable[tuple[str, str]] = ()
) -> Iterable[bytes]:
    body = text.encode()
    usual = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    start_response(status, [*usual, *headers])
    return [body]
