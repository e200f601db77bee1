"""Sets of IP addresses, as RocketMQ's two access controls write them.

    10.0.0.7   10.0.0.0/8   2001:db8::/32                  ACL 2.0: `parse_source`
    *   192.168.1-10.*   1.2.3.{4,5}   1.1.1.1,2.2.2.2     ACL 1.0: `parse_white_address`

Every such text is a few ranges of adjacent addresses. An IPv4 address inside an IPv6 address (`::ffff:10.0.0.7`) counts
as the IPv4 address.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

from holdfast.model.access.refusal import DirectoryRefused

TEXT_MAX: Final = 4096
"""Limit for the characters of one pattern."""

_BITS: Final = {4: 32, 6: 128}
_BRACES: Final = re.compile(r"([^{}]+)\{([^{}]+)\}")


class AddressRange(NamedTuple):
    """Adjacent addresses of one IP version, both ends included."""

    version: int
    low: int
    high: int


_EVERYWHERE: Final = tuple(AddressRange(version, 0, (1 << bits) - 1) for version, bits in _BITS.items())


class SourcePattern(NamedTuple):
    """A set of addresses, and the text from which it was made."""

    text: str
    ranges: tuple[AddressRange, ...]

    def matches(self, ip: str) -> bool:
        """Return whether *ip* is in the set. A text that is not an IP address is in no set."""
        address = _parse_address(ip)
        return address is not None and any(
            version == address.version and low <= address.low <= high for version, low, high in self.ranges
        )

    def __str__(self) -> str:
        return self.text


NO_ADDRESS: Final = SourcePattern("", ())
"""The pattern that matches no address."""


def parse_source(text: str) -> SourcePattern:
    """Return the pattern of an IP address or a CIDR block.

    Raises:
        DirectoryRefused: *text* is neither.
    """
    if not text.strip():
        raise DirectoryRefused("The source ip is empty.")
    try:
        network = ip_network(text.strip(), strict=False) if len(text) <= TEXT_MAX else None
    except ValueError:
        network = None
    if network is None:
        raise DirectoryRefused(
            f"The source ip is invalid. {text[:80]!r} is neither an IP address nor a CIDR block such as 10.0.0.0/8."
        )
    low, high = network.network_address, network.broadcast_address
    if isinstance(low, IPv6Address) and (inner := low.ipv4_mapped) and network.prefixlen >= 96:
        return SourcePattern(text.strip(), (AddressRange(4, int(inner), int(high) & 0xFFFFFFFF),))
    return SourcePattern(text.strip(), (AddressRange(network.version, int(low), int(high)),))


def parse_white_address(text: str) -> SourcePattern:
    """Return the pattern of a white address of ACL 1.0. A blank text matches no address.

    Raises:
        DirectoryRefused: *text* is no such pattern.
    """
    text = text.strip()
    if not text:
        return NO_ADDRESS
    if len(text) > TEXT_MAX:
        raise DirectoryRefused(f"a white address has {len(text)} characters, at most {TEXT_MAX} are allowed")
    if text in {"*", "*.*.*.*", "*:*:*:*:*:*:*:*"}:
        return SourcePattern(text, _EVERYWHERE)
    ranges = tuple(found for item in _split_list(text) if (found := _parse_white_item(item)) is not None)
    if not ranges or len(ranges) != len(_split_list(text)):
        raise DirectoryRefused(
            f"{text[:80]!r} is no white address: write an IP address, a list of them, or a pattern such as "
            "192.168.0.*, 192.168.1-10.* or 192.168.0.{1,2}"
        )
    return SourcePattern(text, ranges)


def _split_list(text: str) -> list[str]:
    """Return the items of a list: separated by commas, or in braces after their common start."""
    if found := _BRACES.fullmatch(text):
        return [found[1] + end.strip() for end in found[2].split(",")]
    return [item.strip() for item in text.split(",")]


def _parse_white_item(item: str) -> AddressRange | None:
    address = _parse_address(item)
    if address is not None:
        return address
    return _parse_parts(item, 6) if ":" in item else _parse_parts(item, 4)


def _parse_parts(item: str, version: int) -> AddressRange | None:
    """Return the range of a pattern whose parts are numbers, then one range or `*`, then only `*`.

    Missing parts at the end count as `*`. RocketMQ ignores everything after the first range, which would admit more
    addresses than `192.168.1-10.5` says; such a pattern is refused instead.
    """
    size, base, width = (4, 10, 8) if version == 4 else (8, 16, 16)
    parts = _expand(item.split(":"), size) if version == 6 else item.split(".")
    fixed = start = 0
    while fixed < len(parts) and (number := _parse_number(parts[fixed], base, width)) is not None:
        fixed += 1
        start = start << width | number
    if not 1 <= fixed < len(parts) <= size or any(part != "*" for part in parts[fixed + 1 :]):
        return None
    first, dash, last = parts[fixed].partition("-")
    low = 0 if parts[fixed] == "*" else _parse_number(first, base, width)
    high = (1 << width) - 1 if parts[fixed] == "*" else _parse_number(last, base, width) if dash else None
    if low is None or high is None or low > high:
        return None
    rest = (size - fixed - 1) * width
    return AddressRange(version, (start << width | low) << rest, ((start << width | high) + 1 << rest) - 1)


def _expand(parts: list[str], size: int) -> list[str]:
    """Return the parts of an IPv6 pattern with the zeros that `::` stands for."""
    if parts.count("") != 1 or len(parts) > size or "" in {parts[0], parts[-1]}:
        return parts
    at = parts.index("")
    return [*parts[:at], *["0"] * (size - len(parts) + 1), *parts[at + 1 :]]


def _parse_number(text: str, base: int, width: int) -> int | None:
    digits = r"[0-9]{1,3}" if base == 10 else r"[0-9A-Fa-f]{1,4}"
    number = int(text, base) if re.fullmatch(digits, text) else None
    return number if number is not None and number < 1 << width else None


@lru_cache(maxsize=4096)  # The same few peers send every request.
def _parse_address(text: str) -> AddressRange | None:
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return AddressRange(address.version, int(address), int(address))
