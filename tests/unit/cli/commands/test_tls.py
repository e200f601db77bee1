"""`holdfast tls init`: files that OpenSSL accepts, secrets that only their owner can read."""

import contextlib
import json
import ssl
import stat
from pathlib import Path

import pytest

from holdfast.cli.main import main


def init(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, str]:
    """Return what the command prints for programs."""
    assert main(["tls", "init", str(folder), "--json", *options]) == 0
    printed: dict[str, str] = json.loads(capsys.readouterr().out)
    return printed


def verify(ca: str, cert: str, host: str) -> None:
    """Check by a handshake in memory that a client who trusts *ca* takes the server for *host*.

    Raises:
        SSLCertVerificationError: it does not.
    """
    client_context = ssl.create_default_context(cafile=ca)
    client_context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(cert, str(Path(cert).with_name("key.pem")))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for end in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


def test_the_certificate_is_valid_for_this_machine_and_every_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made = init(tmp_path / "new" / "certificates", capsys, "--host", "Broker-1.example", "--host", "10.0.0.4")

    assert made["hosts"] == ["localhost", "127.0.0.1", "::1", "broker-1.example", "10.0.0.4"]
    for host in made["hosts"]:
        verify(made["ca"], made["cert"], host)
    with pytest.raises(ssl.SSLCertVerificationError):
        verify(made["ca"], made["cert"], "elsewhere.example")


def test_only_the_owner_can_read_the_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made = init(tmp_path / "certificates", capsys)

    assert {name: stat.S_IMODE(Path(made[name]).stat().st_mode) for name in ("ca", "ca_key", "cert", "key")} == {
        "ca": 0o644,
        "ca_key": 0o600,
        "cert": 0o644,
        "key": 0o600,
    }


def test_repeated_it_renews_the_certificate_of_the_same_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = init(tmp_path, capsys)
    contents = {name: Path(first[name]).read_bytes() for name in ("ca", "ca_key", "cert", "key")}
    second = init(tmp_path, capsys)

    assert {name for name, data in contents.items() if Path(second[name]).read_bytes() == data} == {"ca", "ca_key"}
    verify(second["ca"], second["cert"], "localhost")


@pytest.mark.parametrize("host", ["broker:9876", "", "a b", "-" * 64, "https://broker"])
def test_what_is_no_host_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str):
    assert main(["tls", "init", str(tmp_path / "none"), "--host", host]) == 2
    assert "is neither a host name nor an IP address" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("damage", [b"nonsense", None])
def test_a_damaged_authority_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes | None):
    """Clients trust it: an operator has to decide."""
    made = init(tmp_path, capsys)
    if damage is None:
        Path(made["ca_key"]).write_bytes(Path(made["key"]).read_bytes())
    else:
        Path(made["ca_key"]).write_bytes(damage)

    assert main(["tls", "init", str(tmp_path)]) == 2
    assert "ca-key.pem" in capsys.readouterr().err


def test_a_person_reads_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["tls", "init", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    assert f"--tls permissive --tls-cert {tmp_path}/cert.pem" in printed
    assert f"--tls-ca {tmp_path}/ca.pem" in printed
