"""Rates, audit file and guarded metrics of running roles, over TLS as over plain connections."""

import json
import socket
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.certificates import Certificates
from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST, run_in_process
from tests.support.cluster.ports import free_port
from tests.support.cluster.up import READY_TIMEOUT_S

from holdfast.wire.access.login import client_proof, encode_nonce
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames

pytestmark = pytest.mark.timeout(180)
TIMEOUT_S = 60
TOKEN = "the-token-of-all-scrapers"
CLUSTER_SECRET = "the-secret-of-all-servers"


class Client:
    """A connection that sends requests, and reads their answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")

    def send(self, *requests: Command) -> None:
        self._connection.sendall(b"".join(map(encode_command, requests)))

    def receive(self) -> Command:
        head = self._file.read(4)
        frames, _ = split_frames(memoryview(head + self._file.read(struct.unpack(">I", head)[0])))
        return decode_command(frames[0])

    def ask(self, code: int, fields: dict[str, str]) -> Command:
        self.send(Command(code=code, opaque=1, fields=fields))
        return self.receive()

    def log_in(self, user: str, secret: str) -> int:
        """Return the code of the answer to the proof."""
        nonce = encode_nonce(bytes(32))
        begun = self.ask(RequestCode.LOGIN, {"user": user, "clientNonce": nonce})
        proof = client_proof(secret, user, nonce, begun.fields["serverNonce"])
        return self.ask(RequestCode.LOGIN_PROOF, {"user": user, "proof": proof}).code


class Role:
    """A running role with access control, a rate, an audit file, and a token for metrics."""

    def __init__(self, role: str, folder: Path) -> None:
        self.audit = folder / "audit.jsonl"
        self.certificates = Certificates(folder)
        files = {"cluster.secret": CLUSTER_SECRET, "token": TOKEN}
        for name, text in files.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        data = str(folder / "data")
        made = run_in_process("user", "init", data, "--save-to", str(folder / "admin"), namesrv="127.0.0.1:1")
        assert made.status == 0, made.err
        self.secret = (folder / "admin").read_text().strip()
        self.metrics = f"127.0.0.1:{free_port()}"
        words = ["serve", role, "--listen", f"127.0.0.1:{free_port()}", "--metrics-listen", self.metrics, "--json"]
        words += ["--auth", "--cluster-secret", str(folder / "cluster.secret"), "--audit-file", str(self.audit)]
        words += ["--metrics-token", str(folder / "token"), "--tls", "permissive", "--set", "user_requests_max=20"]
        words += [
            "--tls-cert",
            self.certificates.options["tls_cert"],
            "--tls-key",
            self.certificates.options["tls_key"],
        ]
        words += ["--data", data] if role == "namesrv" else ["--store", data, "--namesrv", f"127.0.0.1:{free_port()}"]
        self.child = Child([HOLDFAST, *words], name=role)
        self.address: str = json.loads(self.child.wait_for_line('^{"role"', timeout_s=READY_TIMEOUT_S))["address"]

    @contextmanager
    def client(self, *, tls: bool = False) -> Iterator[Client]:
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            if not tls:
                yield Client(connection)
                return
            context = ssl.create_default_context(cafile=self.certificates.ca)
            with context.wrap_socket(connection, server_hostname=host) as secured:
                yield Client(secured)

    def scrape(self, path: str, token: str = "") -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.metrics}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""


@pytest.fixture(scope="module", params=["namesrv", "broker"])
def role(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    """A name server, then a broker."""
    running = Role(request.param, tmp_path_factory.mktemp("limits"))
    with running.child:
        yield running


@pytest.mark.parametrize("tls", [False, True])
def test_a_user_above_its_rate_waits_and_loses_nothing(role: Role, *, tls: bool) -> None:
    """Every request is answered, in order, without an error; the metric says that it waited."""
    with role.client(tls=tls) as client:
        assert client.log_in("admin", role.secret) == 0
        for begin in (0, 30):
            requests = [Command(code=RequestCode.AUTH_LIST_USER, opaque=begin + at) for at in range(30)]
            client.send(*requests)
            answers = [client.receive() for _ in requests]
            assert [(answer.opaque, answer.code) for answer in answers] == [(begin + at, 0) for at in range(30)]

    _, text = role.scrape("/metrics", TOKEN)
    assert "holdfast_user_pauses_total" in text
    assert "holdfast_user_pauses_total 0.0" not in text


def test_metrics_need_the_token_and_the_health_does_not(role: Role) -> None:
    """Refused scrapes are audit lines, too."""
    assert role.scrape("/metrics")[0] == 401
    assert role.scrape("/metrics", "a-wrong-token")[0] == 401
    assert role.scrape("/metrics", TOKEN)[0] == 200
    assert role.scrape("/health") == (200, "ok\n")


def test_the_audit_file_has_changes_failed_logins_and_refusals(role: Role) -> None:
    """Each with who, from where, what and the result."""
    with role.client() as client:
        assert client.ask(RequestCode.AUTH_LIST_USER, {}).code != 0
        assert client.log_in("admin", "wrong") != 0
        assert client.log_in("admin", role.secret) == 0
        assert client.ask(RequestCode.AUTH_DELETE_USER, {"username": "shop"}).code == 0
        peer = f"127.0.0.1:{client._connection.getsockname()[1]}"

    entries = [json.loads(line) for line in role.audit.read_text().splitlines()]
    mine = [entry for entry in entries if entry["peer"] == peer]
    assert [(entry["kind"], entry["user"]) for entry in mine] == [
        ("refusal", ""),
        ("login", "admin"),
        ("change", "admin"),
    ]
    assert (mine[-1]["fields"], mine[-1]["result"]) == ("username=shop", "done")
    assert role.secret not in role.audit.read_text()
