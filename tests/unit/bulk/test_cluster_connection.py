"""The connection of a process to a cluster."""

import asyncio

import pytest
from tests.support.login_server import LoginServer

from holdfast.bulk.cluster_connection import ClusterConnection, PerProcess, Unavailable
from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.client.cluster.cluster_client import ClientCallbacks
from holdfast.client.options import ClientOptions
from holdfast.model.errors import AccessDenied, ConnectionLost, CorruptRecord, LoginFailed


class PatientConnection(ClusterConnection):
    """A connection without a cluster, which records what it recovers from."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.recovered: list[str] = []

    async def recover(self, topic: str, error: Exception, failures: int) -> None:
        self.recovered.append(f"{topic} {error} {failures}")


def test_a_request_is_repeated_until_it_is_answered():
    """With the number of failures in a row, by which the pauses grow."""
    connection = PatientConnection(60)
    answers: list[ConnectionLost | int] = [ConnectionLost("a"), ConnectionLost("b"), 7]

    async def call() -> int:
        answer = answers.pop(0)
        if isinstance(answer, ConnectionLost):
            raise answer
        return answer

    assert asyncio.run(connection.retry(call, "t")) == 7
    assert connection.recovered == ["t a 1", "t b 2"]


def test_patience_ends():
    """With the last error."""

    async def call() -> int:
        raise ConnectionLost("gone")

    with pytest.raises(Unavailable, match="gone"):
        asyncio.run(PatientConnection(-1).retry(call, "t"))


def test_a_corrupt_record_is_not_asked_for_again():
    """It stays corrupt."""

    async def call() -> int:
        raise CorruptRecord(7, "damaged")

    connection = PatientConnection(60)
    with pytest.raises(CorruptRecord):
        asyncio.run(connection.retry(call, "t"))
    assert connection.recovered == []


def test_a_refusal_of_access_control_is_final():
    """Patience does not help against it."""

    async def call() -> int:
        raise AccessDenied(16, "User:ann has no permission to access Topic:t")

    connection = PatientConnection(60)
    with pytest.raises(AccessDenied, match="no permission"):
        asyncio.run(connection.retry(call, "t"))
    assert connection.recovered == []


async def test_a_refused_login_ends_the_wait_for_a_name_server():
    """A planner says at once that the secret is wrong, not that no name server answers."""
    async with LoginServer({"ann": ["secret"]}) as server:
        options = ClientOptions(server.address, credentials=CredentialsOptions(access_key="ann", secret_key="wrong"))
        connection = await asyncio.to_thread(ClusterConnection, options, ClientCallbacks(), 60)
        with pytest.raises(LoginFailed, match="'ann'"):
            await asyncio.to_thread(connection.require_name_server)
        assert server.connections == 1
        await asyncio.to_thread(connection.wait, connection.client.close())


def test_a_process_creates_each_value_once(monkeypatch: pytest.MonkeyPatch):
    """A forked child creates its own."""
    values: PerProcess[object] = PerProcess()
    first = values.get("a", object)
    assert values.get("a", object) is first
    assert values.get("b", object) is not first

    monkeypatch.setattr("os.getpid", lambda: -1)
    assert values.get("a", object) is not first
