"""Host and port as records and message ids store them.

    | IPv4 4 bytes | port i32 |   8 bytes        | IPv6 16 bytes | port i32 |   20 bytes

Accepts numeric addresses only: callers resolve names first.
"""

from __future__ import annotations

import ipaddress

from holdfast.model.errors import LocalProtocolError

HOST_SIZE_V4 = 8
HOST_SIZE_V6 = 20


def pack_host(address: str) -> bytes:
    """Return `1.2.3.4:5` or `[::1]:5` as bytes.

    Raises:
        LocalProtocolError: *address* is not a numeric address with a port.
    """
    text, _, port = address.rpartition(":")
    try:
        return ipaddress.ip_address(text.strip("[]")).packed + int(port).to_bytes(4, "big")
    except (ValueError, OverflowError) as error:
        raise LocalProtocolError(f"{address!r} is not a numeric host:port") from error


def format_host(host: bytes) -> str:
    """Return *host* as `address:port`, an IPv6 address in brackets."""
    address = ipaddress.ip_address(host[:-4])
    port = int.from_bytes(host[-4:], "big")
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
