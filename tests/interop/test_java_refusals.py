"""Java clients that are refused: they get the code that they know, and send no more requests than to Java 5.5.0.

The same program runs at both clusters at the same time, and counts its own requests by code.
"""

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.interop.guarded_servers import GuardedServers, guarded_cluster, guarded_java_servers
from tests.support.child import Child
from tests.support.cluster.raw_requests import Signer, wait_until
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

FOREIGN = "Foreign"
QUEUES = 2
SECRET, ANOTHER_SECRET = "secret-of-the-user", "another-secret"
# How often a consumer asks for its routes, once a second, while its requests are counted. On a busy machine its timers
# are late, all of them alike. A Java broker answers a parked pull after 15 to 20 s, whatever was revoked; then its
# client repeats it each second.
WATCHED_POLLS = 30
ROUTES_OF_POLL = {"5.5.0": 2, "4.9.7": 3}
QUIET_POLLS = 2
_TIMEOUT_S = 120.0
_NO_PERMISSION, _NO_ROUTE = 16, 10005
_PULL, _UPDATE_OFFSET, _HEARTBEAT, _GET_MEMBERS, _GET_ROUTE, _SEND = 11, 15, 34, 38, 105, 310
# What timers of a client send at the begin or the end of what is watched, at one cluster and not at the other. Refusals
# cause none of these requests. Those that they cause have no tolerance.
TOLERANCE = {_HEARTBEAT: 2, _GET_ROUTE: 3, _GET_MEMBERS: 2, _UPDATE_OFFSET: QUEUES + 1}


@dataclass(frozen=True, slots=True)
class Case:
    """What is wrong with a client, and the code with which its send ends."""

    code: int
    secret: str | None = SECRET
    is_topic_foreign: bool = False
    is_group_foreign: bool = False
    is_revoked: bool = False


# Who may not see a route finds no broker to send to: a name server of ours asks for permissions, too.
CASES = {
    "wrong-secret": Case(_NO_ROUTE, ANOTHER_SECRET),
    "no-credentials": Case(_NO_ROUTE, None),
    "foreign-topic": Case(_NO_PERMISSION, is_topic_foreign=True),
    "foreign-group": Case(0, is_group_foreign=True),
    "revoked": Case(_NO_PERMISSION, is_revoked=True),
}


@dataclass(frozen=True, slots=True)
class Refused:
    """What a refused client reported: the code of its send, and how many requests of each code it sent."""

    code: int
    asked: Counter[int]


@pytest.fixture(scope="module")
def clusters(peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GuardedServers]]:
    """Ours, and Java 5.5.0 with authentication and authorization: a name server and a broker each."""
    folder = tmp_path_factory.mktemp("refusals")
    with (
        guarded_cluster(folder, "broker-a") as cluster,
        guarded_java_servers(peer_5, folder / "java") as java,
    ):
        ours = GuardedServers("holdfast", cluster.namesrv, {"broker-a": cluster.brokers["broker-a"].address})
        for servers in (ours, java):
            servers.make_topic(FOREIGN, queues=QUEUES)
        yield [ours, java]


@pytest.fixture(
    scope="module", params=["peer_5", pytest.param("peer_4", marks=pytest.mark.slow)], ids=["5.5.0", "4.9.7"]
)
def refused(
    request: pytest.FixtureRequest, clusters: list[GuardedServers], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Refused]]:
    """What the clients of one version reported, by kind of cluster and by case."""
    peer: JavaPeer = request.getfixturevalue(request.param)
    homes = [tmp_path_factory.mktemp("client") for _ in clusters]
    with ThreadPoolExecutor() as threads:
        reports = threads.map(lambda servers, home: run_cases(peer, servers, home), clusters, homes)
        return {servers.kind: report for servers, report in zip(clusters, reports, strict=True)}


