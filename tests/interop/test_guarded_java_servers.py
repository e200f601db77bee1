"""Our clients and our broker beside real RocketMQ 5.5.0 servers with access control: they sign, as no login is known.

Java's name servers have no access control: they accept signed requests, and check nothing.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.foreign_members import Member, java_member
from tests.interop.guarded_servers import (
    ADMIN,
    GuardedServers,
    guarded_cluster,
    guarded_java_servers,
    java_access_settings,
    private_file,
)
from tests.interop.servers import CLUSTER, JAVA_SETTINGS
from tests.support.client_stories import TIMEOUT_S, Inbox
from tests.support.cluster.ports import free_port
from tests.support.cluster.raw_requests import Signer, make_topic, wait_until, wait_until_registered
from tests.support.java_peer import JavaPeer

from holdfast import AccessDenied, LoginFailed, Message, Producer, PullConsumer, PushConsumer, SendFailed
from holdfast.admin.operations import Admin
from holdfast.model.access.user import User, UserKind
from holdfast.runtime.access.first_administrator import create_first_administrator

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

OWN, FOREIGN = "Own", "Foreign"
USER = Signer("shop-assistant", "secret-of-the-user")
COUNT = 20


@pytest.fixture(scope="module")
def guarded(peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServers]:
    with guarded_java_servers(peer_5, tmp_path_factory.mktemp("guarded-java")) as servers:
        for topic in (OWN, FOREIGN):
            servers.make_topic(topic)
        servers.add_user(USER, f"Topic:{OWN} Pub,Sub,Get", f"Group:{OWN}* Sub,Get")
        yield servers


def credentials(user: Signer, **more: Any) -> dict[str, Any]:
    """Return the arguments with which a client acts as *user*."""
    return {"access_key": user.user, "secret_key": user.secret, **more}


@pytest.mark.parametrize("auth", ["auto", "sign"])
async def test_our_clients_sign_for_java_servers(guarded: GuardedServers, auth: str) -> None:
    """Sends one by one and many at once, a group, and offsets that are kept."""
    own = credentials(USER, auth=auth)
    bodies = {f"{auth} {number}".encode() for number in range(2 * COUNT)}
    inbox = Inbox()
    async with asyncio.timeout(TIMEOUT_S):
        async with Producer(guarded.name_server, **own) as producer:
            for body in sorted(bodies)[:COUNT]:
                await producer.send(Message(OWN, body))
            await producer.send_many([Message(OWN, body) for body in sorted(bodies)[COUNT:]])
        member = PushConsumer(guarded.name_server, f"{OWN}-{auth}", listener=inbox, start="earliest", **own)
        member.subscribe(OWN)
        async with member:
            while not bodies <= inbox.bodies().keys():
                await inbox.wait_for(len(inbox.messages) + 1)
        async with PullConsumer(guarded.name_server, f"{OWN}-{auth}", start="earliest", **own) as consumer:
            consumer.subscribe(OWN)
            assert not await consumer.poll(timeout_s=1)  # the group has them all


@pytest.mark.parametrize("auth", ["auto", "sign"])
async def test_our_clients_understand_the_refusals_of_java_servers(guarded: GuardedServers, auth: str) -> None:
    """A wrong secret, no credentials, and a topic of somebody else."""
    wrong = credentials(USER._replace(secret="another-secret"), auth=auth)
    for arguments, topic in ((wrong, OWN), ({}, OWN), (credentials(USER, auth=auth), FOREIGN)):
        async with Producer(guarded.name_server, **arguments) as producer:
            with pytest.raises(SendFailed, match="tried once") as failed:
                await producer.send(Message(topic, b"refused"))
            assert isinstance(failed.value.cause, AccessDenied)


async def test_with_login_alone_nothing_is_sent_to_java_servers(guarded: GuardedServers) -> None:
    """A signed request could be replayed: who asks for logins only, gets no downgrade."""
    async with Producer(guarded.name_server, **credentials(USER, auth="login")) as producer:
        with pytest.raises(SendFailed, match="tried once") as failed:
            await producer.send(Message(OWN, b"refused"))
        assert isinstance(failed.value.cause, LoginFailed)


async def test_our_admin_manages_users_of_java_servers(guarded: GuardedServers) -> None:
    """With the codes of ACL 2.0, signed."""
    async with Admin(guarded.name_server, **credentials(ADMIN)) as admin:
        await admin.access_control.create_user(User("made-by-us", ("first-secret",)))
        assert "made-by-us" in {user.name for user in await admin.access_control.users("made")}
        await admin.access_control.delete_user("made-by-us")
        assert not await admin.access_control.users("made")


@pytest.mark.slow
async def test_our_guarded_broker_registers_at_a_java_name_server(
    guarded: GuardedServers, peer_5: JavaPeer, tmp_path: Path
) -> None:
    """With `java_peers = sign`. A Java client then uses our broker and the Java one in one topic, as one user."""
    inner = private_file(tmp_path / "inner.yml", f"accessKey: {ADMIN.user}\nsecretKey: {ADMIN.secret}\n")
    settings = {"java_peers": "sign", "inner_credentials": inner}
    administrator = User(ADMIN.user, (ADMIN.secret,), UserKind.SUPER)
    create_first_administrator(tmp_path / "ours", administrator, time.time_ns() // 1_000_000)
    with guarded_cluster(tmp_path, name_servers=0) as cluster:
        ours = await asyncio.to_thread(
            cluster.start, "ours", namesrv=guarded.name_server, store=tmp_path / "ours", settings=settings
        )
        both = GuardedServers("java", guarded.name_server, {**guarded.brokers, "ours": ours.address})
        user = Signer("traveller", "secret-of-the-user")
        both.add_user(user, "Topic:Both Pub,Sub,Get", "Group:Both Sub,Get")
        both.make_topic("Both")
        member = signing_member(peer_5, "java", both.name_server, "Both", user, tmp_path / "client")
        await asyncio.to_thread(check_sends_and_consumes, member)

        async with PullConsumer(both.name_server, "reader", auto_commit=False, **credentials(ADMIN)) as consumer:
            queues = await consumer.queues("Both")
            assert {queue.broker_name for queue in queues} == {"ours", "broker-a"}


def signing_member(
    peer: JavaPeer, name: str, name_server: str, topic: str, user: Signer, home: Path, *options: str
) -> Member:
    """Start a Java application that signs its requests."""
    signing = f"-Daccess.user={user.user}:{user.secret}"
    return java_member(peer, name, name_server, topic, topic, home, [signing, *options])


def check_sends_and_consumes(member: Member) -> None:
    """Let an application send, and get everything."""
    with member.child:
        member.ready()
        member.send(COUNT)
        wait_until(
            lambda: member.is_idle and len(member.said().got) >= COUNT - len(member.said().failed),
            lambda: str(member.said()),
        )
        assert not member.said().failed


@pytest.mark.slow
def test_a_java_broker_signs_for_our_name_server(peer_5: JavaPeer, tmp_path: Path) -> None:
    """Its inner credentials are those of a user who may register brokers. With others it is refused."""
    with guarded_cluster(tmp_path) as cluster:
        for name, user in (("theirs", ADMIN), ("stranger", ADMIN._replace(secret="another-secret"))):
            inner = f'{{"accessKey": "{user.user}", "secretKey": "{user.secret}"}}'
            settings = {**JAVA_SETTINGS, **java_access_settings(), "innerClientAuthenticationCredentials": inner}
            port = free_port()
            with peer_5.start_broker(
                name=name,
                cluster=CLUSTER,
                port=port,
                name_server=cluster.namesrv,
                store=tmp_path / name,
                settings=settings,
            ):
                if user is ADMIN:
                    wait_until_registered(cluster.namesrv, [name], signer=ADMIN)
                    make_topic(cluster.namesrv, [f"127.0.0.1:{port}"], OWN, queues=1, signer=ADMIN)
                else:
                    refused = cluster.child(cluster.namesrv).wait_for_line("request refused.*code=103", timeout_s=60)
                    assert ADMIN.user in refused


@pytest.mark.slow
def test_zones_and_signatures_go_together(peer_5: JavaPeer, tmp_path: Path) -> None:
    """The client adds the fields of its zone after it has signed: no Java server accepts such a request."""
    with guarded_cluster(tmp_path) as cluster:
        ours = cluster.start("ours", settings={"zone": "Harbour"})
        servers = GuardedServers("holdfast", cluster.namesrv, {"ours": ours.address})
        servers.make_topic(OWN)
        servers.add_user(USER, f"Topic:{OWN} Pub,Sub,Get", f"Group:{OWN} Sub,Get")
        zone = ["-Drocketmq.zone=Harbour", "-Drocketmq.zone.mode=true"]
        check_sends_and_consumes(
            signing_member(peer_5, "java", servers.name_server, OWN, USER, tmp_path / "client", *zone)
        )
