"""A line takes the answer to what it asked, also when it asked ahead. The broker is played."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.bulk.pull_socket import PullSocket, borrow_pull_socket
from holdfast.model.errors import ConnectionLost
from holdfast.wire.frames.command import RESPONSE, Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames


class PlayedBroker:
    """Answers every command with the text that stands in its remark."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard: list[str] = []
        self.connections = 0
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
                    line.sendall(encode_command(answer))
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
