"""A line takes the answer to what it asked, also when it asked ahead. The broker is played."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.login_server import LoginServer

from holdfast.bulk import pull_socket
from holdfast.bulk.pull_socket import PullSocket, _idle_sockets, borrow_pull_socket
from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.model.errors import ConnectionLost, LoginFailed
from holdfast.runtime.process.background_loop import BackgroundLoop
from holdfast.wire.access.signature import verify
from holdfast.wire.access.throttle import encode_throttle
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import RESPONSE, Command, decode_command, encode_command, response
from holdfast.wire.frames.frame import split_frames


class PlayedBroker:
    """Answers every command with the text that stands in its remark."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard: list[str] = []
        self.connections = 0
        self.wait_ms = 0  # what it asks for before each answer
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        received = b""
        with line, contextlib.suppress(OSError):  # The line was hung up.
            while data := line.recv(65536):
                received += data
                frames, taken = split_frames(memoryview(received))
                for command in map(decode_command, frames):
                    self.heard.append(command.remark or "")
                    answer = Command(code=0, flag=RESPONSE, opaque=command.opaque, body=self.heard[-1].encode())
                    throttle = encode_throttle(self.wait_ms) if self.wait_ms else b""
                    line.sendall(throttle + encode_command(answer))
                received = received[taken:]


@pytest.fixture
def broker() -> Iterator[PlayedBroker]:
    played = PlayedBroker()
    yield played
    played.close()


@pytest.fixture
def line(broker: PlayedBroker) -> Iterator[PullSocket]:
    found = PullSocket()
    yield found
    found.disconnect(broker.address)


def pull(text: str) -> Command:
    return Command(code=11, remark=text)


def ask(line: PullSocket, broker: PlayedBroker, text: str) -> str:
    return bytes(line.request(broker.address, pull(text), 30)[1]).decode()


def test_what_was_asked_ahead_is_not_asked_again(line: PullSocket, broker: PlayedBroker):
    """Its answer is the next one's."""
    assert ask(line, broker, "one") == "one"
    line.request_ahead(broker.address, pull("two"), 30)
    assert [ask(line, broker, text) for text in ("two", "three")] == ["two", "three"]
    assert broker.heard == ["one", "two", "three"]
    assert broker.connections == 1


def test_an_answer_that_nobody_wants_any_more_is_not_taken_for_another(broker: PlayedBroker):
    """A task may end before its last answer comes; the next task has the same line."""
    with borrow_pull_socket() as line:
        line.request_ahead(broker.address, pull("old"), 30)
    with borrow_pull_socket() as again:
        assert ask(again, broker, "old") == "old"
        assert broker.connections == 2  # It was asked anew: much may have happened in between.
        assert ask(again, broker, "new") == "new"
        again.request_ahead(broker.address, pull("old"), 30)
        assert ask(again, broker, "new") == "new"

    assert again is line
    line.disconnect(broker.address)


def test_asking_ahead_in_vain_is_found_out_when_the_answer_is_wanted(line: PullSocket, broker: PlayedBroker):
    """It may cost time, but never a row or a query."""
    line.request_ahead("127.0.0.1:1", pull("one"), 30)

    with pytest.raises(ConnectionLost):
        line.request("127.0.0.1:1", pull("one"), 30)
    assert ask(line, broker, "one") == "one"


# Access control.

ANN = CredentialsOptions(access_key="ann", secret_key="secret")


@pytest.fixture
def login_server() -> Iterator[tuple[BackgroundLoop, LoginServer]]:
    """A server with access control, in another thread."""
    loop = BackgroundLoop("login-server")
    server = LoginServer({"ann": ["secret"]})
    server.answers[11] = lambda command: response(command, body=(command.remark or "").encode())
    loop.run(server.listen(0))
    yield loop, server
    for idle in _idle_sockets.values():
        for borrowed in idle:
            borrowed.disconnect(server.address)
    loop.run(server.stop())


Served = tuple[BackgroundLoop, LoginServer]


def pulls_at(login_server: Served, count: int) -> list[Command]:
    """Return the pulls that the server recorded, once it has recorded *count*."""
    loop, server = login_server
    return loop.run(server.wait_for_requests(11, count))


def pull_body(socket_: PullSocket, address: str, text: str) -> memoryview:
    answer, body = socket_.request(address, pull(text), 30)
    assert answer.code == 0, answer.remark
    return body


def test_a_task_logs_in_before_its_first_pull(login_server: Served):
    """Also if it asks ahead first; once for a connection."""
    _, server = login_server
    with borrow_pull_socket(credentials=ANN) as task:
        task.request_ahead(server.address, pull("one"), 30)
        assert bytes(pull_body(task, server.address, "one")) == b"one"
        assert bytes(pull_body(task, server.address, "two")) == b"two"
    with borrow_pull_socket(credentials=ANN) as again:
        pull_body(again, server.address, "three")

    assert again is task
    assert server.logins == [("ann", "secret")]
    assert [command.remark for command in pulls_at(login_server, 3)] == ["one", "two", "three"]
    assert all("AccessKey" not in command.fields for command in server.requests)


