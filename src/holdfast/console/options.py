"""Where the console listens, and which cluster it shows."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import msgspec

from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError
from holdfast.runtime.address import is_loopback, split_address
from holdfast.runtime.process.extras import describe_missing

DEFAULT_LISTEN: Final = "127.0.0.1:9880"
PACKAGES: Final = ("starlette", "uvicorn")


class ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a console.

    Attributes:
        namesrv: Addresses of name servers, `;` between them, or the URL of an address server.
        listen: Where browsers reach it; port 0 picks a free one.
        is_read_only: Whether it refuses every change.
        timeout_s: How long one answer of a server may take.
        tls: How to use TLS to the cluster; None for plain connections.
        credentials: The user that it acts as; None for no access control.
    """

    namesrv: str
    listen: str = DEFAULT_LISTEN
    is_read_only: bool = False
    timeout_s: float = 5.0
    tls: ClientTls | None = None
    credentials: CredentialsOptions | None = None


def find_missing_package() -> str | None:
    """Return how to install the packages that a console needs; None if they are there."""
    for package in PACKAGES:
        if find_spec(package) is None:
            return describe_missing("the console", ImportError(name=package), "console")
    return None


def check_console_address(listen: str) -> tuple[str, int]:
    """Return the host and the port of an address on which a console may listen.

    The console has no login yet: it acts as one user for everyone who reaches its port.

    Raises:
        ConfigError: other machines could reach it, or it is no address.
    """
    host, port = split_address(listen)
    if not is_loopback(host):
        raise ConfigError(
            f"the console cannot listen on {host}, beyond loopback: it has no login, so everyone who reaches it could"
            " do what its user may do. Listen on 127.0.0.1, and reach it from elsewhere through `ssh -L`"
        )
    return host, port
