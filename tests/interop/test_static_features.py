"""What a normal topic can do for clients that nobody here wrote, a static one can, while its queues move to and fro.

Retry up to the dead letters, transactions, delays, queries. Java 4.9.7, ali-ons and PyPI's rocketmq know nothing of
logical queues and reach them through one broker; Java 5.5.0 reads the mapping. All programs run side by side, as most
of their time is waiting; each of their checks is one test.
"""

import asyncio
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.interop.client_matrix import Run, finish, start_matrix
from tests.interop.servers import HOLDFAST_SETTINGS
from tests.interop.test_other_clients import (
    ALI_ONS_TOPICS,
    CHECKS,
    PULLED,
    PY_ROCKETMQ_TOPICS,
    run_of,
    start_ali_ons,
    start_py_rocketmq,
)
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import JAVA_4, raw_request
from tests.support.java_peer import JavaPeer

from holdfast.admin.operations import Admin, now_ms
from holdfast.admin.topic_plans import create_plan
from holdfast.model.topic import TopicConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

QUEUES = 4
# By check, the topic that it uses.
JAVA_TOPICS = {
    "retry_chosen_delay": "retrychosen",
    "dead_letter": "dead",
    "transaction_decided": "decided",
    "transaction_checked_back": "checked",
    "delayed": "delayed",
    "query_by_key": "bykey",
    "query_by_id": "byid",
}
# A 5.x client that ends a transaction looks for the broker of a logical queue under a wrong name, and tells nobody (see
# its `endTransaction`). It answers when it is asked.
JAVA_5_CHECKS = [check for check in JAVA_TOPICS if check != "transaction_decided"]
# Between two rounds of moves: clients meet queues that stay, and queues that go.
_REST_S = 1.0
_ROUNDS_MIN = 4
_ROUTE = 105


async def make_topics(name_server: str, names: list[str]) -> None:
    """Make static topics, led by all brokers."""
    async with Admin(name_server) as admin:
        for name in names:
            view = await admin.static_topics.read()
            await admin.static_changes.apply(create_plan(view, TopicConfig(name=name), QUEUES, now_ms=now_ms()))


async def move(name_server: str, broker: str, *, away: bool) -> int:
    """Move all queues away from one broker, or its share of them back; return how many orders that took."""
    async with Admin(name_server) as admin:
        plan = await (admin.moves.plan_drain(broker) if away else admin.moves.plan_spread(broker))
        moves = await admin.moves.follow(await admin.moves.start(plan))
        assert {move.state for move in moves} == {"done"}, moves
        return len(moves)


@contextmanager
def restless(name_server: str, broker: str) -> Iterator[list[int]]:
    """Move queues from and to one broker all the time; yield how many orders each round took."""
    rounds: list[int] = []
    failed: list[BaseException] = []
    stopping = threading.Event()

    def run() -> None:
        try:
            for away in itertools.cycle((True, False)):
                rounds.append(asyncio.run(move(name_server, broker, away=away)))
                if stopping.wait(_REST_S):
                    return
        except BaseException as error:  # noqa: BLE001 - told where it is waited for
            failed.append(error)

    thread = threading.Thread(target=run, name="mover")
    thread.start()
    try:
        yield rounds
    finally:
        stopping.set()
        thread.join()
    assert not failed, failed


@pytest.fixture(scope="module")
def runs(
    peer_4: JavaPeer, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Run | str]]:
    """All programs, started before any of them is waited for."""
    folder = tmp_path_factory.mktemp("features")
    java = {"java-4": (peer_4, [*JAVA_TOPICS]), "java-5": (peer_5, JAVA_5_CHECKS)}
    java_topics = [f"{client}-{topic}" for client in java for topic in JAVA_TOPICS.values()]
    with ProcessCluster(folder) as cluster:
        name_server = cluster.namesrv
        brokers = [
            cluster.start(name, flush=flush, settings=HOLDFAST_SETTINGS)
            for name, flush in (("broker-a", "sync"), ("broker-b", "async"))
        ]
        asyncio.run(make_topics(name_server, [*java_topics, *ALI_ONS_TOPICS, *PY_ROCKETMQ_TOPICS, PULLED]))
        # Old clients reach all queues through this broker: it never leads more than half of them.
        (address,) = set(
            re.findall(r"127\.0\.0\.1:\d+", raw_request(name_server, _ROUTE, {"topic": PULLED}, **JAVA_4).text)
        )
        proxy = next(broker.name for broker in brokers if broker.address == address)
        with restless(name_server, proxy) as rounds:
            started = {
                name: start_matrix(peer, name_server, f"{name}-", folder / name, checks=checks, topics="static")
                for name, (peer, checks) in java.items()
            } | {"ali-ons": start_ali_ons(name_server), "rocketmq": start_py_rocketmq(name_server, folder)}
            ended = {name: client if isinstance(client, str) else finish(client) for name, client in started.items()}
        assert len(rounds) >= _ROUNDS_MIN
        yield ended


@pytest.mark.parametrize(
    ("client", "check"),
    [*(("java-4", check) for check in JAVA_TOPICS), *(("java-5", check) for check in JAVA_5_CHECKS), *CHECKS],
)
def test_a_foreign_client_gets_what_it_relies_on(runs: dict[str, Run | str], client: str, check: str) -> None:
    """The check ran and passed, while the queues of its topic moved."""
    run_of(runs, client).check_passed(check)
