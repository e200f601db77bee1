"""Whole clusters whose connections use TLS: servers among each other, clients, commands, Arrow, metrics, renewal."""

import asyncio
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Certificates
from tests.support.cluster.operator import CommandResult, run_in_process
from tests.support.cluster.ports import free_port, port_of
from tests.support.cluster.raw_requests import wait_until
from tests.support.cluster.up import Up

from holdfast import ClusterClient, ConnectionLost, HoldfastError, Message, Producer, PullConsumer, SendStatus, arrow
from holdfast.admin.operations import Admin
from holdfast.broker.options import BrokerOptions
from holdfast.broker.service import BrokerService
from holdfast.client.options import ClientOptions
from holdfast.client.routes import name_server_discovery
from holdfast.machine.effects import Log
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.service import NameServerService
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

pytestmark = pytest.mark.timeout(120)

SMALL = {"log_file_size": 1 << 20, "index_slots": 1000, "index_entries": 4000, "queue_file_entries": 1000}


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@asynccontextmanager
async def roles(folder: Path, **options: Any) -> AsyncIterator[tuple[str, list[Log]]]:
    """Provide the address of a name server that knows a master and its replica, and the log of the three."""
    lines: list[Log] = []
    namesrv, master, replica = (f"127.0.0.1:{free_port()}" for _ in range(3))
    shared = {**SMALL, **options, "namesrv": (namesrv,), "replication": "sync"}
    services = [
        NameServerService(NameServerOptions(listen=namesrv, **options), lines.append),
        BrokerService(BrokerOptions(listen=master, store=str(folder / "master"), **shared), lines.append),
        BrokerService(
            BrokerOptions(listen=replica, store=str(folder / "replica"), replica_of="broker-a", **shared), lines.append
        ),
    ]
    started: list[NameServerService | BrokerService] = []
    try:
        for service in services:
            started.append(service)
            await service.start()
        yield namesrv, lines
    finally:
        for service in reversed(started):
            await service.stop()


async def send_until_replicated(producer: Producer, body: bytes) -> None:
    """Send until a send is acknowledged by the replica, too."""
    while True:
        if (await producer.send(Message("orders", body))).status == SendStatus.OK:
            return
        await asyncio.sleep(0.05)  # The replica says how far it is.


@pytest.mark.parametrize("client_auth", ["none", "required"])
async def test_servers_and_clients_use_nothing_but_tls(tmp_path: Path, files: Certificates, client_auth: str):
    """Registration, replication and clients; with certificates of servers and clients, if they are asked for."""
    tls = files.client(cert=files.cert, key=files.key)
    async with roles(tmp_path, **files.options, tls="enforcing", tls_client_auth=client_auth) as (namesrv, lines):
        async with (
            Producer(namesrv, tls=tls) as producer,
            PullConsumer(namesrv, "readers", start="earliest", tls=tls) as consumer,
        ):
            await send_until_replicated(producer, b"secret")
            consumer.subscribe("orders")
            received = await consumer.poll(timeout_s=20)
            assert received[0].body == b"secret"
        async with Admin(namesrv, tls=tls) as admin:
            assert {broker.id for broker in await admin.access.brokers()} == {0, 1}

        assert {line.event for line in lines} & {"plain connection refused", "TLS handshake not finished"} == set()
        with pytest.raises(HoldfastError):
            async with Producer(namesrv, timeout_s=1) as plain:
                await plain.send(Message("orders", b"plain"))
        assert "plain connection refused" in {line.event for line in lines}


async def test_a_server_that_trusts_nobody_dials_nobody(tmp_path: Path, files: Certificates):
    """The name server's certificate is not of the authority that the broker trusts: it says so, and never registers."""
    lines: list[Log] = []
    strange = Certificates(tmp_path / "strange")
    namesrv = f"127.0.0.1:{free_port()}"
    name_server = NameServerService(NameServerOptions(listen=namesrv, tls="enforcing", **files.options), lines.append)
    options = BrokerOptions(
        listen=f"127.0.0.1:{free_port()}",
        namesrv=(namesrv,),
        store=str(tmp_path / "store"),
        tls_outgoing=True,
        tls_ca=strange.ca,
        **SMALL,  # type: ignore[arg-type]
    )
    broker = BrokerService(options, lines.append)
    await name_server.start()
    try:
        await broker.start()
        reasons = " ".join(str(line.fields) for line in lines)
        assert "its certificate was not accepted" in reasons
        async with Admin(namesrv, tls=files.client()) as admin:
            assert await admin.access.brokers() == []
    finally:
        await broker.stop()
        await name_server.stop()


