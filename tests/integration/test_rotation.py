"""A user gets another secret while a producer and a consumer run as this user."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST
from tests.support.cluster.up import READY_TIMEOUT_S, Up

from holdfast import Message, Producer, PushConsumer, ReceivedMessage
from holdfast.model.errors import SendFailed

pytestmark = pytest.mark.timeout(180)
MANY = 50


class Programs:
    """A producer that sends one message after the other, and a consumer.

    Attributes:
        sent: The bodies that a broker has acknowledged.
        received: The bodies that the consumer got.
    """

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.received: set[bytes] = set()
        self.is_ending = False
        self._changed = asyncio.Condition()

    async def receive(self, message: ReceivedMessage) -> None:
        """Note a message."""
        async with self._changed:
            self.received.add(message.body)
            self._changed.notify_all()

    async def send(self, producer: Producer) -> None:
        """Send until the end. Every error ends the test."""
        try:
            while not self.is_ending:
                body = b"%d" % len(self.sent)
                await producer.send(Message("orders", body))
                async with self._changed:
                    self.sent.append(body)
                    self._changed.notify_all()
        finally:
            async with self._changed:
                self.is_ending = True
                self._changed.notify_all()

    async def continue_for(self, count: int) -> None:
        """Wait until so many more messages were sent, and the consumer has got them."""
        end = len(self.sent) + count
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.is_ending or (len(self.sent) >= end and self.received.issuperset(self.sent[:end]))
            )
            assert not self.is_ending, "a send has failed"


async def run(cluster: Up, *words: str) -> None:
    """Run a command as the administrator."""
    auth = cluster.announced["auth"]
    access = ("--namesrv", cluster.namesrv, "--access-key", auth["access_key"], "--secret-file", auth["secret_file"])
    child = Child([HOLDFAST, *words, *access], name=words[0])
    assert await asyncio.to_thread(child.wait, timeout_s=READY_TIMEOUT_S) == 0, child.last_lines()


@pytest.mark.parametrize("auth", ["login", "sign"])
async def test_running_programs_change_their_secret_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, auth: str
) -> None:
    """Both secrets are valid until the old one is dropped: then only programs with the new one are served."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    caplog.set_level(logging.INFO, logger="holdfast.client")
    file = tmp_path / "shop.secret"
    access = {"access_key": "shop", "secret_file": file, "auth": auth}
    with Up(tmp_path / "data", "--brokers", "1", "--auth") as cluster:
        await run(cluster, "topic", "create", "orders", "--queues", "2")
        await run(cluster, "user", "create", "shop", "--save-to", str(file))
        await run(cluster, "acl", "grant", "shop", "Topic:orders", "Pub,Sub,Get")
        await run(cluster, "acl", "grant", "shop", "Group:billing", "Sub")
        old = file.read_text().strip()
        programs = Programs()
        consumer = PushConsumer(cluster.namesrv, "billing", listener=programs.receive, start="earliest", **access)
        async with Producer(cluster.namesrv, **access) as producer:
            consumer.subscribe("orders")
            async with consumer:
                sending = asyncio.create_task(programs.send(producer))
                await programs.continue_for(MANY)

                await run(cluster, "user", "update", "shop", "--save-to", str(file), "--keep-old-secret")
                await programs.continue_for(MANY)
                while sum("the secret of user shop has changed" in text for text in caplog.messages) < 2:
                    await programs.continue_for(1)

                await run(cluster, "user", "update", "shop", "--drop-old-secret")
                await programs.continue_for(MANY)
                async with Producer(cluster.namesrv, access_key="shop", secret_key=old, auth=auth) as late:
                    with pytest.raises(SendFailed, match="check signature failed"):
                        await late.send(Message("orders", b"with the old secret"))
                await programs.continue_for(MANY)
                programs.is_ending = True
                await sending

    assert file.read_text().strip() != old
    assert not [
        record for record in caplog.records if "billing" in record.message and record.levelno >= logging.WARNING
    ]
