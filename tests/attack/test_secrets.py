"""Where secrets must not be: arguments of processes, logs, metrics, answers, and files that others may read."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster.operator import run_in_process
from tests.support.cluster.raw_requests import Answer, raw_request
from tests.support.cluster.up import Up

from holdfast.model.access.credentials import Credentials
from holdfast.wire.access.login import client_proof, encode_nonce
from holdfast.wire.access.signature import sign

pytestmark = pytest.mark.timeout(180)
NO = 16
USER_SECRET = "a-password-of-mallory-0815"


class Guarded:
    """A running `holdfast up --auth` whose files were created without any mask."""

    def __init__(self, cluster: Up, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.admin = cluster.announced["auth"]["access_key"]
        self.admin_secret = Path(cluster.announced["auth"]["secret_file"]).read_text(encoding="utf-8").strip()
        self.broker = next(iter(cluster.brokers.values()))
        self.servers = [cluster.namesrv, self.broker]

    @property
    def secrets(self) -> list[str]:
        """All secrets of this cluster."""
        files = [path for path in self.folder.rglob("*secret*") if path.is_file()]
        return [self.admin_secret, USER_SECRET, *(line for path in files for line in path.read_text().split())]

    def call(self, server: str, code: int, fields: dict[str, str] | None = None, body: object = b"") -> Answer:
        """Send a request that the administrator signs."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return raw_request(server, code, sign(fields or {}, data, Credentials(self.admin, self.admin_secret)), data)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A cluster with a user, after many requests that failed."""
    folder = tmp_path_factory.mktemp("guarded")
    before, mask = os.environ.get("XDG_CONFIG_HOME"), os.umask(0)
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
    try:
        with Up(folder / "data", "--brokers", "1", "--auth") as cluster:
            os.umask(mask)
            running = Guarded(cluster, folder)
            misuse(running)
            yield running
    finally:
        os.umask(mask)
        if before is None:
            os.environ.pop("XDG_CONFIG_HOME")
        else:
            os.environ["XDG_CONFIG_HOME"] = before


def misuse(guarded: Guarded) -> None:
    """Send the secrets in every place where a server could repeat them."""
    secret = guarded.admin_secret
    for server in guarded.servers:
        user = {"username": "mallory", "password": USER_SECRET}
        assert guarded.call(server, 3001, {"username": "mallory"}, user).code == 0
        for wrong in (
            {"username": "x", "password": f"{USER_SECRET} with a space"},
            {"username": "x", "password": [USER_SECRET]},
            {"username": "x", "password": USER_SECRET, "userType": USER_SECRET},
            [USER_SECRET],
        ):
            assert guarded.call(server, 3001, {"username": "x"}, wrong).code != 0
            assert guarded.call(server, 3002, {"username": "mallory", "hf.keepOldSecret": "maybe"}, wrong) is not None
        assert guarded.call(server, 3001, {"username": "x"}, f'{{"password": "{USER_SECRET}'.encode()).code != 0
        settings = 319 if server == guarded.cluster.namesrv else 26
        assert raw_request(server, settings, {"AccessKey": guarded.admin, "Signature": USER_SECRET}).code == NO
        assert raw_request(server, settings, sign({}, b"", Credentials(guarded.admin, USER_SECRET))).code == NO
        nonce = encode_nonce(bytes(32))
        raw_request(server, 7060, {"user": guarded.admin, "clientNonce": nonce})
        proof = client_proof(secret, guarded.admin, nonce, nonce)
        assert raw_request(server, 7061, {"user": guarded.admin, "proof": proof}).code == NO
        assert guarded.call(server, 7062, {"hf.digest": ""}, {"records": [{"key": USER_SECRET}]}).code == NO
    for word in ("user", "acl", "cluster", "broker"):
        run_in_process(word, "list", namesrv=guarded.cluster.namesrv)


def test_no_process_has_a_secret_among_its_arguments(guarded: Guarded) -> None:
    parent = guarded.cluster.child.pid
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
            is_ours = str(guarded.folder) in line or folder.name == str(parent)
        except OSError:
            continue
        if is_ours:
            lines.append(line)
    assert len(lines) >= 3, "holdfast up, a name server and a broker"

    assert not [secret for secret in guarded.secrets for line in lines if secret in line]


