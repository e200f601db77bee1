"""Samples and health over HTTP: samples as Prometheus text, health as a status code.

    GET /metrics   200, every sample by family, and figures of the process
    GET /health    200 `ok`, or 503 and the reason

Independent of roles and the event loop: it calls two functions from its own threads.
"""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from holdfast.machine.sample import Sample

PREFIX: Final = "holdfast_"


def build_server(
    host: str, port: int, read: Callable[[], Iterable[Sample]], find_fault: Callable[[], str | None]
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
            body: Iterable[bytes] = metrics_app(environ, start_response)
            return body
        if path != "/health":
            return _respond_text(start_response, "404 Not Found", "not found: use /metrics or /health\n")
        fault = find_fault()
        if fault is None:
            return _respond_text(start_response, "200 OK", "ok\n")
        return _respond_text(start_response, "503 Service Unavailable", f"{fault}\n")

    return make_server(host, port, answer, _ThreadingServer, _QuietHandler)


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


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # A silent scraper must not occupy its thread for ever.

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing: a scrape every few seconds is not an event."""


def _respond_text(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    body = text.encode()
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
    return [body]
