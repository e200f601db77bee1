"""Where the list of name servers comes from.

    10.0.0.4:9876;10.0.0.5:9876      as it is                                       never changes by itself
    namesrv.shop:9876                DNS: every address that the name has now       asked again every 30 s
    http://addresses.shop/rocketmq   an address server: a body such as the above    asked again every 120 s

Of a name with addresses of both kinds the IPv4 ones are taken: a server is behind both, and would count twice.
What cannot be told now changes nothing: a name keeps the addresses that it had, and is left to the dialler if it never
had any. Knows no name server; whoever reads decides what a change means.
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
from holdfast.model.errors import ConfigError, ConnectionLost

DNS_REFRESH_S: Final = 30.0
HTTP_REFRESH_S: Final = 120.0
_TIMEOUT_S: Final = 3.0
# Room for thousands of addresses; whatever is longer is a page that somebody else serves there.
_BODY_MAX: Final = 64 * 1024

log = logging.getLogger("holdfast.client")

Resolve = Callable[[str], Awaitable[list[str]]]
"""Returns every IP address of a host name; raises OSError when it cannot be told."""


async def resolve_host(host: str) -> list[str]:
    """Ask the system, which asks DNS.

    Raises:
        OSError: it does not know.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    families: dict[int, list[str]] = {}
    for family, _, _, _, address in found:
        families.setdefault(family, []).append(str(address[0]))
    return families.get(socket.AF_INET) or families.get(socket.AF_INET6) or []


class AddressSource:
    """Tells the name servers.

    Args:
        text: `host:port;host:port`, or the URL of an address server.
        refresh_s: How often it is asked again; None for the usual time.
        resolve: Finds the addresses of host names.

    Raises:
        ConfigError: it is neither, or *refresh_s* is no time.
    """

    def __init__(self, text: str, *, refresh_s: float | None = None, resolve: Resolve | None = None) -> None:
        if refresh_s is not None and not refresh_s > 0:
            raise ConfigError(f"name_server_refresh_s is {refresh_s}: expected seconds, more than 0, or None")
        self._url = text.strip() if is_url(text) else None
        self._listed = [] if self._url is not None else parse_addresses(text)
        if self._url is not None:
            _check_url(self._url)
        self._refresh_s = refresh_s
        self._resolve = resolve or resolve_host
        self._known: dict[str, list[str]] = {}  # host name to the addresses that it had last

    @property
    def refresh_s(self) -> float | None:
        """When to ask again; None when there is nothing to ask."""
        if self._url is not None:
            return self._refresh_s or HTTP_REFRESH_S
        return self._refresh_s or DNS_REFRESH_S if any(map(_is_name, self._listed)) else None

    @property
    def listed(self) -> list[str]:
        """What is known without asking anybody."""
        return self._listed

    async def read(self) -> list[str]:
        """Return the addresses, at least one.

        Raises:
            ConnectionLost: the address server does not tell, or tells nonsense.
        """
        listed = self._listed
        if self._url is not None:
            try:
                listed = parse_addresses(await asyncio.to_thread(_fetch, self._url))
            except (OSError, HTTPException, ValueError, ConfigError) as error:
                text = f"the address server {self._url} does not tell the name servers: {_reason(error)}"
                raise ConnectionLost(text) from error
        found = await asyncio.gather(*map(self._expand, listed))
        return list(dict.fromkeys(address for addresses in found for address in addresses))

    async def _expand(self, address: str) -> list[str]:
        """Return the addresses that *address* stands for now."""
        if not _is_name(address):
            return [address]
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                hosts = await self._resolve(host)
        except (OSError, ValueError) as error:  # a TimeoutError is one; what can be no name is the other
            log.warning("the addresses of %s are not told: %s", host, _reason(error))
            hosts = []
        if hosts:
            self._known[host] = sorted(hosts)
        return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in self._known.get(host, ())] or [address]


def _reason(error: Exception) -> str:
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise ConfigError(f"{url!r} is no address server; write http://HOST:PORT/PATH")


def _is_name(address: str) -> bool:
    """Say whether somebody has to be asked for what *address* means. This machine's own name never changes."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _fetch(url: str) -> str:
    """Return what an address server says. Runs in a thread, and not for long.

    Raises:
        OSError, HTTPException, ValueError: it does not say anything that can be read.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    with closing(kind(host, parts.port)) as link:
        plain = socket.create_connection((host, link.port), timeout=_TIMEOUT_S)
        # A handshake takes the socket away from *plain*, and is a part of the time: a second handle can cut it off.
        with plain, plain.dup() as handle, _cut_off(handle):
            link.sock = _secure(plain, host) if kind is HTTPSConnection else plain
            link.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
            with link.getresponse() as answer:
                return _read_body(answer).decode("ascii").strip()


def _secure(plain: socket.socket, host: str) -> ssl.SSLSocket:
    """Return a TLS connection over *plain* to a server that proves to be *host*."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context.wrap_socket(plain, server_hostname=host)


@contextmanager
def _cut_off(link: socket.socket) -> Iterator[None]:
    """Let *link* end in time: its own time-out is one of each read, however little that brings.

    Raises:
        TimeoutError: it was cut off, whatever that looked like to the code that was reading or writing.
    """
    is_cut = False

    def cut() -> None:
        nonlocal is_cut
        is_cut = True
        with suppress(OSError):  # it has ended
            link.shutdown(socket.SHUT_RDWR)

    timer = Timer(_TIMEOUT_S, cut)
    timer.start()
    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        if is_cut:
            raise TimeoutError("timed out") from error
        raise
    finally:
        timer.cancel()
    if is_cut:
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
        # Half a list is one as well, but another: with half a port, or without a server that is there.
        raise HTTPException(f"{answer.length} bytes less than announced")
    return body