def test_no_log_line_has_a_secret(guarded: Guarded) -> None:
    lines = guarded.cluster.child.lines()
    files = [path for path in guarded.folder.rglob("*.log") if path.is_file() and path.stat().st_size < 1 << 22]
    text = "\n".join(lines) + "".join(path.read_text(errors="replace") for path in files)
    assert "login refused" in text
    assert "request refused" in text

    assert not [secret for secret in guarded.secrets if secret in text]


def test_files_with_secrets_are_their_owner_s(guarded: Guarded) -> None:
    """With umask 0 everything else is open to everybody."""
    found = []
    for path in guarded.folder.rglob("*"):
        if not path.is_file() or path.stat().st_size > 1 << 22:
            continue
        data = path.read_bytes()
        if any(secret.encode() in data for secret in guarded.secrets):
            found.append(path.name)
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert {"holdfastAccess.json", "admin.secret"} <= set(found)


def test_no_answer_but_that_for_users_has_a_secret(guarded: Guarded) -> None:
    """Not even for an administrator: settings, figures, and everything that lists something."""
    for server in guarded.servers:
        for code in (21, 26, 28, 201, 43, 45, 319, 219, 101, 106, 206, 3009, 3010, 7007, 7050, 7052):
            fields = {"subject": f"User:{guarded.admin}", "namespace": "n", "key": "k"}
            answer = guarded.call(server, code, fields)
            text = answer.text + answer.remark + str(answer.fields)
            assert not [secret for secret in guarded.secrets if secret in text], code


def test_metrics_have_no_secret(guarded: Guarded) -> None:
    lines = guarded.cluster.child.lines()
    ports = {int(word.rpartition(":")[2]) for line in lines for word in line.split() if word.startswith("metrics=")}
    for port in ports:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = b"".join(iter(lambda c=connection: c.recv(65536), b"")).decode()
        assert not [secret for secret in [*guarded.secrets, guarded.admin + '"', "mallory"] if secret in text]


GARBAGE = [
    b"\x00",
    b"\xff" * 64,
    b"\x16\x03\x01\x02\x00" + bytes(512),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xfeHFLOGIN" + bytes(64),
    struct.pack(">II", 2**31 - 1, 100),
    struct.pack(">II", 104, 100) + b"{" * 100,
    struct.pack(">II", 4 + 20_000, 20_000) + b'{"extFields":' + b"[" * (20_000 - 13),
    struct.pack(">II", 104, 0x01000000 | 100) + b"\xff" * 100,
]


def test_half_open_and_garbage_connections_hurt_nobody(guarded: Guarded) -> None:
    """Some send nothing, some a piece of a frame, some begin a login and never end it."""
    opened = []
    try:
        for server in guarded.servers:
            host, port = server.split(":")
            for number in range(150):
                connection = socket.create_connection((host, int(port)))
                connection.sendall(GARBAGE[number % len(GARBAGE)])
                opened.append(connection)
        for server in guarded.servers:
            assert guarded.call(server, 3004, {"username": "mallory"}).code == 0
            assert raw_request(server, 3009, {"subject": "User:mallory"}).code == NO
    finally:
        for connection in opened:
            connection.close()


BROKER = {
    "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster", "haServerAddr": "",
    "brokerId": "0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (103, {**BROKER, "brokerName": "evil"}),
        (104, BROKER),
        (904, BROKER),
        (322, BROKER),
        (7062, {"hf.digest": ""}),
        (318, {}),
    ],
)  # fmt: skip
def test_a_stranger_registers_nothing(guarded: Guarded, code: int, fields: dict[str, str]) -> None:
    """Neither unsigned, nor signed as the cluster or as a user with a secret that is not theirs."""
    for attempt in (
        fields,
        *(sign(fields, b"{}", Credentials(name, USER_SECRET)) for name in ("holdfast.cluster", guarded.admin)),
    ):
        assert raw_request(guarded.cluster.namesrv, code, attempt, b"{}").code == NO
    assert (
        raw_request(guarded.cluster.namesrv, code, sign(fields, b"{}", Credentials("mallory", USER_SECRET)), b"{}").code
        == NO
    )
    routes = guarded.call(guarded.cluster.namesrv, 106)
    assert "evil" not in routes.text
    assert "broker-a" in routes.text or '"broker' in routes.text
