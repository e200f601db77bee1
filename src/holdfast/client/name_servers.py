"""Which name server to ask: one, for as long as it answers.

Clients spread over the list because each starts at a place of its own, and stay where they are: a name server sees few
connections come and go. Knows no sockets.
"""

from __future__ import annotations

from random import Random

from holdfast.model.errors import ConfigError


class NameServers:
    """A list of name servers and the one in use.

    Args:
        text: `host:port;host:port`; a comma is taken for a semicolon.
        random: Decides where to start.

    Raises:
        ConfigError: an entry is not `host:port`.
    """

    def __init__(self, text: str, random: Random) -> None:
        self.addresses = parse_addresses(text)
        self._at = random.randrange(len(self.addresses))

    @property
    def current(self) -> str:
        """The one to ask."""
        return self.addresses[self._at]

    def give_up(self, address: str) -> None:
        """Go to the next one, if *address* is still the one in use: many may fail on it at once."""
        if address == self.current:
            self._at = (self._at + 1) % len(self.addresses)


def parse_addresses(text: str) -> list[str]:
    """Return the addresses in *text*, each once, in order.

    Raises:
        ConfigError: there is none, or one is not `host:port`.
    """
    addresses = list(dict.fromkeys(item.strip() for item in text.replace(",", ";").split(";") if item.strip()))
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"name server address {address!r} is not host:port, such as 127.0.0.1:9876")
    if not addresses:
        raise ConfigError("there is no name server address; give host:port, such as 127.0.0.1:9876")
    return addresses
