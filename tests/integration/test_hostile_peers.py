"""Strangers at the ports of running servers: they are refused or cut off, and nobody else notices.

What each request may and may not do is told by the unit tests of the rooms; here is what only a process and its
sockets can show: that it lives on, answers others meanwhile, and writes no traceback.
"""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST
from tests.support.cluster.ports import free_port
from tests.support.cluster.up import READY_TIMEOUT_S

TIMEOUT_S = 30
MEMORY_LIMIT = 32 * 1024 * 1024


class Server:
    """One running role, and a code that it answers."""

    def __init__(self, child: Child, address: str, code: int) -> None:
        self.child = child
        host, _, port = address.rpartition(":")
        self._where = (host, int(port))
        self._code = code

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(self._where, timeout=TIMEOUT_S)

    def is_well(self) -> bool:
        """Say whether a stranger who behaves is answered."""
        with self.connect() as peer:
            peer.sendall(a_frame(self._code, {"topic": "TBW102"}))
            return len(peer.recv(4)) == 4


def a_frame(code: int, fields: dict[str, str], body: bytes = b"", *, opaque: int = 1) -> bytes:
    header = json.dumps({"code": code, "extFields": fields, "flag": 0, "opaque": opaque, "version": 401}).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


@pytest.fixture(scope="module", params=["namesrv", "broker"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A name server, then a broker."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    words = ["serve", request.param, "--listen", f"127.0.0.1:{free_port()}", "--json"]
    if request.param == "broker":
        words += ["--name", "b", "--namesrv", f"127.0.0.1:{free_port()}", "--store", str(folder / "store")]
    words += ["--set", f"memory_limit={MEMORY_LIMIT}"]
    with Child([HOLDFAST, *words], name=request.param) as child:
        ready = json.loads(child.wait_for_line('^{"role"', timeout_s=READY_TIMEOUT_S))
        yield Server(child, ready["address"], 105 if request.param == "namesrv" else 351)
        assert not [line for line in child.lines() if "Traceback" in line]


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x10\x09\0\0\4" + bytes(12),
        b"\0\0\0\x10\0\0\0\xff" + bytes(12),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\4\0\0\0\0" * 10_000,
        struct.pack(">II", 4 + 3, 3) + b"\xff{}",
    ],
)
def test_a_peer_that_cannot_be_understood_is_cut_off(server: Server, data: bytes):
    """At once and without an answer; others are answered."""
    with server.connect() as peer:
        try:
            peer.sendall(data)
            answer = peer.recv(1)
        except ConnectionError:
            answer = b""

    assert answer == b""
    assert server.is_well()


@pytest.mark.parametrize(
    "body",
    [b'{"' + b'\\"' * 2_000_000, b"{" * 60 + b"}" + b":1}" * 59, b"[" * 1_000_000, b'{"a":{"$ref":"$"}}', b"\xff"],
    ids=["a text without end", "keys in keys", "depth", "a circle", "no text"],
)
@pytest.mark.parametrize("code", [34, 103, 200, 322])
def test_a_body_that_is_meant_to_take_for_ever_does_not(server: Server, code: int, body: bytes):
    """Whatever request carries it; the one event loop is everybody's."""
    fields = {"brokerName": "x", "brokerAddr": "192.0.2.1:1", "clusterName": "c", "brokerId": "0"}
    with server.connect() as peer:
        peer.sendall(a_frame(code, fields, body))
        assert len(peer.recv(4)) == 4

    assert server.is_well()


def test_five_hundred_halves_of_frames_hold_up_nobody(server: Server):
    """Each costs what has come of it, not what it promises."""
    peers = [server.connect() for _ in range(500)]
    try:
        for peer in peers:
            peer.sendall(struct.pack(">II", 16_000_000, 500) + b"x" * 100)

        assert server.is_well()
    finally:
        for peer in peers:
            peer.close()
    assert server.is_well()


def test_unfinished_frames_take_no_more_memory_than_the_limit(server: Server):
    """Those who hold longest are cut off; everybody else is answered."""
    before = server.child.memory_size()
    peers = [server.connect() for _ in range(20)]
    cut_off = 0
    try:
        for peer in peers:
            try:
                peer.sendall(struct.pack(">II", 16_000_000, 500) + bytes(15_000_000))
            except ConnectionError:
                cut_off += 1
            assert server.is_well()
        grown = server.child.memory_size() - before
    finally:
        for peer in peers:
            peer.close()

    assert grown < 3 * MEMORY_LIMIT, f"300 MB were sent, {cut_off} were cut off while they sent"
