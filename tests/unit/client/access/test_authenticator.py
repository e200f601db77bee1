"""Clients that prove their identity to a server, over real sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.login_server import LoginServer

from holdfast import Message, Producer
from holdfast.client.access import authenticator as authenticator_module
from holdfast.client.access.credentials_options import credentials_options
from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.options import ClientOptions
from holdfast.model.errors import AccessDenied, ConfigError, ConnectionLost, LoginFailed, SendFailed
from holdfast.wire.access.signature import verify
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response

PING = RequestCode.GET_BROKER_CLUSTER_INFO
SEND = RequestCode.SEND_MESSAGE_V2
STORED = {"msgId": "AB", "queueId": "0", "queueOffset": "7"}


def ping() -> Command:
    return Command(code=PING)


@asynccontextmanager
async def a_client(server: LoginServer, **access: Any) -> AsyncIterator[ClusterClient]:
    credentials = credentials_options(**({"access_key": "ann", "secret_key": "secret"} | access))
    async with ClusterClient(ClientOptions(server.address, credentials=credentials)) as client:
        yield client


@asynccontextmanager
async def a_server(kind: str = "holdfast") -> AsyncIterator[LoginServer]:
    async with LoginServer({"ann": ["secret"]}) as server:
        server.kind = kind  # type: ignore[assignment]
        server.on(PING)
        yield server


def secret_file(folder: Path, secret: str) -> Path:
    fresh = folder / "fresh"
    fresh.touch(0o600)
    fresh.write_text(secret, encoding="utf-8")
    return fresh.rename(folder / "secret")


@pytest.fixture
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is inspected all the time."""
    monkeypatch.setattr(authenticator_module, "CHECK_INTERVAL_S", 0.01)


@pytest.mark.parametrize("auth", ["auto", "login"])
async def test_one_login_serves_all_requests_of_a_connection(auth: str):
    """Nothing after it is signed."""
    async with a_server() as server, a_client(server, auth=auth) as client:
        for _ in range(3):
            await client.invoke(server.address, ping())

        assert server.logins == [("ann", "secret")]
        assert [command.code for command in server.requests] == [
            RequestCode.LOGIN,
            RequestCode.LOGIN_PROOF,
            *[PING] * 3,
        ]
        assert all("AccessKey" not in command.fields for command in server.requests)


async def test_a_lost_connection_logs_in_again():
    """With another nonce."""
    async with a_server() as server, a_client(server) as client:
        await client.invoke(server.address, ping())
        connection = await client.connection(server.address)
        server.drop_connections()
        await connection.closed
        await client.invoke(server.address, ping())

        assert len(server.logins) == 2
        nonces = {command.fields["clientNonce"] for command in server.requests_of(RequestCode.LOGIN)}
        assert len(nonces) == 2


@pytest.mark.parametrize("kind", ["holdfast", "java"])
async def test_a_client_that_signs_does_not_ask(kind: str):
    """Servers of both kinds accept signed requests."""
    async with a_server(kind) as server, a_client(server, auth="sign") as client:
        await client.invoke(server.address, ping())

        assert [command.code for command in server.requests] == [PING]
        assert verify(server.requests[0], [b"secret"])


async def test_requests_to_a_java_server_are_signed():
    """One request finds out that it knows no login; it is not repeated on the same connection."""
    async with a_server("java") as server, a_client(server) as client:
        await client.invoke(server.address, ping())
        await client.invoke(server.address, ping())

        assert [command.code for command in server.requests] == [RequestCode.LOGIN, PING, PING]
        assert all(verify(command, [b"secret"]) for command in server.requests_of(PING))


async def test_a_strict_client_sends_a_java_server_nothing_to_replay():
    """Not even one signed request."""
    async with a_server("java") as server, a_client(server, auth="login") as client:
        with pytest.raises(LoginFailed, match="knows no login"):
            await client.invoke(server.address, ping())

        assert [command.code for command in server.requests] == [RequestCode.LOGIN]
        assert "AccessKey" not in server.requests[0].fields


async def test_without_access_control_a_client_just_continues():
    """After one answer; requests are not signed."""
    async with a_server("open") as server, a_client(server) as client:
        await client.invoke(server.address, ping())

        assert [command.code for command in server.requests] == [RequestCode.LOGIN, PING]
        assert server.requests_of(PING)[0].fields == {}


