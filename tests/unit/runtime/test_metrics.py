"""Numbers and health over HTTP, read on the loop."""

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable

import pytest

from holdfast.model.errors import PortTaken
from holdfast.runtime import metrics
from holdfast.runtime.metrics import MetricsServer, Sample


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
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
