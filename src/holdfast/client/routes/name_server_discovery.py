"""Resolves the list of name servers: fixed addresses, host names and address servers.

    10.0.0.4:9876;10.0.0.5:9876      used unchanged                                 never refreshed
    namesrv.shop:9876                DNS: every current address of the name         refreshed every 30 s
    http://addresses.shop/rocketmq   an address server: a body such as the above    refreshed every 120 s

If a name has IPv4 and IPv6 addresses, only the IPv4 ones are used: both lead to the same server, which would count
twice. A failed refresh changes nothing: a name keeps its last known addresses. A name that never had any stays a name,
for the connection to resolve. Connects to no name server; the caller handles changes of the list.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer
from typing import Final
from urllib.parse import urlsplit

from holdfast.client.routes.name_server_choice import is_url, parse_addresses
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError, ConnectionLost

DNS_REFRESH_S: Final = 30.0
HTTP_REFRESH_S: Final = 120.0
_TIMEOUT_S: Final = 3.0
# Enough for thousands of addresses; a longer body is some other page at that URL.
_BODY_MAX: Final = 64 * 1024

log = logging.getLogger("holdfast.client")

Resolve = Callable[[str], Awaitable[list[str]]]
"""Returns every IP address of a host name; raises OSError if it cannot be resolved."""


async def resolve_host(host: str) -> list[str]:
    """Return the addresses of *host* that the system's resolver finds: its IPv4 addresses, else its IPv6 ones.

    Raises:
        OSError: the name cannot be resolved.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    families: dict[int, list[str]] = {}
    for family, _, _, _, address in found:
        families.setdefault(family, []).append(str(address[0]))
    return families.get(socket.AF_INET) or families.get(socket.AF_INET6) or []


class NameServerDiscovery:
    """The source of the name server list.

    Args:
        text: `host:port;host:port`, or the URL of an address server.
        refresh_s: The refresh interval in seconds; None for the default.
        resolve: Resolves host names.
        tls: The TLS settings of the client. An https address server is always verified; `tls.ca` adds authorities.

    Attributes:
        certified_names: The host name of each address that was found by a lookup, as certificates contain it.

    Raises:
        ConfigError: *text* is neither, or *refresh_s* is not positive.
    """

    def __init__(
        self,
        text: str,
        *,
        refresh_s: float | None = None,
        resolve: Resolve | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        if refresh_s is not None and not refresh_s > 0:
            raise ConfigError(f"name_server_refresh_s is {refresh_s}: expected seconds, more than 0, or None")
        self._url = text.strip() if is_url(text) else None
        self._listed = [] if self._url is not None else parse_addresses(text)
        if self._url is not None:
            _check_url(self._url)
        self._refresh_s = refresh_s
        self._resolve = resolve or resolve_host
        self._ca = None if tls is None else tls.ca
        self._known: dict[str, list[str]] = {}  # host name to its last known addresses
        self.certified_names: dict[str, str] = {}

    @property
    def refresh_s(self) -> float | None:
        """The refresh interval; None if the list never changes."""
        if self._url is not None:
            return self._refresh_s or HTTP_REFRESH_S
        return self._refresh_s or DNS_REFRESH_S if any(map(_is_name, self._listed)) else None

    @property
    def listed(self) -> list[str]:
        """The addresses given as text, before any lookup."""
        return self._listed

    async def read(self) -> list[str]:
        """Return the current addresses, at least one.

        Raises:
            ConnectionLost: the address server does not answer, or its answer is not a list of addresses.
        """
        listed = self._listed
        if self._url is not None:
            try:
                listed = parse_addresses(await asyncio.to_thread(_fetch, self._url, self._ca))
            except (OSError, HTTPException, ValueError, ConfigError) as error:
                text = f"the address server {self._url} returned no name servers: {_reason(error)}"
                raise ConnectionLost(text) from error
        found = await asyncio.gather(*map(self._expand, listed))
        return list(dict.fromkeys(address for addresses in found for address in addresses))

    async def _expand(self, address: str) -> list[str]:
        """Return the addresses that *address* resolves to now."""
        if not _is_name(address):
            return [address]
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                hosts = await self._resolve(host)
        except (OSError, ValueError) as error:  # OSError includes TimeoutError; ValueError: not a valid host name
            log.warning("the host name %s could not be resolved: %s", host, _reason(error))
            hosts = []
        if hosts:
            self._known[host] = sorted(hosts)
        found = [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in self._known.get(host, ())]
        self.certified_names |= dict.fromkeys(found, host)
        return found or [address]


def _reason(error: Exception) -> str:
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise ConfigError(f"{url!r} is not the URL of an address server; write http://HOST:PORT/PATH")


def _is_name(address: str) -> bool:
    """Return whether *address* has a host name to resolve. `localhost` never changes and needs no lookup."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _fetch(url: str, ca: str | None) -> str:
    """Return the body that an address server returns. Runs in a thread, for a limited time.

    Args:
        url: Its URL.
        ca: A file with further authorities that may sign its certificate.

    Raises:
        OSError, HTTPException, ValueError: there is no answer, or it is not valid.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    with closing(kind(host, parts.port)) as connection:
        plain = socket.create_connection((host, connection.port), timeout=_TIMEOUT_S)
        # The TLS handshake detaches the socket from *plain* and counts towards the time limit: only a second handle can
        # shut it down.
        with plain, plain.dup() as handle, _time_limit(handle):
            connection.sock = _secure(plain, host, ca) if kind is HTTPSConnection else plain
            connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
            with connection.getresponse() as answer:
                return _read_body(answer).decode("ascii").strip()


def _secure(plain: socket.socket, host: str, ca: str | None) -> ssl.SSLSocket:
    """Return a TLS connection over *plain* to a server whose certificate is valid for *host*."""
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(ca)
    context.set_alpn_protocols(["http/1.1"])
    return context.wrap_socket(plain, server_hostname=host)


@contextmanager
def _time_limit(sock: socket.socket) -> Iterator[None]:
    """Shut *sock* down at the time limit: its own timeout starts anew with every read, however small.

    Raises:
        TimeoutError: the socket was shut down, whatever error the reading or writing code saw.
    """
    is_expired = False

    def expire() -> None:
        nonlocal is_expired
        is_expired = True
        with suppress(OSError):  # the socket was closed already
            sock.shutdown(socket.SHUT_RDWR)

    timer = Timer(_TIMEOUT_S, expire)
    timer.start()
    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        if is_expired:
            raise TimeoutError("timed out") from error
        raise
    finally:
        timer.cancel()
    if is_expired:
        raise TimeoutError("timed out")


def _read_body(answer: HTTPResponse) -> bytes:
    if answer.status != HTTPStatus.OK:
        raise HTTPException(f"status {answer.status}")
    body = b""
    while piece := answer.read1(_BODY_MAX):
        body += piece
        if len(body) > _BODY_MAX:
            raise HTTPException(f"more than {_BODY_MAX} bytes")
    if answer.length:
        # A truncated list may still parse, but wrongly: with half a port, or without its last servers.
        raise HTTPException(f"{answer.length} bytes less than announced")
    return body
