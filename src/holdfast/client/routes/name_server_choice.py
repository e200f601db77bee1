"""Parses the list of name servers and chooses the one to ask.

    a, b, c ── random ──> b ── b does not answer ──> c      sticky: no client returns to b just because b is back
                          └─ the list is a, b, d now ──> a, b or d: random again

The choice is sticky: a client stays with its name server while that answers and the list does not change. Random starts
spread clients over the list, and a name server sees few connections come and go. When the list changes, all clients
choose again, so that an added server gets its share. Performs no I/O; `name_server_discovery` supplies the lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from holdfast.model.errors import ConfigError, ConnectionLost

_PORT_DIGITS_MAX: Final = 5


class NameServers:
    """A list of name servers and the one in use.

    Args:
        text: `host:port;host:port`; commas work, too. Empty: no name server is known before `change`.
        random: Chooses the one to use.

    Raises:
        ConfigError: an entry is not `host:port`.
    """

    def __init__(self, text: str, random: Random) -> None:
        self.addresses = parse_addresses(text) if text else []
        self._random = random
        self._index = random.randrange(len(self.addresses)) if self.addresses else 0

    @property
    def current(self) -> str:
        """The name server in use.

        Raises:
            ConnectionLost: no name server is known yet.
        """
        if not self.addresses:
            raise ConnectionLost("no name server is known yet: start the client first")
        return self.addresses[self._index]

    def fail_over(self, address: str) -> bool:
        """Switch to the next one if *address* is still in use: many requests may fail on it at once. Return whether."""
        if address != self.current:
            return False
        self._index = (self._index + 1) % len(self.addresses)
        return address != self.current

    def change(self, addresses: Sequence[str]) -> bool:
        """Use a new list, choose randomly, and return whether it differs. A change of order does not count."""
        if set(addresses) == set(self.addresses):
            return False
        self.addresses = list(dict.fromkeys(addresses))
        self._index = self._random.randrange(len(self.addresses))
        return True


def is_url(text: str) -> bool:
    """Return whether *text* is the URL of an address server."""
    return text.strip().startswith(("http://", "https://"))


def parse_addresses(text: str) -> list[str]:
    """Return the addresses in *text*, each once, in order.

    Raises:
        ConfigError: there is no address, or one is not `host:port`.
    """
    addresses = list(dict.fromkeys(item.strip() for item in text.replace(",", ";").split(";") if item.strip()))
    for address in addresses:
        host, _, port = address.rpartition(":")
        is_port = port.isdecimal() and len(port) <= _PORT_DIGITS_MAX and 0 < int(port) < 65536
        if host.split() != [host] or not is_port:
            raise ConfigError(f"name server address {address!r} is not host:port, such as 127.0.0.1:9876")
    if not addresses:
        raise ConfigError("there is no name server address; give host:port, such as 127.0.0.1:9876")
    return addresses