def run_cases(peer: JavaPeer, servers: GuardedServers, home: Path) -> dict[str, Refused]:
    """Let the actors of one program be refused, each in its own way."""
    names = {case: f"{case}-{peer.version.replace('.', '')}" for case in CASES}
    for name in names.values():
        servers.make_topic(name, queues=QUEUES)
        servers.add_user(Signer(name, SECRET), f"Topic:{name} Pub,Sub,Get", f"Group:{name} Sub,Get")
    with contextlib.closing(Program(peer, servers, home)) as program, ThreadPoolExecutor() as threads:
        reports = threads.map(lambda case: program.run_case(names[case], CASES[case]), CASES)
        return dict(zip(CASES, reports, strict=True))


class Program:
    """A running `java/Guarded.java` at one cluster. Its actors are named as their users, topics and groups are."""

    def __init__(self, peer: JavaPeer, servers: GuardedServers, home: Path) -> None:
        self._servers = servers
        self._routes_of_poll = ROUTES_OF_POLL[peer.version]
        self._lock = threading.Lock()
        self._child: Child = peer.start_program("Guarded", [servers.name_server], home=home)
        self._child.wait_for_line('"ready"', timeout_s=_TIMEOUT_S)

    def close(self) -> None:
        """End it."""
        self._child.kill()

    def run_case(self, name: str, case: Case) -> Refused:
        """Let a client consume and send; watch it for a while."""
        self._run(name, "as", *(["-"] if case.secret is None else [name, case.secret]))
        topic, group = FOREIGN if case.is_topic_foreign else name, FOREIGN if case.is_group_foreign else name
        self._run(name, "consume", topic, group)
        if case.is_revoked:
            self._run(name, "send", topic)
            self._child.wait_for_line(f'"got":."{group}"', timeout_s=_TIMEOUT_S)
            wait_until(lambda: self._is_quiet(name), "it still pulls without an end")
            self._servers.revoke(Signer(name, SECRET))
        sent = self._run(name, "send", topic)
        watched = self._watch(name, WATCHED_POLLS)
        sends = Counter({_SEND: sent["asked"].get(str(_SEND), 0)})
        return Refused(sent["code"], sends + Counter({int(code): count for code, count in watched["asked"].items()}))

    def _is_quiet(self, name: str) -> bool:
        """Return whether the client pulled nothing for a while: the broker has parked all of its pulls."""
        return not self._watch(name, QUIET_POLLS)["asked"].get(str(_PULL))

    def _watch(self, name: str, polls: int) -> dict[str, Any]:
        """Return what was sent while the consumer asked for its routes *polls* times."""
        return self._run(name, "watch", str(polls * self._routes_of_poll))

    def _run(self, name: str, *words: str) -> dict[str, Any]:
        heard = len(self._child.lines())
        with self._lock:
            self._child.write_line("\t".join((name, *words)))
        answer = self._child.wait_for_line(f'^{{"actor":"{name}"', timeout_s=_TIMEOUT_S, after=heard)
        report: dict[str, Any] = json.loads(answer)
        return report


@pytest.mark.parametrize("case", CASES)
def test_a_refused_client_gets_the_code_that_it_knows(refused: dict[str, dict[str, Refused]], case: str) -> None:
    """Its send ends with it. A group may be foreign to a producer."""
    assert refused["holdfast"][case].code == CASES[case].code


@pytest.mark.parametrize("case", CASES)
def test_a_refused_client_sends_no_more_requests_than_to_java_servers(
    refused: dict[str, dict[str, Refused]], case: str
) -> None:
    """Of each code, and in all."""
    ours, java = refused["holdfast"][case].asked, refused["java"][case].asked
    counts = f"ours {ours.total()} {dict(ours)}, Java {java.total()} {dict(java)}"

    more = {code: count - java[code] for code, count in ours.items() if count > java[code] + TOLERANCE.get(code, 0)}
    assert not more, counts
    assert 0 < ours.total() <= java.total() + sum(TOLERANCE.values()), counts


def test_a_client_whose_rights_were_revoked_repeats_its_pulls(refused: dict[str, dict[str, Refused]]) -> None:
    """It would get messages again as soon as it may. This proves that its pulls are counted above."""
    for kind in refused:
        assert refused[kind]["revoked"].asked[_PULL] >= QUEUES