async def test_a_strict_client_wants_a_server_to_know_the_secret():
    """A server without users could be an attacker."""
    async with a_server("open") as server, a_client(server, auth="login") as client:
        with pytest.raises(LoginFailed, match="no access control"):
            await client.invoke(server.address, ping())


@pytest.mark.parametrize("auth", ["auto", "login"])
async def test_a_server_that_cannot_prove_itself_gets_no_request(auth: str):
    """It does not know the secret, so it is another one than it claims to be."""
    async with a_server() as server, a_client(server, auth=auth) as client:
        server.own_secret = "guessed"
        with pytest.raises(LoginFailed, match="does not know the secret"):
            await client.invoke(server.address, ping())

        assert server.requests_of(PING) == []


async def test_a_wrong_secret_is_an_error_that_says_what_to_do(caplog: pytest.LogCaptureFixture):
    """And it appears nowhere."""
    async with a_server() as server, a_client(server, secret_key="wrongsecret") as client:
        with pytest.raises(LoginFailed, match="check the access key, the secret") as caught:
            await client.invoke(server.address, ping())

        assert isinstance(caught.value, AccessDenied)
        assert server.logins == []
        assert "login of 'ann'" in caplog.text
        assert "wrongsecret" not in f"{caught.value!r} {caplog.text} {server.requests}"


async def test_a_refused_client_does_not_dial_again_and_again():
    """Every request fails at once meanwhile; the warning is logged once."""
    async with a_server() as server, a_client(server, secret_key="wrong") as client:
        for _ in range(20):
            with pytest.raises(LoginFailed):
                await client.invoke(server.address, ping())

        assert server.connections == 1


async def test_the_pauses_between_refused_logins_grow(monkeypatch: pytest.MonkeyPatch):
    """The clock is the test's."""
    clock = [1000.0]
    monkeypatch.setattr(authenticator_module, "monotonic", lambda: clock[0])
    pauses = []
    async with a_server() as server, a_client(server, secret_key="wrong") as client:
        for attempt in range(1, 8):
            began = clock[0]
            while server.connections < attempt:
                with pytest.raises(LoginFailed):
                    await client.invoke(server.address, ping())
                clock[0] += 0.5
            pauses.append(clock[0] - 0.5 - began)
        for _ in range(20):
            with pytest.raises(LoginFailed):
                await client.invoke(server.address, ping())

    assert server.connections == 7
    assert pauses == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 29.5]


