"""What holds for every test. The gate tries the same examples each time; `--hypothesis-profile=explore` new ones."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.support.descriptors import open_descriptors

# Where several processes share the tests, a file is one piece of work: the longest ones first, so that none of them is
# begun when the others have nothing left to do.
LONGEST = (
    "tests/interop/test_store_exchange.py",
    "tests/interop/test_mixed_cluster.py",
    "tests/interop/test_static_java.py",
    "tests/interop/test_route_push.py",
    "tests/interop/test_java_refusals.py",
    "tests/interop/test_java_client.py",
    "tests/interop/test_java_access.py",
    "tests/interop/test_guarded_java_servers.py",
    "tests/interop/test_static_groups.py",
    "tests/interop/test_static_features.py",
    "tests/integration/test_moves_under_load.py",
    "tests/sim/test_scenarios.py",
    "tests/sim/test_seeds.py",
    "tests/integration/test_logical_queues.py",
    "tests/sim",
    "tests/integration",
    "tests/anomaly",
    "tests/push",
    "tests/docs",
)
# What many tests share stays open to the end: a loop in the background, the way to a JVM, and a link with its loop for
# each cluster, group and unit that Spark's driver reads.
DESCRIPTORS_MAX = 80

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("gate")

# A broker reserves its log file. 1 GiB for each broker of a run would fill a disk; tests that need another size say so.
os.environ.setdefault("HOLDFAST_BROKER_LOG_FILE_SIZE", str(64 << 20))

# A shell that runs the tests in the background makes them ignore SIGINT, and the programs that they start and interrupt
# would ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`. Only this file is read before the command line, whatever folder is tested."""
    parser.addoption("--rewrite", action="store_true", help="write the output of today into the transcripts")


@pytest.fixture(scope="session", autouse=True)
def closed_in_the_end() -> Iterator[None]:
    """Let everything that tests opened be closed when all of them have ended; what leaks is named here."""
    before = open_descriptors()
    yield
    gc.collect()
    left = [what for number, what in open_descriptors().items() if before.get(number) != what]
    assert len(left) <= DESCRIPTORS_MAX, f"{len(left)} descriptors are open still: {Counter(left).most_common(20)}"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def patiently() -> None:
        # Ends before pytest-timeout does: a cancelled coroutine closes its servers and shows where it waited.
        async with asyncio.timeout(_find_limit_s(pyfuncitem)):
            await test(**arguments)

    asyncio.run(patiently())
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest; whoever runs tests in one process hears of the quick ones first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _find_rank(item.nodeid))


def pytest_collection_finish() -> None:
    """Spare the collector of garbage what lives as long as the process: thousands of tests, all that they import."""
    gc.collect()
    gc.freeze()


def _find_limit_s(item: pytest.Item) -> float | None:
    """Return the seconds that a coroutine test may take, of those that pytest-timeout grants; None without a limit."""
    marker = item.get_closest_marker("timeout")
    option = item.config.getoption("timeout")
    granted_s = marker.args[0] if marker else option if option is not None else item.config.getini("timeout")
    return 0.9 * float(granted_s) or None


def _find_rank(test: str) -> int:
    return next((rank for rank, place in enumerate(LONGEST) if test.startswith(place)), len(LONGEST))
