"""Where the list of name servers comes from."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.support.address_server import an_address_server

from holdfast.client.routes import name_server_discovery
from holdfast.client.routes.name_server_discovery import NameServerDiscovery, resolve_host
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError, ConnectionLost


class Dns:
    """Names and their addresses; a name without any cannot be resolved."""

    def __init__(self, **names: list[str]) -> None:
        self.names = names

    async def __call__(self, host: str) -> list[str]:
        if host not in self.names:
            raise socket.gaierror("unknown")
        return self.names[host]


async def test_a_list_of_addresses_is_what_it_says():
    """It never changes by itself; neither does this machine's own name."""
    source = NameServerDiscovery("10.0.0.1:1;localhost:2,[::1]:3", resolve=Dns(), refresh_s=1)

    assert source.listed == await source.read() == ["10.0.0.1:1", "localhost:2", "[::1]:3"]
    assert source.refresh_s is None


async def test_a_name_stands_for_all_its_addresses():
    """Each with the port of the name, each once."""
    source = NameServerDiscovery("shop:9876;10.0.0.1:9876", resolve=Dns(shop=["10.0.0.2", "10.0.0.1", "fe80::1"]))

    assert await source.read() == ["10.0.0.1:9876", "10.0.0.2:9876", "[fe80::1]:9876"]
    assert source.refresh_s == 30


async def test_a_name_that_cannot_be_resolved_keeps_what_it_had():
    """One that never had any is left to whoever dials it."""
    dns = Dns(shop=["10.0.0.1"])
    source = NameServerDiscovery("shop:1;other:2", resolve=dns)
    assert await source.read() == ["10.0.0.1:1", "other:2"]

    del dns.names["shop"]

    assert await source.read() == ["10.0.0.1:1", "other:2"]


async def test_dns_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """The client would not start. What the matter is stands in the log."""
    monkeypatch.setattr(name_server_discovery, "_TIMEOUT_S", 0.01)

    async def hang(host: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    assert await NameServerDiscovery("shop:1", resolve=hang).read() == ["shop:1"]
    assert "the host name shop could not be resolved: timed out" in caplog.text


async def test_of_both_kinds_of_addresses_one_is_taken(monkeypatch: pytest.MonkeyPatch):
    """The same server is behind both."""

    async def both(self: object, host: str, port: None, **how: object) -> list[tuple[object, ...]]:
        kind = socket.SOCK_STREAM
        found = [(socket.AF_INET6, kind, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, kind, 6, "", ("127.0.0.1", 0))]
        return found if host == "both" else found[:1]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", both)

    assert await resolve_host("both") == ["127.0.0.1"]
    assert await resolve_host("six") == ["::1"]


async def test_an_address_server_is_asked():
    """By its whole URL; what it says is read as a list that somebody gave."""
    with an_address_server(b" 10.0.0.1:1;shop:2\n") as server:
        source = NameServerDiscovery(server.url, resolve=Dns(shop=["10.0.0.3"]))

        assert source.listed == []
        assert await source.read() == ["10.0.0.1:1", "10.0.0.3:2"]
        assert server.requested_paths == ["/rocketmq/nsaddr?unit=a"]
        assert source.refresh_s == 120


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"host", b"\xff\xfe:1", b"a:1;" * 20_000, b"a:" + b"9" * 5000, b"a:1\nb:2"]
)
async def test_nonsense_is_no_list(body: bytes):
    """The text names the address server."""
    with (
        an_address_server(body) as server,
        pytest.raises(ConnectionLost, match=r"http://127\.0\.0\.1.* returned no name servers"),
    ):
        await NameServerDiscovery(server.url).read()


async def test_an_address_server_that_fails_tells_nothing():
    """By its status, or by not being there."""
    with an_address_server(b"10.0.0.1:1") as server:
        server.status = 500
        with pytest.raises(ConnectionLost, match="status 500"):
            await NameServerDiscovery(server.url).read()
    with pytest.raises(ConnectionLost, match="returned no name servers"):
        await NameServerDiscovery(server.url).read()


