"""Contexts from certificate files: what they accept, what they refuse, and how they follow their files."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from tests.support.certificates import Certificates

from holdfast.machine.effects import Log
from holdfast.machine.security_options import SecurityOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError
from holdfast.runtime.tls import RoleTls, client_context, describe_tls_error, server_context


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def options(files: Certificates, **changes: Any) -> SecurityOptions:
    return SecurityOptions(**{"tls": "permissive", **files.options, **changes})


def ignore(_: Log) -> None:
    """Drop a log line."""


@contextlib.contextmanager
def serving(context: ssl.SSLContext) -> Iterator[int]:
    """Provide the port of a server that says hello to everybody whose handshake it accepts."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = listening.accept()
                    with contextlib.suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as secured:
                        secured.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def greet(port: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> bytes:
    """Return what the server says to a client that takes it for *host*."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.recv(100)


def context_of(tls: ClientTls) -> ssl.SSLContext:
    return client_context(tls, ignore).current


def served_serial(port: int, files: Certificates) -> object:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context_of(files.client()).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return (secured.getpeercert() or {})["serialNumber"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_client_verifies_authority_and_host(files: Certificates, tmp_path: Path, host: str):
    """An IP address must be in the certificate just as a name."""
    with serving(server_context(options(files), ignore).current) as port:
        assert greet(port, context_of(files.client()), host) == b"hello"
        with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|local issuer|signature"):
            greet(port, context_of(Certificates(tmp_path / "other").client()), host)


def test_how_much_is_verified_can_be_chosen(files: Certificates, tmp_path: Path):
    """`chain` allows any host, `none` any certificate."""
    strange = Certificates(tmp_path / "other")
    with serving(server_context(options(files), ignore).current) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for '10\.0\.0\.9'"):
            greet(port, context_of(files.client()), "10.0.0.9")
        assert greet(port, context_of(files.client(verify="chain")), "10.0.0.9") == b"hello"
        with pytest.raises(ssl.SSLCertVerificationError):
            greet(port, context_of(strange.client(verify="chain")), "10.0.0.9")
        assert greet(port, context_of(strange.client(verify="none")), "10.0.0.9") == b"hello"
        with pytest.raises(ssl.SSLCertVerificationError):
            greet(port, context_of(ClientTls()))  # The system does not trust this authority.


@pytest.mark.parametrize(("mode", "accepts_none"), [("none", True), ("optional", True), ("required", False)])
def test_client_certificates_are_verified_if_they_are_asked_for(
    files: Certificates, tmp_path: Path, mode: str, *, accepts_none: bool
):
    """One of a strange authority is never accepted where they are."""
    strange = Certificates(tmp_path / "other")
    with serving(server_context(options(files, tls_client_auth=mode), ignore).current) as port:
        known = context_of(files.client(cert=files.cert, key=files.key))
        assert greet(port, known) == b"hello"
        for context, is_accepted in (
            (context_of(files.client()), accepts_none),
            (context_of(files.client(cert=strange.cert, key=strange.key)), mode == "none"),
        ):
            if is_accepted:
                assert greet(port, context) == b"hello"
            else:
                with pytest.raises((ssl.SSLError, ConnectionResetError)):
                    greet(port, context)


def test_versions_before_tls_1_2_are_refused(files: Certificates):
    """They are broken."""
    old = context_of(files.client())
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        serving(server_context(options(files), ignore).current) as port,
        pytest.raises(ssl.SSLError, match=r"(?i)version"),
    ):
        greet(port, old)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tls_cert": None}, "needs tls_cert and tls_key.*holdfast tls init"),
        ({"tls_key": None}, "needs tls_cert and tls_key"),
        ({"tls_cert": "/nowhere/cert.pem"}, "tls_cert: cannot read /nowhere/cert.pem: No such file"),
        ({"tls_client_auth": "required", "tls_ca": None}, "tls_client_auth is required and needs tls_ca"),
        ({"tls_client_auth": "required", "tls_ca": __file__}, "tls_ca: no certificates in PEM form"),
    ],
)
def test_options_that_cannot_work_are_refused(files: Certificates, changes: dict[str, Any], text: str):
    """The text says which option, and what is wrong."""
    with pytest.raises(ConfigError, match=text):
        RoleTls(options(files, **changes), ignore)


def test_a_key_must_be_safe_and_usable(files: Certificates):
    """Nobody else may read it, nobody is asked for a password, and it must be the certificate's."""
    key = Path(files.key)
    key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"other users can read or change .*0644.*chmod 600"):
        server_context(options(files), ignore)
    key.chmod(0o640)
    server_context(options(files), ignore)

    private = serialization.load_pem_private_key(key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"password")
    encrypted = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    key.write_bytes(encrypted)
    with pytest.raises(ConfigError, match="is encrypted"):
        server_context(options(files), ignore)

    files.renew(parts=("key",))
    with pytest.raises(ConfigError, match="is not the key of the certificate"):
        server_context(options(files), ignore)

    key.write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="no certificate and key in PEM form"):
        server_context(options(files), ignore)