async def test_a_producer_does_not_try_a_refused_send_elsewhere():
    """One send request, one answer, one error with the text of the server."""
    async with a_server() as server:
        server.serve_topic("t", queues=4)
        text = "User:ann has no permission to access Topic:t from 127.0.0.1, no matched policies."
        server.refuse(SEND, 16, text)
        async with Producer(server.address, access_key="ann", secret_key="secret") as producer:
            with pytest.raises(SendFailed, match="no matched policies") as caught:
                await producer.send("t", b"x")

        assert isinstance(caught.value.cause, AccessDenied)
        assert not caught.value.maybe_stored
        assert len(server.requests_of(SEND)) == 1
        assert len(server.requests_of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1


async def test_a_producer_with_a_wrong_secret_fails_at_once():
    """It asks one name server once."""
    async with a_server() as server:
        server.serve_topic("t")
        async with Producer(server.namesrv, access_key="ann", secret_key="wrong") as producer:
            with pytest.raises((SendFailed, LoginFailed), match="login of 'ann'"):
                await producer.send("t", b"x")

        assert server.connections == 1


async def test_all_ways_to_send_are_signed_for_a_java_server():
    """Single sends, one-way sends, batches, and those that are collected."""
    async with a_server("java") as server:
        server.serve_topic("t", queues=2)
        for code in (SEND, RequestCode.SEND_BATCH_MESSAGE):
            server.on(code, **STORED)
        async with Producer(server.address, access_key="ann", secret_key="secret", security_token="tok%n") as producer:
            await producer.send("t", "ä%d".encode(), key='k"1', tags="a", properties={"x": "ö%s"})
            await producer.send_oneway(Message("t", b"one way"))
            await server.wait_for_requests(SEND, 2)
            await producer.send_many([Message("t", b"1"), Message("t", b"2"), Message("t", b"3", key="k")])
            await producer.send_nowait(Message("t", b"4"))

        refused = [command for command in server.refused if command.code != RequestCode.LOGIN]
        assert refused == []
        sends = [*server.requests_of(SEND), *server.requests_of(RequestCode.SEND_BATCH_MESSAGE)]
        assert len(sends) >= 4
        assert all(command.fields["SecurityToken"] == "tok%n" for command in sends)
        assert all(verify(command, [b"secret"]) for command in sends)


async def test_a_new_secret_is_used_on_the_same_connection(tmp_path: Path, checked_often: None):
    """No request fails meanwhile."""
    file = secret_file(tmp_path, "secret")
    async with a_server() as server, a_client(server, secret_key=None, secret_file=file) as client:
        await client.invoke(server.address, ping())
        server.users["ann"] = ["second", "secret"]
        secret_file(tmp_path, "second\n")
        while len(server.logins) < 2:
            await client.invoke(server.address, ping())
        server.users["ann"] = ["second"]
        await client.invoke(server.address, ping())

        assert server.logins == [("ann", "secret"), ("ann", "second")]
        assert server.connections == 1
        assert server.refused == []


async def test_signed_connections_use_the_new_secret(tmp_path: Path, checked_often: None):
    """They have nothing to ask."""
    file = secret_file(tmp_path, "secret")
    async with a_server("java") as server, a_client(server, secret_key=None, secret_file=file) as client:
        server.users["ann"] = ["second", "secret"]
        await client.invoke(server.address, ping())
        secret_file(tmp_path, "second")
        while not verify(server.requests_of(PING)[-1], [b"second"]):
            await client.invoke(server.address, ping())

        assert server.connections == 1
        assert len(server.requests_of(RequestCode.LOGIN)) == 1
        assert [command.code for command in server.refused] == [RequestCode.LOGIN]


async def test_a_secret_that_the_server_does_not_know_yet_leaves_the_login(
    tmp_path: Path, checked_often: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The connection stays in use, and logs in when the server knows it."""
    monkeypatch.setattr(authenticator_module, "REFUSED_PAUSE_S", 0.01)
    file = secret_file(tmp_path, "secret")
    async with a_server() as server, a_client(server, secret_key=None, secret_file=file) as client:
        await client.invoke(server.address, ping())
        secret_file(tmp_path, "second")
        await server.wait_for_login_attempts(3)
        await client.invoke(server.address, ping())
        server.users["ann"] = ["second"]
        await server.wait_for_logins(2)

        assert server.connections == 1
        assert "stays logged in with the earlier secret" in caplog.text


async def test_a_secret_file_that_goes_bad_is_logged_once(
    tmp_path: Path, checked_often: None, caplog: pytest.LogCaptureFixture
):
    """The earlier secret stays in use."""
    file = secret_file(tmp_path, "secret")
    async with a_server() as server, a_client(server, secret_key=None, secret_file=file) as client:
        await client.invoke(server.address, ping())
        with caplog.at_level(logging.WARNING):
            file.chmod(0o644)
            secret_file(tmp_path, "second").chmod(0o644)
            while "other users" not in caplog.text:
                await client.invoke(server.address, ping())
            for _ in range(20):
                await client.invoke(server.address, ping())
                await asyncio.sleep(0.002)

        assert caplog.text.count("other users") == 1
        assert len(server.logins) == 1


async def test_a_client_with_a_bad_secret_file_cannot_be_made(tmp_path: Path):
    """It would fail later, far from the mistake."""
    with pytest.raises(ConfigError, match="cannot be read"):
        Producer("127.0.0.1:1", access_key="ann", secret_file=tmp_path / "missing")


async def test_a_server_that_does_not_answer_the_login_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch):
    """Nothing was sent, so that the caller can try another one."""
    monkeypatch.setattr(authenticator_module, "LOGIN_TIMEOUT_S", 0.05)
    async with a_server() as server:
        server.answer = lambda command: None  # type: ignore[method-assign]
        async with a_client(server) as client:
            with pytest.raises(ConnectionLost, match="did not answer the login") as caught:
                await client.invoke(server.address, ping())
            assert not caught.value.was_sent


async def test_a_server_that_is_busy_is_asked_again_by_the_next_request():
    """Its answer is no verdict."""
    async with a_server() as server, a_client(server) as client:
        real, server.answer = server.answer, lambda command: response(command, 2, "busy")  # type: ignore[method-assign]
        with pytest.raises(ConnectionLost, match="busy"):
            await client.invoke(server.address, ping())
        server.answer = real  # type: ignore[method-assign]
        await client.invoke(server.address, ping())

        assert server.logins == [("ann", "secret")]