async def test_an_address_server_that_dribbles_is_left(monkeypatch: pytest.MonkeyPatch):
    """Each of its bytes comes in time, but not all of them."""
    monkeypatch.setattr(name_server_discovery, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def dribble() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                ticks = threading.Event()
                while not ticks.wait(0.05):
                    try:
                        peer.sendall(b"1")
                    except OSError:
                        return

        thread = threading.Thread(target=dribble)
        thread.start()
        with pytest.raises(ConnectionLost, match="timed out"):
            await NameServerDiscovery(f"http://127.0.0.1:{listener.getsockname()[1]}").read()
        thread.join()


async def test_an_address_server_that_dribbles_its_head_is_left(monkeypatch: pytest.MonkeyPatch):
    """A head has no end of its own."""
    monkeypatch.setattr(name_server_discovery, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = 0

        def dribble() -> None:
            nonlocal sent
            peer, _ = listener.accept()
            with peer, suppress(OSError):
                peer.sendall(b"HTTP/1.0 200 OK\r\nX: ")
                ticks = threading.Event()
                while sent < 100 and not ticks.wait(0.05):
                    peer.sendall(b"1")
                    sent += 1

        thread = threading.Thread(target=dribble)
        thread.start()
        with pytest.raises(ConnectionLost, match="timed out"):
            await NameServerDiscovery(f"http://127.0.0.1:{listener.getsockname()[1]}").read()
        thread.join()
        assert sent < 100


async def test_an_address_server_that_dribbles_its_handshake_is_left(monkeypatch: pytest.MonkeyPatch):
    """TLS is no reason to wait longer: each byte of its greeting comes in time, but not all of them."""
    monkeypatch.setattr(name_server_discovery, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = 0

        def dribble() -> None:
            nonlocal sent
            peer, _ = listener.accept()
            with peer, suppress(OSError):
                peer.sendall(bytes.fromhex("16 03 03 3f ff 02 00 3f fb"))  # the head of a long record of a handshake
                ticks = threading.Event()
                while sent < 100 and not ticks.wait(0.05):
                    peer.sendall(b"\0")
                    sent += 1

        thread = threading.Thread(target=dribble)
        thread.start()
        with pytest.raises(ConnectionLost, match="timed out"):
            await NameServerDiscovery(f"https://127.0.0.1:{listener.getsockname()[1]}").read()
        thread.join()
        assert sent < 100


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """Of a server at `localhost`, and what the server does with it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, file = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*make.split(), "-keyout", key, "-out", file], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, key)
    return file, context


async def test_an_address_server_may_be_a_secure_one(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
):
    """One that proves who it is; a stranger is not believed."""
    file, context = certificate
    with an_address_server(b"10.0.0.1:9876", context) as server:
        assert server.url.startswith("https://localhost:")
        with pytest.raises(ConnectionLost, match="certificate"):
            await NameServerDiscovery(server.url).read()
        assert await NameServerDiscovery(server.url, tls=ClientTls(ca=str(file))).read() == ["10.0.0.1:9876"]
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert await NameServerDiscovery(server.url).read() == ["10.0.0.1:9876"]
    assert server.requested_paths == ["/rocketmq/nsaddr?unit=a"] * 2


async def test_the_handshake_is_a_part_of_the_time(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
):
    """A server that takes most of it for the handshake, and as much again for the answer, is left."""
    file, context = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.setattr(name_server_discovery, "_TIMEOUT_S", 1)
    pause = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take_time() -> None:
            peer, _ = listener.accept()
            with peer, suppress(OSError):
                pause.wait(0.7)
                with context.wrap_socket(peer, server_side=True) as secure:
                    secure.recv(4096)
                    pause.wait(0.7)
                    secure.sendall(b"HTTP/1.0 200 OK\r\n\r\n10.0.0.1:9876")

        thread = threading.Thread(target=take_time)
        thread.start()
        with pytest.raises(ConnectionLost, match="timed out"):
            await NameServerDiscovery(f"https://localhost:{listener.getsockname()[1]}").read()
        thread.join()


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset by peer"), HTTPException("no status line")])
def test_a_link_that_was_cut_off_has_timed_out(monkeypatch: pytest.MonkeyPatch, error: Exception | None):
    """To whoever reads, it looks like an end, or like a peer that resets: it sends to a link that is no more."""
    monkeypatch.setattr(name_server_discovery, "_TIMEOUT_S", 0.01)
    ours, theirs = socket.socketpair()

    def read() -> None:
        assert ours.recv(1) == b""
        if error is not None:
            raise error

    with ours, theirs, pytest.raises(TimeoutError, match="timed out"), name_server_discovery._time_limit(ours):
        read()


def test_a_link_that_fails_in_time_has_not_timed_out():
    """What the matter is stands in the log."""
    ours, theirs = socket.socketpair()

    with ours, theirs, pytest.raises(ConnectionResetError), name_server_discovery._time_limit(ours):
        raise ConnectionResetError("reset by peer")


async def test_half_of_what_was_announced_is_no_list():
    """Half a port is a port, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def break_off() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 27\r\n\r\n10.0.0.1:9876;10.0.0.2:98")

        thread = threading.Thread(target=break_off)
        thread.start()
        with pytest.raises(ConnectionLost, match="2 bytes less than announced"):
            await NameServerDiscovery(f"http://127.0.0.1:{listener.getsockname()[1]}").read()
        thread.join()


@pytest.mark.parametrize("url", [f"http://{'a' * 64}/", "http://127.0.0.1:1/ä"])
async def test_a_url_that_nobody_can_be_asked_with_tells_nothing(url: str):
    """As one that nobody answers at."""
    with pytest.raises(ConnectionLost, match="returned no name servers"):
        await NameServerDiscovery(url).read()


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
async def test_what_can_be_no_name_is_left_to_the_dialler(host: str, caplog: pytest.LogCaptureFixture):
    """As a name that nobody knows: one bad entry must not end the others."""
    source = NameServerDiscovery(f"{host}:1;10.0.0.1:2")

    assert await source.read() == [f"{host}:1", "10.0.0.1:2"]
    assert f"the host name {host} could not be resolved" in caplog.text


@pytest.mark.parametrize("url", ["http://", "https:///path", "http://host:port/", "http://host:0/"])
def test_what_is_no_url_is_refused(url: str):
    """Before anybody is asked."""
    with pytest.raises(ConfigError, match="http://HOST:PORT/PATH"):
        NameServerDiscovery(url)


@pytest.mark.parametrize("refresh_s", [0, -1, float("nan")])
def test_no_time_between_questions_is_refused(refresh_s: float):
    """Whoever tells the list would be asked without a pause."""
    with pytest.raises(ConfigError, match=r"name_server_refresh_s is .*: expected seconds"):
        NameServerDiscovery("shop:1", refresh_s=refresh_s)


def test_the_time_between_questions_can_be_chosen():
    """For names and for address servers alike."""
    assert NameServerDiscovery("shop:1", refresh_s=5).refresh_s == 5
    assert NameServerDiscovery("http://shop/list", refresh_s=7).refresh_s == 7