async def test_without_tls_a_handshake_is_closed(tmp_path: Path, files: Certificates):
    """As any other bytes that are no frame; plain clients are served."""
    namesrv = f"127.0.0.1:{free_port()}"
    name_server = NameServerService(NameServerOptions(listen=namesrv), lambda _: None)
    await name_server.start()
    try:
        async with ClusterClient(ClientOptions(namesrv, tls=files.client())) as client:
            with pytest.raises(ConnectionLost, match=f"cannot connect to {namesrv}"):
                await client.ask(namesrv, Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))
        async with Admin(namesrv) as admin:
            assert await admin.access.brokers() == []
    finally:
        await name_server.stop()


async def test_a_host_name_is_verified_although_its_address_is_dialled(tmp_path: Path, files: Certificates):
    """A client resolves the names of name servers; the certificate has the name, and need not have the address."""
    port = free_port()
    files.renew("names.example")
    options = NameServerOptions(listen=f"127.0.0.1:{port}", tls="enforcing", **files.options)
    name_server = NameServerService(options, lambda _: None)
    await name_server.start()

    async def resolve(host: str) -> list[str]:
        assert host == "names.example"
        return ["127.0.0.1"]

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(name_server_discovery, "resolve_host", resolve)
            async with Admin(f"names.example:{port}", tls=files.client()) as admin:
                assert await admin.access.brokers() == []
        async with Admin(f"127.0.0.1:{port}", tls=files.client()) as admin:
            with pytest.raises(HoldfastError, match="IP address mismatch"):
                await admin.access.brokers()
    finally:
        await name_server.stop()


@pytest.fixture
def cluster(tmp_path: Path, files: Certificates) -> Iterator[Up]:
    """A cluster that `holdfast up` started, and that enforces TLS."""
    metrics = free_port()
    options = [f"--{name.replace('_', '-')}={value}" for name, value in files.options.items()]
    folder = tmp_path / "data"
    with Up(folder, "--brokers", "1", "--tls", "enforcing", "--metrics-port", str(metrics), *options) as running:
        running.metrics = metrics  # type: ignore[attr-defined]
        yield running


def test_commands_arrow_and_metrics_use_tls(cluster: Up, files: Certificates):
    """What lacks the authority, or TLS, is told what to do."""

    def holdfast(*words: str) -> CommandResult:
        return run_in_process(*words, namesrv=cluster.namesrv)

    assert holdfast("send", "orders", "one", "--tls-ca", files.ca).status == 0
    assert "one" in holdfast("tail", "orders", "--tls-verify", "none").out
    plain = holdfast("topic", "list", "--timeout", "1")
    assert plain.status == 1
    assert "if it requires TLS, give its authority with --tls-ca FILE" in plain.err
    assert "certificate was not accepted" in holdfast("topic", "list", "--tls-verify", "full").err

    batches = list(arrow.read(cluster.namesrv, "orders", columns=["body"], tls=files.client()))
    assert [body.as_py() for batch in batches for body in batch["body"]] == [b"one"]

    port = cluster.metrics  # type: ignore[attr-defined]
    context = ssl.create_default_context(cafile=files.ca)
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context, timeout=20) as answer:
        assert 'holdfast_connections_refused_total{reason="plain"} 1.0' in answer.read().decode()
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20)


def test_a_running_cluster_takes_new_certificates(cluster: Up, files: Certificates):
    """Connections that are open stay open; new ones see the new certificate."""
    before = ssl.get_server_certificate(("127.0.0.1", port_of(cluster.namesrv)))

    async def story() -> None:
        async with Producer(cluster.namesrv, tls=files.client()) as producer:
            await producer.send(Message("orders", b"before"))
            connections = dict(producer._client._pool._connections)
            files.renew()
            port = port_of(cluster.namesrv)
            await asyncio.to_thread(wait_for_another, before, port)
            await producer.send(Message("orders", b"after"))
            assert producer._client._pool._connections == connections
            assert all(connection.is_open for connection in connections.values())

    asyncio.run(story())


def wait_for_another(certificate: str, port: int) -> None:
    """Return once a port presents another certificate."""
    wait_until(lambda: ssl.get_server_certificate(("127.0.0.1", port)) != certificate, "it is the old one still")


def test_a_forked_child_leaves_the_connections_of_its_parent_alone(cluster: Up, files: Certificates):
    """Neither its garbage collection nor its end says goodbye in the name of the parent."""
    program = f"""
import gc, os
from holdfast import ClientTls, ForkedClient, Message, blocking

tls = ClientTls(ca={files.ca!r})
with blocking.Producer({cluster.namesrv!r}, tls=tls) as producer:
    producer.send("orders", b"parent")
    connections = dict(producer._producer._client._pool._connections)
    pid = os.fork()
    if pid == 0:
        try:
            producer.send("orders", b"child")
        except ForkedClient:
            with blocking.Producer({cluster.namesrv!r}, tls=tls) as own:
                own.send("orders", b"child")
        del producer, own
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    producer.send("orders", b"parent again")
    assert producer._producer._client._pool._connections == connections
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
