"""The servers that are compared, as processes: ours, Java's, the bare send path, the sink of the generator.

    with Fleet(work, programs) as fleet:
        names = fleet.start_java_name_server()
        fleet.start_java(names, "sync")            -> Server: kind, name, port, pid, store

Both kinds get the same resources: stores on one disk, the same flush policy, log files of 1 GiB. The Java broker has a
heap of 2 GiB with the collector that upstream's start script names, and larger pull limits than its default, because a
pull of 1 MiB would otherwise be cut to 32 messages; everything else is its default.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from benchmarks.programs import SOURCES, BenchmarkFailed, Programs
from benchmarks.remoting import Remote
from tests.support import java_peer
from tests.support.child import Child, ChildFailed
from tests.support.cluster.ports import wait_until_listening
from tests.support.cluster.raw_requests import Signer, wait_until_registered

from holdfast.model.access.user import User, UserKind
from holdfast.runtime.access.first_administrator import create_first_administrator

Kind = Literal["holdfast", "java", "bare", "sink"]
Flush = Literal["async", "sync"]

JAVA_VERSION: Final = "5.5.0"
READY_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 60.0
METRICS_DISTANCE: Final = 4
DESCRIPTORS: Final = 16_384  # 10 000 connections at either end, or the files of 10 000 queues

JVM: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UsePerfData",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Dfile.encoding=UTF-8",
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
)
JAVA_BROKER_HEAP: Final = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g")
JAVA_NAME_SERVER_HEAP: Final = ("-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
JAVA_BROKER: Final = {
    "brokerClusterName": "DefaultCluster",
    "brokerId": "0",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "diskMaxUsedSpaceRatio": "99",
    "maxTransferCountOnMessageInMemory": "4096",
    "maxTransferBytesOnMessageInMemory": "4194304",
}


@dataclass(frozen=True, slots=True)
class Server:
    """One server under test."""

    kind: Kind
    name: str
    port: int
    child: Child
    store: Path | None = None
    metrics_port: int | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self.child.pid

    @property
    def name_server(self) -> str:
        """Its address in the form that brokers expect."""
        return f"127.0.0.1:{self.port}"


class ServerFleet:
    """Starts servers, each on separate ports, and ends the remaining ones when the block ends."""

    def __init__(self, folder: Path, programs: Programs, *, base_port: int) -> None:
        self._folder = folder
        self._programs = programs
        self._next_port = base_port + 4
        self._servers: list[Server] = []
        self._peer: java_peer.JavaPeer | None = None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, DESCRIPTORS)), hard))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for server in reversed(self._servers):
            server.child.kill()  # these stores are not needed any more

    def stop(self, server: Server, *, remove_store: bool = True) -> None:
        """Stop *server* in order and delete its store."""
        try:
            server.child.stop(timeout_s=STOP_TIMEOUT_S)
        except ChildFailed:
            server.child.kill()
        self._servers.remove(server)
        if remove_store and server.store is not None:
            self.remove(server.store)

    @staticmethod
    def remove(store: Path) -> None:
        """Delete the store of a stopped server."""
        shutil.rmtree(store)

    def discard(self, server: Server) -> None:
        """Kill *server* and delete its store: an orderly stop takes a JVM ten seconds."""
        self.crash(server)
        if server.store is not None:
            self.remove(server.store)

    def crash(self, server: Server) -> None:
        """Kill *server* and keep its store."""
        server.child.kill()
        self._servers.remove(server)

    def start_holdfast_name_server(self, options: Sequence[str] = (), *, administrator: Signer | None = None) -> Server:
        """Start a name server of ours, with a first Super user if *administrator* is given."""
        port = self.allocate_port()
        data = self._folder / f"namesrv-{port}"
        if administrator is not None:
            user = User(administrator.user, (administrator.secret,), UserKind.SUPER)
            create_first_administrator(data, user, time.time_ns() // 1_000_000)
        command = ["serve", "namesrv", "--listen", f"127.0.0.1:{port}", "--data", str(data), *options]
        return self._register(Server("holdfast", "namesrv", port, self._start_holdfast(command, port)))

    def start_holdfast(
        self,
        name_server: Server,
        flush: Flush,
        *,
        name: str | None = None,
        store: Path | None = None,
        options: Sequence[str] = (),
        has_metrics: bool = False,
        administrator: Signer | None = None,
    ) -> Server:
        """Start a broker of ours; return when the name server knows it, which may need its *administrator* to ask."""
        port = self.allocate_port()
        store = store or self._folder / f"holdfast-{flush}-{port}"
        name = name or f"broker-{flush}"
        command = ["serve", "broker", "--name", name, "--namesrv", name_server.name_server]
        command += ["--listen", f"127.0.0.1:{port}", "--store", str(store), "--flush", flush, *options]
        metrics_port = port + METRICS_DISTANCE if has_metrics else None
        if has_metrics:
            command += ["--metrics-listen", f"127.0.0.1:{metrics_port}"]
        server = Server("holdfast", name, port, self._start_holdfast(command, port), store, metrics_port)
        self._register(server)
        wait_until_registered(name_server.name_server, [f"127.0.0.1:{port}"], signer=administrator)
        return server

    def start_java_name_server(self) -> Server:
        """Start a Java name server."""
        port = self.allocate_port()
        settings = {"listenPort": str(port), "bindAddress": "127.0.0.1"}
        home = self._folder / f"java-namesrv-{port}"
        child = self._start_java("org.apache.rocketmq.namesrv.NamesrvStartup", home, JAVA_NAME_SERVER_HEAP, settings)
        return self._register(Server("java", "namesrv", port, child, home))

    def start_java(
        self,
        name_server: Server,
        flush: Flush,
        *,
        name: str | None = None,
        store: Path | None = None,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Server:
        """Start a Java broker with extra *settings* and JVM *options*; return when the name server knows it."""
        port = self.allocate_port()
        store = store or self._folder / f"java-{flush}-{port}"
        all_settings = JAVA_BROKER | {
            "brokerName": name or f"broker-{flush}",
            "listenPort": str(port),
            "namesrvAddr": name_server.name_server,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "flushDiskType": f"{flush.upper()}_FLUSH",
            **(settings or {}),
        }
        home = store / ".peer"
        heap = (*JAVA_BROKER_HEAP, *options)
        child = self._start_java("org.apache.rocketmq.broker.BrokerStartup", home, heap, all_settings)
        server = self._register(Server("java", all_settings["brokerName"], port, child, store))
        wait_until_registered(name_server.name_server, [f"127.0.0.1:{port}"], timeout_s=READY_TIMEOUT_S)
        return server

    def start_bare(self) -> Server:
        """Start the bare send path."""
        port = self.allocate_port()
        store = self._folder / f"bare-{port}"
        child = Child([sys.executable, str(SOURCES / "bare_send.py"), str(port), str(store)], name="bare send path")
        child.wait_for_line("ready", timeout_s=READY_TIMEOUT_S)
        return self._register(Server("bare", "bare", port, child, store))

    def start_sink(self) -> Server:
        """Start the server that does nothing."""
        port = self.allocate_port()
        child = Child([str(self._programs.sink), f"port={port}"], name="sink")
        wait_until_listening(child, port)
        return self._register(Server("sink", "sink", port, child))

    def allocate_port(self) -> int:
        """Return a free port. A broker also uses two below it and one above, and one further above for its metrics."""
        self._next_port += 10
        return self._next_port

    def _register(self, server: Server) -> Server:
        self._servers.append(server)
        return server

    def _start_holdfast(self, arguments: Sequence[str], port: int) -> Child:
        child = Child([str(Path(sys.executable).with_name("holdfast")), *arguments], name=f"holdfast {arguments[1]}")
        try:
            wait_until_listening(child, port)
        except ChildFailed as error:
            child.kill()
            raise BenchmarkFailed(str(error)) from error
        return child

    def _start_java(self, main: str, home: Path, heap: Sequence[str], settings: Mapping[str, str]) -> Child:
        peer = self._peer = self._peer or java_peer.fetch(JAVA_VERSION)
        temporary = home / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)  # a killed broker leaves unpacked native libraries there
        temporary.mkdir(parents=True)
        configuration = home / "server.conf"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        homes = [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", f"-Djava.io.tmpdir={temporary}"]
        path = f"{peer.jars / 'quiet'}:{peer.jars}/*"
        child = Child(["java", *JVM, *heap, *homes, "-cp", path, main, "-c", str(configuration)], name=f"Java {main}")
        try:
            child.wait_for_line("boot success", timeout_s=READY_TIMEOUT_S)
        except ChildFailed as error:
            child.kill()
            raise BenchmarkFailed(str(error)) from error
        return child


def create_topic(broker: Server, name_server: Server, topic: str, *, queues: int, batches: bool = False) -> None:
    """Create *topic* on *broker* and return when *name_server* has its route. With *batches* it is indexed by batch."""
    with Remote(broker.port) as remote:
        remote.create_topic(topic, queues=queues, batches=batches)
    deadline = time.monotonic() + READY_TIMEOUT_S
    with Remote(name_server.port) as remote:
        while not remote.has_route(topic):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"timed out while waiting for the route of {topic}")
            time.sleep(0.05)  # poll: a name server does not push new topics
