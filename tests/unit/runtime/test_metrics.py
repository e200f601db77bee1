"""Numbers and health over HTTP, read on the loop."""

import asyncio
import random
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Certificates
from tests.support.deliveries import poll_until

from holdfast.access.scrape_guard import ScrapeGuard
from holdfast.machine.effects import Log
from holdfast.machine.security_options import SecurityOptions
from holdfast.model.errors import PortTaken
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.runtime import metrics
from holdfast.runtime.exposition import CONNECTIONS_MAX
from holdfast.runtime.metrics import MetricsServer, Sample
from holdfast.runtime.tls import RoleTls

TOKEN = "the-token-of-all-scrapers"


def fetch(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def served(
    path: str, samples: Callable[[], Iterable[Sample]] = lambda: (), fault: Callable[[], str | None] = lambda: None
) -> tuple[int, str]:
    """Return what a server with these functions answers."""
    server = MetricsServer(samples, fault)
    port = server.start("127.0.0.1", 0)
    try:
        return await asyncio.to_thread(fetch, port, path)
    finally:
        server.stop()


async def test_samples_are_prometheus_text():
    """Counters end in _total, labels are kept, one family has one head."""
    samples = [
        Sample("puts", "counter", "Messages stored.", 3, {"topic": "a"}),
        Sample("puts", "counter", "Messages stored.", 4, {"topic": 'b"'}),
        Sample("channels", "gauge", "Connections.", 7),
    ]

    status, text = await served("/metrics", lambda: samples)

    assert status == 200
    assert 'holdfast_puts_total{topic="a"} 3.0' in text
    assert 'holdfast_puts_total{topic="b\\""} 4.0' in text
    assert text.count("# HELP holdfast_puts_total Messages stored.") == 1
    assert "holdfast_channels 7.0" in text
    assert "process_resident_memory_bytes" in text


async def test_counters_are_read_on_the_loop():
    """No number is torn: the machine is not in the middle of an event while it is read."""
    threads = []

    def samples() -> list[Sample]:
        threads.append(threading.current_thread())
        return []

    await served("/metrics", samples)

    assert threads == [threading.main_thread()]


async def test_a_healthy_role_says_ok():
    """200 and a word."""
    assert await served("/health") == (200, "ok\n")


async def test_a_fault_is_unavailable_with_its_reason():
    """503: who balances load takes the role out."""
    assert await served("/health", fault=lambda: "the disk has failed") == (503, "the disk has failed\n")


async def test_a_loop_that_stands_still_is_unhealthy(monkeypatch: pytest.MonkeyPatch):
    """Health is asked of the loop itself: when it does not turn, that is the answer."""
    monkeypatch.setattr(metrics, "LOOP_TIMEOUT_S", 0.05)

    server = MetricsServer(list, lambda: None)
    port = server.start("127.0.0.1", 0)
    answers: list[tuple[int, str]] = []
    asker = threading.Thread(target=lambda: answers.append(fetch(port, "/health")))
    asker.start()
    asker.join()  # blocks the loop on purpose
    server.stop()
    status, text = answers[0]

    assert status == 503
    assert "event loop" in text


async def test_other_paths_say_what_there_is():
    """404 with a hint."""
    status, text = await served("/")

    assert (status, text) == (404, "not found: use /metrics or /health\n")


async def test_a_port_that_is_taken_is_a_configuration_error():
    """Told by address, not by a traceback."""
    first, second = MetricsServer(list, lambda: None), MetricsServer(list, lambda: None)
    port = first.start("127.0.0.1", 0)
    try:
        with pytest.raises(PortTaken, match=f"port {port} of 127.0.0.1 is taken.*--metrics-listen"):
            second.start("127.0.0.1", port)
    finally:
        first.stop()


@asynccontextmanager
async def secured(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[int, ssl.SSLContext, list[Log]]]:
    """Provide the port of a server with TLS, the context of a client that trusts it, and the log."""
    lines: list[Log] = []
    files = Certificates(tmp_path)
    settings = SecurityOptions(**{"tls": "permissive", **files.options, **options})
    server = MetricsServer(list, lambda: None, RoleTls(settings, lines.append))
    try:
        yield server.start("127.0.0.1", 0), ssl.create_default_context(cafile=files.ca), lines
    finally:
        server.stop()


def fetch_secured(port: int, context: ssl.SSLContext) -> str:
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/health", timeout=20, context=context) as answer:
        text: str = answer.read().decode()
        return text


async def test_one_port_answers_with_and_without_tls(tmp_path: Path):
    """The first byte shows which it is."""
    async with secured(tmp_path) as (port, context, _):
        assert await asyncio.to_thread(fetch_secured, port, context) == "ok\n"
        assert await asyncio.to_thread(fetch, port, "/health") == (200, "ok\n")


async def test_plain_requests_are_refused_where_tls_is_enforced(tmp_path: Path):
    """With a line in the log."""
    async with secured(tmp_path, tls="enforcing") as (port, context, lines):
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            await asyncio.to_thread(fetch, port, "/health")
        assert await asyncio.to_thread(fetch_secured, port, context) == "ok\n"
        await poll_until(lambda: bool(lines))
        assert lines[0].event == "plain connection refused"


async def test_silent_connections_are_bounded_in_number_and_time(tmp_path: Path):
    """A scraper beside them is served."""
    async with secured(tmp_path, handshake_timeout_ms=500) as (port, context, _):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX + 36)]
        for beginning in silent[::2]:
            beginning.sendall(b"\x16\x03")
        assert await asyncio.to_thread(fetch_secured, port, context) == "ok\n"
        for connection in silent:
            with connection:
                connection.settimeout(20)
                with suppress(ConnectionResetError):
                    assert await asyncio.to_thread(connection.recv, 1) == b""


async def test_a_scraper_without_the_token_is_refused_and_the_health_is_for_everybody():
    """401 with the ways in, and one line for the log."""
    role = NameServer(NameServerOptions(), random.Random(7))
    lines: asyncio.Queue[Log] = asyncio.Queue()
    guard = ScrapeGuard(role.authority, role.door.audited, TOKEN, is_required=False)
    server = MetricsServer(list, lambda: None, None, guard, lines.put_nowait)
    port = server.start("127.0.0.1", 0)
    try:
        status, text = await asyncio.to_thread(fetch, port, "/metrics")
        assert (status, "Bearer" in text) == (401, True)
        assert (await lines.get()).audit == "refusal"
        assert await asyncio.to_thread(fetch, port, "/health") == (200, "ok\n")

        wrong = await asyncio.to_thread(fetch, port, "/metrics", {"Authorization": "Bearer something-else"})
        assert wrong[0] == 401
        right = await asyncio.to_thread(fetch, port, "/metrics", {"Authorization": f"Bearer {TOKEN}"})
        assert right[0] == 200
    finally:
        server.stop()
