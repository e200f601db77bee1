"""The cost of TLS, of logins and of signatures, ours beside Java's.

    ours   plain, plain again (A/A)    TLS    access control: a login per connection, a signature per request
    Java   plain                       TLS    access control: a signature per request

All brokers run at the same time and each load runs on each of them in turn; the order rotates from round to round. In
every round new messages are written first, for the pulls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from benchmarks.access_findings import (
    PROTECTIONS,
    WORKS,
    AccessFigures,
    AccessFindings,
    AccessReading,
    Protection,
    Work,
)
from benchmarks.load import SECRET, USER, Load, LoadResult
from benchmarks.measure import FOREIGN_MAX, Bench
from benchmarks.preparation import TOPIC
from benchmarks.process_cost import Stopwatch, cpu_seconds, wait_until_quiet
from benchmarks.programs import BenchmarkFailed, Programs
from benchmarks.remoting import CREATE_TOPIC, MAX_OFFSET
from benchmarks.servers import Kind, Server, ServerFleet
from tests.interop.guarded_servers import ADMIN, GuardedServers, java_access_settings, private_file
from tests.support.certificates import Certificates
from tests.support.cluster.raw_requests import Signer, java_topic_fields, raw_request

NO_OPENSSL: Final = (
    "skipped: without the headers of OpenSSL the load generator cannot encrypt, log in or sign "
    "(Debian: apt install libssl-dev)"
)
QUEUES: Final = 4
SPAN: Final = 20_000  # messages in each queue that pulls walk over: 96 MB, more than the caches of a processor hold
FILL_ATTEMPTS: Final = 20  # a cold broker may refuse some
USER_RULES: Final = ("Topic:* Pub,Sub", "Group:* Sub")


class AccessPace(msgspec.Struct, frozen=True, kw_only=True):
    """The durations."""

    rounds: int = 3
    seconds: float = 5.0
    java_warm_s: float = 12.0


@dataclass(frozen=True, slots=True)
class ProtectedBroker:
    """A broker and a way to use it. A broker with access control is used in two ways."""

    kind: Kind
    protection: Protection
    broker: Server
    name_server: Server

    @property
    def is_guarded(self) -> bool:
        """Whether the broker has access control."""
        return self.protection in {"login", "signed"}

    def protect(self, load: Load) -> Load:
        """Return *load* as this broker is used."""
        if self.is_guarded:
            return msgspec.structs.replace(load, auth="login" if self.protection == "login" else "sign")
        return msgspec.structs.replace(load, tls=1) if self.protection == "tls" else load

    def create_topic(self, topic: str) -> None:
        """Create *topic* at the broker, to which all loads go directly."""
        self._request(CREATE_TOPIC, java_topic_fields(topic, QUEUES))

    def queue_end(self, topic: str, queue: int) -> int:
        """Return the offset after the last message of a queue."""
        return int(self._request(MAX_OFFSET, {"topic": topic, "queueId": str(queue)})["offset"])

    def _request(self, code: int, fields: Mapping[str, str]) -> Mapping[str, str]:
        """Return the fields of the broker's answer to a request of its administrator."""
        signer = ADMIN if self.is_guarded else None
        answer = raw_request(f"127.0.0.1:{self.broker.port}", code, fields, signer=signer)
        if answer.code != 0:
            raise BenchmarkFailed(f"{self.kind} {self.protection} refused {code}: {answer.code} {answer.remark}")
        return answer.fields

    def add_user(self) -> None:
        """Create the user of the loads, with its rules."""
        brokers = {self.broker.name: f"127.0.0.1:{self.broker.port}"}
        GuardedServers(self.kind, self.name_server.name_server, brokers).add_user(Signer(USER, SECRET), *USER_RULES)