def test_another_user_has_another_connection(login_server: Served):
    """A server knows who a connection is."""
    _, server = login_server
    server.users["bob"] = ["other"]
    bob = CredentialsOptions(access_key="bob", secret_key="other")
    for user in (ANN, bob):
        with borrow_pull_socket(credentials=user) as task:
            pull_body(task, server.address, "x")

    assert server.logins == [("ann", "secret"), ("bob", "other")]


def test_a_task_with_a_wrong_secret_sends_no_pull(login_server: Served):
    """The next attempt uses another connection."""
    _, server = login_server
    wrong = CredentialsOptions(access_key="ann", secret_key="wrongsecret")
    task = PullSocket(credentials=wrong)

    task.request_ahead(server.address, pull("one"), 30)
    for _ in range(2):
        with pytest.raises(LoginFailed, match="'ann'") as caught:
            task.request(server.address, pull("one"), 30)
        assert "wrongsecret" not in str(caught.value)
    assert server.requests_of(11) == []
    assert server.connections == 3


def test_pulls_from_a_java_server_are_signed(login_server: Served):
    """And not at all if the task must log in."""
    _, server = login_server
    server.kind = "java"
    task = PullSocket(credentials=ANN)
    assert bytes(pull_body(task, server.address, "one")) == b"one"
    assert verify(pulls_at(login_server, 1)[0], [b"secret"])
    task.disconnect(server.address)

    strict = PullSocket(credentials=CredentialsOptions(access_key="ann", secret_key="secret", mode="login"))
    with pytest.raises(LoginFailed, match="knows no login"):
        strict.request(server.address, pull("two"), 30)
    assert len(server.requests_of(11)) == 1


def test_a_task_without_access_control_is_not_signed(login_server: Served):
    """A server says that it needs nothing."""
    _, server = login_server
    server.kind = "open"
    task = PullSocket(credentials=ANN)
    for text in ("one", "two"):
        pull_body(task, server.address, text)

    pulls = pulls_at(login_server, 2)
    assert [command.code for command in server.requests] == [RequestCode.LOGIN, 11, 11]
    assert [command.fields for command in pulls] == [{}, {}]
    task.disconnect(server.address)


def test_a_new_secret_that_the_broker_does_not_know_yet_leaves_the_login(
    login_server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The query continues, and tries the new one again after a while."""
    _, server = login_server
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("secret", encoding="utf-8")
    task = PullSocket(credentials=CredentialsOptions(access_key="ann", secret_file=str(file)))
    pull_body(task, server.address, "one")
    file.write_text("second\n", encoding="utf-8")
    for text in ("two", "three"):
        assert bytes(pull_body(task, server.address, text)) == text.encode()
    assert len(server.requests_of(RequestCode.LOGIN)) == 2

    server.users["ann"] = ["second", "secret"]
    monkeypatch.setattr("holdfast.bulk.pull_socket.time.monotonic", lambda: float("inf"))
    pull_body(task, server.address, "four")
    assert server.logins == [("ann", "secret"), ("ann", "second")]
    assert server.connections == 1
    task.disconnect(server.address)


def test_a_task_logs_in_again_with_a_new_secret_and_keeps_its_last_answer(login_server: Served, tmp_path: Path):
    """The answer is still being read when the next pull is asked ahead."""
    _, server = login_server
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("secret", encoding="utf-8")
    task = PullSocket(credentials=CredentialsOptions(access_key="ann", secret_file=str(file)))
    body = pull_body(task, server.address, "x" * 1000)
    server.users["ann"] = ["second", "secret"]
    file.write_text("second\n", encoding="utf-8")

    task.request_ahead(server.address, pull("two"), 30)
    assert bytes(body) == b"x" * 1000
    assert bytes(pull_body(task, server.address, "two")) == b"two"
    assert server.logins == [("ann", "secret"), ("ann", "second")]
    assert server.connections == 1
    task.disconnect(server.address)


def test_a_broker_that_asks_to_wait_gets_the_next_request_later(
    line: PullSocket, broker: PlayedBroker, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is asked ahead meanwhile. A new connection begins without a wait."""
    now_s, waits_s = 1000.0, []

    def sleep(wait_s: float) -> None:
        nonlocal now_s
        waits_s.append(wait_s)
        now_s += wait_s

    monkeypatch.setattr(pull_socket.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(pull_socket.time, "sleep", sleep)
    broker.wait_ms = 12_000
    assert ask(line, broker, "one") == "one"

    line.request_ahead(broker.address, pull("two"), 30)
    assert waits_s == [0]
    assert ask(line, broker, "two") == "two"
    assert broker.heard == ["one", "two"]
    line.disconnect(broker.address)
    assert ask(line, broker, "three") == "three"
    assert waits_s == [0, 12, 0]
