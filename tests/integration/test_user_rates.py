"""A user above its rate, on a real cluster: its programs wait, and nothing else happens to them or to others."""

import asyncio
import base64
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client_stories import Inbox
from tests.support.cluster.operator import run_in_process
from tests.support.cluster.ports import free_port
from tests.support.cluster.up import Up

from holdfast import Producer, PushConsumer

pytestmark = pytest.mark.timeout(180)
TIMEOUT_S = 60
REQUESTS_MAX = 100
BYTES_MAX = 200_000
AT_ONCE = 500  # four times the rate above it: later sends wait longer than the three seconds that a send may take
LATER = 20


class LimitedCluster:
    """One broker with rates, and the users `ann` and `bob`."""

    def __init__(self, running: Up, folder: Path, metrics: str) -> None:
        self.namesrv = running.namesrv
        self._folder = folder
        self._metrics = metrics
        auth = running.announced["auth"]
        self._admin = (auth["access_key"], auth["secret_file"])
        for user in ("ann", "bob"):
            self._run("topic", "create", f"of-{user}", "--queues", "4")
            self._run("user", "create", user, "--save-to", self.secret_file(user))
            self._run("acl", "grant", user, f"Topic:of-{user}", "Pub,Sub,Get")
            self._run("acl", "grant", user, "Group:readers", "Sub,Get")

    def secret_file(self, user: str) -> str:
        return str(self._folder / f"{user}.secret")

    def _run(self, *words: str) -> None:
        access = ("--access-key", self._admin[0], "--secret-file", self._admin[1])
        result = run_in_process(*words, *access, namesrv=self.namesrv)
        assert result.status == 0, result.err

    def metric(self, name: str) -> float:
        """Return a metric of the broker."""
        secret = Path(self._admin[1]).read_text().strip()
        request = urllib.request.Request(f"http://{self._metrics}/metrics")
        basic = base64.b64encode(f"{self._admin[0]}:{secret}".encode()).decode()
        request.add_header("Authorization", f"Basic {basic}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found = re.search(rf"^holdfast_{name}_total (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedCluster]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOLDFAST_BROKER_USER_REQUESTS_MAX", str(REQUESTS_MAX))
    monkeypatch.setenv("HOLDFAST_BROKER_USER_BYTES_MAX", str(BYTES_MAX))
    port = free_port()
    with Up(tmp_path / "data", "--brokers", "1", "--auth", "--metrics-port", str(port)) as running:
        yield LimitedCluster(running, tmp_path, f"127.0.0.1:{port + 1}")


async def test_a_limited_user_waits_and_loses_nothing_and_another_user_does_not_wait(cluster: LimitedCluster):
    """Its producer waits for what it has sent, its consumer for what it got. No send is retried, none is refused."""
    bodies = [(b"%d" % number).ljust(1000, b".") for number in range(AT_ONCE + LATER)]
    ann = {"access_key": "ann", "secret_file": cluster.secret_file("ann")}
    bob = {"access_key": "bob", "secret_file": cluster.secret_file("bob")}
    async with Producer(cluster.namesrv, retries=0, **ann) as producer, Producer(cluster.namesrv, **bob) as other:
        await asyncio.gather(*(producer.send("of-ann", body) for body in bodies[:AT_ONCE]))
        waiting = asyncio.gather(*(producer.send("of-ann", body) for body in bodies[AT_ONCE:]))
        await asyncio.gather(*(other.send("of-bob", b"%d" % number) for number in range(LATER)))
        assert not waiting.done()
        await waiting
    sent_ms = cluster.metric("user_throttled_ms")
    assert sent_ms > 3_000

    inbox = Inbox()
    consumer = PushConsumer(cluster.namesrv, "readers", listener=inbox, start="earliest", **ann)
    consumer.subscribe("of-ann")
    async with consumer:
        await inbox.wait_for(len(bodies))
    assert inbox.bodies() == Counter(bodies)
    assert cluster.metric("user_throttled_ms") > sent_ms
    assert cluster.metric("user_pauses") == 0