def test_new_files_are_used_once_they_match(files: Certificates):
    """Certificate and key are replaced one after the other; a change that stays half is reported once."""
    lines: list[Log] = []
    watched = server_context(options(files), lines.append)
    with serving_watched(watched) as port:
        before = served_serial(port, files)
        files.renew(parts=("key",))
        watched.refresh()
        assert lines == []  # The certificate may follow.
        watched.refresh()
        watched.refresh()
        assert [line.event for line in lines] == ["changed TLS files refused, the old ones stay in use"]
        assert "is not the key" in str(lines[0].fields["reason"])
        assert served_serial(port, files) == before

        files.renew()
        watched.refresh()
        watched.refresh()
        assert [line.event for line in lines[1:]] == ["changed TLS files in use"]
        assert served_serial(port, files) != before


@contextlib.contextmanager
def serving_watched(watched: Any) -> Iterator[int]:
    """Provide the port of a server that uses the current context for each connection."""

    class Current:
        def wrap_socket(self, plain: socket.socket, *, server_side: bool) -> ssl.SSLSocket:
            return watched.current.wrap_socket(plain, server_side=server_side)  # type: ignore[no-any-return]

    with serving(Current()) as port:  # type: ignore[arg-type]
        yield port


@pytest.mark.parametrize("part", ["cert", "key"])
def test_a_missing_file_leaves_the_old_context(files: Certificates, part: str):
    """For the moment in which it is replaced, or for ever."""
    lines: list[Log] = []
    watched = server_context(options(files), lines.append)
    old = watched.current
    Path(getattr(files, part)).unlink()

    assert watched.refresh() is old
    assert watched.refresh() is old
    assert "No such file" in str(lines[0].fields["reason"])


def test_unchanged_files_are_not_read_again(files: Certificates):
    """A context is made for a change, not for a connection."""
    watched = server_context(options(files), ignore)

    assert watched.refresh() is watched.current


def test_a_role_dials_with_tls_if_it_enforces_it_or_is_told_to(files: Certificates):
    """Its own certificate is the one that it presents."""
    assert RoleTls(options(files), ignore).outgoing is None
    assert RoleTls(options(files, tls="enforcing"), ignore).outgoing is not None
    assert RoleTls(options(files, tls="enforcing", tls_outgoing=False), ignore).outgoing is None
    assert RoleTls(SecurityOptions(tls_outgoing=True, tls_ca=files.ca), ignore).outgoing is not None
    assert options(files, tls="enforcing").outgoing_tls == files.client(cert=files.cert, key=files.key)
    assert RoleTls(SecurityOptions(), ignore).certificate is None


def test_errors_say_what_to_do():
    """Instead of the name of a function of OpenSSL."""
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "certificate has expired"

    assert "certificate has expired. Name the authority" in describe_tls_error(error)
    assert (
        describe_tls_error(ssl.SSLError(1, "wrong version number")) == "the TLS handshake failed: wrong version number"
    )
    assert describe_tls_error(ConnectionResetError()) == "the peer closed the connection"
    assert describe_tls_error(OSError(111, "Connection refused")) == "[Errno 111] Connection refused"
