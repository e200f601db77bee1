"""Which name server to ask: one, for as long as it answers and the list stays what it is.

    a, b, c ── chance ──> b ── b does not answer ──> c        sticky: nobody goes back to b because it is there again
                          └─ the list is a, b, d now ──> a, b or d: chance again

Clients spread over the list because each starts at a place of its own, and stay where they are: a name server sees few
connections come and go. When the list changes all choose anew, so that one that was added gets its share. Knows no
sockets, and not where lists come from.
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
        text: `host:port;host:port`; a comma is taken for a semicolon. Empty: none is known before `change`.
        random: Decides which one to use.

    Raises:
        ConfigError: an entry is not `host:port`.
    """

    def __init__(self, text: str, random: Random) -> None:
        self.addresses = parse_addresses(text) if text else []
        self._random = random
        self._at = random.randrange(len(self.addresses)) if self.addresses else 0

    @property
    def current(self) -> str:
        """The one to ask.

        Raises:
            ConnectionLost: none is known yet.
        """
        if not self.addresses:
            raise ConnectionLost("no name server is known yet: start the client first")
        return self.addresses[self._at]

    def give_up(self, address: str) -> bool:
        """Go to the next one, if *address* is still the one in use: many may fail on it at once. Say whether we did."""
        if address != self.current:
            return False
        self._at = (self._at + 1) % len(self.addresses)
        return address != self.current

    def change(self, addresses: Sequence[str]) -> bool:
        """Use another list, and choose anew by chance. Another order is no other list. Say whether it is one."""
        if set(addresses) == set(self.addresses):
            return False
        self.addresses = list(dict.fromkeys(addresses))
        self._at = self._random.randrange(len(self.addresses))
        return True


def is_url(text: str) -> bool:
    """Say whether *text* names an address server."""
    return text.strip().startswith(("http://", "https://"))


def parse_addresses(text: str) -> list[str]:
    """Return the addresses in *text*, each once, in order.

    Raises:
        ConfigError: there is none, or one is not `host:port`.
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
