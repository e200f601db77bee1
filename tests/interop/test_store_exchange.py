"""One store folder, opened by turns by our broker and by a Java one: each serves exactly what the other wrote.

    ours writes -> Java reads all, writes -> ours reads all, writes -> Java reads all

A Java client takes the dumps that are compared: every field of every message, the bounds of every queue, the committed
offsets; and each message is found again by its id and its key.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.interop.java_shell import JavaShell
from tests.interop.servers import CLUSTER, HOLDFAST_SETTINGS, JAVA_SETTINGS
from tests.support.child import Child
from tests.support.cluster import Processes, free_port, wait_until_gone, wait_until_registered
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

BROKER, TOPIC, DELAYED, GROUP = "keeper", "Exchanged", "ExchangedDelayed", "ExchangeGroup"
# Several files of the log for each turn.
LOG_FILE_SIZE = 1 << 20
COUNT = 200
DELAYED_COUNT = 5


@dataclass(slots=True)
class Exchange:
    """The folder, the name server that outlives all turns, and what the last dump said."""

    store: Path
    name_server: str
    shell: JavaShell
    processes: Processes
    port: int = field(default_factory=free_port)
    sent: int = 0
    turns: int = 0
    last: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def opened_by(self, peer: JavaPeer | None, *, crash: bool = False) -> Iterator[None]:
        """Let a Java broker, or ours without *peer*, have the folder; at the end it stops orderly, or is killed."""
        child = self._start(peer)
        try:
            wait_until_registered(self.name_server, [BROKER])
            yield
            if not crash:
                child.stop()
        finally:
            child.kill()
        wait_until_gone(self.name_server, [BROKER])

    def _start(self, peer: JavaPeer | None) -> Child:
        if peer is None:
            ours = {**HOLDFAST_SETTINGS, "log_file_size": LOG_FILE_SIZE}
            return self.processes.start_broker(
                BROKER, self.name_server, cluster=CLUSTER, port=self.port, store=self.store, settings=ours
            ).child
        return peer.start_broker(
            name=BROKER,
            cluster=CLUSTER,
            port=self.port,
            name_server=self.name_server,
            store=self.store,
            settings={**JAVA_SETTINGS, "mappedFileSizeCommitLog": str(LOG_FILE_SIZE)},
        )

    def write(self) -> None:
        """Add messages, committed offsets, and messages due at somebody else's turn; remember what is there."""
        self.shell.run("fill", TOPIC, self.sent, COUNT)
        self.shell.run("commit", TOPIC, GROUP)
        self.sent += COUNT
        written = self.dump()
        assert set(messages(self.last)) <= set(messages(written)), "writing changed what was there"
        assert len(messages(written)) == self.sent
        self.last = written
        self.shell.run("delay", DELAYED, self.turns * DELAYED_COUNT, DELAYED_COUNT)
        self.turns += 1

    def read(self) -> None:
        """Require that everything is as it was when the last turn ended."""
        assert self.dump() == self.last

    def dump(self) -> list[str]:
        """Return all that a client sees; every message must also be found by its id, and every tenth by its key."""
        lines = self.shell.run("dump", TOPIC, GROUP)[1]
        assert self.shell.run("find", TOPIC, GROUP)[0] == str(len(messages(lines)))
        return lines


def messages(lines: list[str]) -> list[str]:
    """Return those lines of a dump that are messages."""
    return [line for line in lines if line.startswith('{"message"')]


@pytest.fixture
def exchange(peer_5: JavaPeer, tmp_path: Path) -> Iterator[Exchange]:
    with Processes(tmp_path) as processes:
        name_server = processes.start_name_server()
        with JavaShell(peer_5, name_server, tmp_path / "shell") as shell:
            yield Exchange(tmp_path / "store", name_server, shell, processes)


def begin(exchange: Exchange) -> None:
    """Make the topics and the group, on whatever broker is there."""
    exchange.shell.make_topic(TOPIC, CLUSTER, 4, 1)
    exchange.shell.make_topic(DELAYED, CLUSTER, 2, 1)
    assert "success" in exchange.shell.mqadmin("updateSubGroup", "-c", CLUSTER, "-g", GROUP)


def test_a_store_goes_back_and_forth_between_ours_and_5_5_0(exchange: Exchange, peer_5: JavaPeer) -> None:
    """Twice there and once back, with writes at every turn, nothing is lost or changed; delayed messages come once."""
    with exchange.opened_by(None):
        begin(exchange)
        exchange.write()
    with exchange.opened_by(peer_5):
        exchange.read()
        exchange.write()
    with exchange.opened_by(None):
        exchange.read()
        exchange.write()
    with exchange.opened_by(peer_5):
        exchange.read()

        expected = exchange.turns * DELAYED_COUNT
        while (delivered := int(exchange.shell.run("stored", DELAYED)[0])) < expected:
            continue  # asked again at once; the test's time limit ends a wait in vain
        assert delivered == expected


def test_a_store_goes_to_4_9_7_and_back(exchange: Exchange, peer_4: JavaPeer) -> None:
    """There and back, with writes at every turn, nothing is lost or changed."""
    with exchange.opened_by(None):
        begin(exchange)
        exchange.write()
    with exchange.opened_by(peer_4):
        exchange.read()
        exchange.write()
    with exchange.opened_by(None):
        exchange.read()
        exchange.write()


@pytest.mark.slow
@pytest.mark.parametrize("peer_name", ["peer_4", "peer_5"])
def test_a_store_begun_by_java_survives_crashes_on_either_side(
    exchange: Exchange, request: pytest.FixtureRequest, peer_name: str
) -> None:
    """Whoever finds the folder of a killed broker recovers it: what was dumped before the crash is there after it."""
    peer: JavaPeer = request.getfixturevalue(peer_name)

    with exchange.opened_by(peer):
        begin(exchange)
        exchange.write()
    with exchange.opened_by(None, crash=True):
        exchange.read()
        exchange.write()
    with exchange.opened_by(peer, crash=True):
        assert messages(exchange.dump()) == messages(exchange.last)
        exchange.write()
    with exchange.opened_by(None):
        assert messages(exchange.dump()) == messages(exchange.last)
