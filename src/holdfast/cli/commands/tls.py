"""`holdfast tls init`: an authority and a certificate for development and tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.admin.tables import print_json
from holdfast.model.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Make certificates for TLS.")

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_FILES: Final = ("ca.pem", "ca-key.pem", "cert.pem", "key.pem")
_DAYS: Final = 825
_HOST: Final = re.compile(r"(\*\.)?[a-zA-Z0-9_-]{1,63}(\.[a-zA-Z0-9_-]{1,63})*")
_HOST_LENGTH_MAX: Final = 253


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="tls")


@app.callback()
def _keep_verb() -> None:
    """Make Typer keep `init` as a verb although it is the only one."""


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the files.")],
    *,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A host name or IP address of the servers; can be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")] = _DAYS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """Make an authority, and a certificate that it signs, for development.

    The certificate names localhost, its addresses and every --host. If DIR has an authority already, it signs a new
    certificate: running servers use it within seconds. In production, use the certificates of your organisation.

    Example: holdfast tls init certificates --host broker-1.internal --host 10.0.0.4
    """
    del debug
    from holdfast.cli.certificates import Authority  # noqa: PLC0415 - it loads the library for certificates

    names = list(dict.fromkeys([*LOCAL_HOSTS, *map(_check_host, hosts or ())]))
    ca, ca_key, cert, key = (folder / name for name in _FILES)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    valid_for = dt.timedelta(days=days)
    if ca_key.exists() or ca.exists():
        authority = Authority.load(ca.read_bytes(), ca_key.read_bytes())
    else:
        authority = Authority.create(valid_for)
        _write(ca_key, authority.encode_key(), 0o600)
        _write(ca, authority.encode_certificate(), 0o644)
    signed = authority.sign(names, valid_for)
    _write(key, signed.key, 0o600)
    _write(cert, signed.certificate, 0o644)
    if as_json:
        print_json({"ca": str(ca), "ca_key": str(ca_key), "cert": str(cert), "key": str(key), "hosts": names})
        return
    sys.stdout.write(
        f"""The certificate in {cert} is valid for {", ".join(names)}.
Start servers with:    --tls permissive --tls-cert {cert} --tls-key {key} --tls-ca {ca}
Start clients with:    --tls-ca {ca}
Keep {ca_key} secret: its owner can sign certificates that your clients trust.
"""
    )


def _check_host(host: str) -> str:
    """Return *host* in its usual spelling.

    Raises:
        ConfigError: it is neither a host name nor an IP address.
    """
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if len(host) > _HOST_LENGTH_MAX or not _HOST.fullmatch(host):
        raise ConfigError(f"--host {host!r} is neither a host name nor an IP address, without a port") from None
    return host.lower()


def _write(file: Path, data: bytes, mode: int) -> None:
    """Replace *file* at once: a server may read it at any moment."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
    temporary.replace(file)
