"""What the interop tests share: the foreign software, fetched once, and one cluster that all of them talk to.

`--cluster java` puts the real RocketMQ 5.5.0 in our place: it proves the scenarios themselves.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.guarded_servers import GuardedServers, guarded_holdfast_servers
from tests.interop.servers import Servers, holdfast_servers, java_servers
from tests.support import java_peer

PROGRAMS = Path(__file__).parent / "java"
_INSTALL = {
    "java": "a JDK, 17 or newer",
    "javac": "a JDK, 17 or newer",
    "mvn": "Maven",
    "node": "Node.js",
    "npm": "npm",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster", choices=["holdfast", "java"], default="holdfast", help="whose servers the clients meet"
    )


def missing(*programs: str) -> str | None:
    """Return the one line that says what to install, or None where all *programs* are there."""
    for program in programs:
        if shutil.which(program) is None:
            return f"needs `{program}`: install {_INSTALL[program]}"
    return None


def need(*programs: str) -> None:
    """Skip unless all *programs* are there."""
    if (reason := missing(*programs)) is not None:
        pytest.skip(reason)


def fetched(version: str) -> java_peer.JavaPeer:
    """Return RocketMQ of *version*. Where the tools to fetch it are there, not getting it is a failure."""
    need("java", "javac", "mvn")
    return java_peer.fetch(version, PROGRAMS)


@pytest.fixture(scope="session")
def peer_4() -> java_peer.JavaPeer:
    return fetched("4.9.7")


@pytest.fixture(scope="session")
def peer_5() -> java_peer.JavaPeer:
    return fetched("5.5.0")


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServers]:
    """A name server and two brokers of ours with access control. Tests use users, topics and groups of their own."""
    with guarded_holdfast_servers(tmp_path_factory.mktemp("guarded")) as servers:
        yield servers


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A name server and two brokers. Tests share them, and use topics and groups of their own."""
    folder = tmp_path_factory.mktemp("servers")
    if request.config.getoption("--cluster", default="holdfast") == "java":
        yield from java_servers(request.getfixturevalue("peer_5"), folder)
    else:
        yield from holdfast_servers(folder)