class AccessBench:
    """Takes every figure once, in a few minutes."""

    def __init__(
        self,
        fleet: ServerFleet,
        programs: Programs,
        folder: Path,
        log: Callable[[str], None],
        pace: AccessPace | None = None,
    ) -> None:
        self._fleet = fleet
        self._bench = Bench(programs.loadgen, log)
        self._has_openssl = programs.has_openssl
        self._folder = folder
        self._log = log
        self._pace = pace or AccessPace()

    def measure(self) -> AccessFindings | None:
        """Measure everything; None if the load generator cannot."""
        if not self._has_openssl:
            self._log(f"   {NO_OPENSSL}")
            return None
        load = os.getloadavg()[0]
        self._folder.mkdir(exist_ok=True)
        certificates = Certificates(self._folder / "certificates")
        brokers = [*self._start_ours(certificates), *self._start_java(certificates)]
        for each in brokers:
            if _shares_broker(each):
                continue
            if each.is_guarded:
                each.add_user()
            each.create_topic(TOPIC)
        for each in brokers:
            self._warm(each)
        figures = self._run_rounds(brokers)
        for server in {id(server): server for each in brokers for server in (each.broker, each.name_server)}.values():
            self._fleet.discard(server)
        return AccessFindings(figures=figures, seconds=self._pace.seconds, load=load)

    # Before the first reading.

    def _start_ours(self, certificates: Certificates) -> list[ProtectedBroker]:
        self._log("   starting ours")
        fleet = self._fleet
        secret = private_file(self._folder / "cluster.secret", "a long random secret of the cluster\n")
        tls = ["--tls", "permissive", "--tls-cert", certificates.cert, "--tls-key", certificates.key]
        auth = ["--auth", "--cluster-secret", str(secret)]
        open_names = fleet.start_holdfast_name_server()
        guarded_names = fleet.start_holdfast_name_server(auth, administrator=ADMIN)
        plain, again = (fleet.start_holdfast(open_names, "async", name=name) for name in ("plain", "again"))
        encrypted = fleet.start_holdfast(open_names, "async", name="tls", options=tls)
        guarded = fleet.start_holdfast(guarded_names, "async", name="guarded", options=auth, administrator=ADMIN)
        return [
            ProtectedBroker("holdfast", "plain", plain, open_names),
            ProtectedBroker("holdfast", "again", again, open_names),
            ProtectedBroker("holdfast", "login", guarded, guarded_names),
            ProtectedBroker("holdfast", "signed", guarded, guarded_names),
            ProtectedBroker("holdfast", "tls", encrypted, open_names),
        ]

    def _start_java(self, certificates: Certificates) -> list[ProtectedBroker]:
        self._log("   starting Java")
        fleet = self._fleet
        files = {"certPath": certificates.cert, "keyPath": certificates.key}
        options = ["-Dtls.test.mode.enable=false", *(f"-Dtls.server.{key}={file}" for key, file in files.items())]
        names = fleet.start_java_name_server()
        plain = fleet.start_java(names, "async", name="plain")
        guarded = fleet.start_java(names, "async", name="guarded", settings=java_access_settings())
        encrypted = fleet.start_java(names, "async", name="tls", options=options)
        return [
            ProtectedBroker("java", "plain", plain, names),
            ProtectedBroker("java", "signed", guarded, names),
            ProtectedBroker("java", "tls", encrypted, names),
        ]

    def _warm(self, each: ProtectedBroker) -> None:
        """Load a broker as the readings will, so that a JVM has compiled its code."""
        self._log(f"   warming {each.kind} {each.protection}")
        seconds = self._pace.java_warm_s if each.kind == "java" else 1.0
        topic = f"Warm-{each.protection}"
        each.create_topic(topic)
        self._fill(each, topic)
        for work in WORKS:
            self._load(each, _work_load(work, topic, seconds / len(WORKS)))
        wait_until_quiet(each.broker.pid)

    def _fill(self, each: ProtectedBroker, topic: str) -> None:
        """Send until the queues of *topic* hold the messages that pulls walk over."""
        for _ in range(FILL_ATTEMPTS):
            lacking = SPAN - min(each.queue_end(topic, queue) for queue in range(QUEUES))
            if lacking <= 0:
                return
            requests = lacking * QUEUES
            self._load(each, Load(mode="send", topic=topic, queues=QUEUES, in_flight=64, requests=requests))
        raise BenchmarkFailed(f"{each.kind} {each.protection} refused messages for {topic}")

    def _load(self, each: ProtectedBroker, load: Load) -> LoadResult:
        return self._bench.load(each.broker, each.protect(load))

    # Rounds.

    def _run_rounds(self, brokers: Sequence[ProtectedBroker]) -> list[AccessFigures]:
        found: dict[tuple[Work, Kind, Protection], list[AccessReading]] = {}
        for number in range(self._pace.rounds):
            topic = f"Hot-{number}"
            for each in brokers:
                if not _shares_broker(each):
                    each.create_topic(topic)
                    self._fill(each, topic)
                    wait_until_quiet(each.broker.pid)
            turn = number % len(brokers)
            for work in reversed(WORKS):  # pulls first, while their messages are in the hot part of the log
                load = _work_load(work, topic, self._pace.seconds)
                for each in (*brokers[turn:], *brokers[:turn]):
                    reading = self._read(each, load)
                    found.setdefault((work, each.kind, each.protection), []).append(reading)
                    self._log(f"{number + 1}/{self._pace.rounds}  {describe(each, work, reading)}")
        return [
            AccessFigures(kind=kind, protection=protection, work=work, readings=found[work, kind, protection])
            for work in WORKS
            for kind, protections in PROTECTIONS.items()
            for protection in protections
        ]

    def _read(self, each: ProtectedBroker, load: Load) -> AccessReading:
        """Take one reading; repeat it if other processes used the machine meanwhile."""
        first = self._read_once(each, load)
        if first.foreign_cores <= FOREIGN_MAX:
            return first
        return min(first, self._read_once(each, load), key=lambda reading: reading.foreign_cores)

    def _read_once(self, each: ProtectedBroker, load: Load) -> AccessReading:
        os.sync()
        pid = each.broker.pid
        before_s, stopwatch = cpu_seconds(pid), Stopwatch(pid)
        result = self._load(each, load)
        spent = stopwatch.stop()
        wait_until_quiet(pid)
        return AccessReading(
            load=result, broker_s=cpu_seconds(pid) - before_s, foreign_cores=spent.foreign + spent.stolen
        )


def _shares_broker(each: ProtectedBroker) -> bool:
    """Return whether the broker is that of another row, which prepares it."""
    return each.kind == "holdfast" and each.protection == "signed"


def _work_load(work: Work, hot_topic: str, seconds: float) -> Load:
    if work == "send":
        return Load(mode="send", topic=TOPIC, queues=QUEUES, connections=16, in_flight=16, seconds=seconds)
    return Load(mode="pull", topic=hot_topic, queues=QUEUES, connections=16, in_flight=4, span=SPAN, seconds=seconds)


def describe(each: ProtectedBroker, work: Work, reading: AccessReading) -> str:
    """Return one line of progress."""
    load = reading.load
    return (
        f"{work:<5} {each.kind:<9} {each.protection:<7} {reading.rate:>9,.0f} requests/s  {reading.cost_us:>6.1f} us"
        f"  p50 {load.p50_us:>7,.0f} us  p99 {load.p99_us:>8,.0f} us  client {load.client_cpu:.2f}"
        f" + foreign {reading.foreign_cores:.2f}{f'  refused {load.refused}' if load.refused else ''}"
    )
