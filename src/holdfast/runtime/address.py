"""Addresses as people write them: `host:port`, IPv6 in brackets."""

from __future__ import annotations

import ipaddress

from holdfast.model.errors import ConfigError


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of *text*.

    Raises:
        ConfigError: it is not `host:port`.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address; write host:port, for example 127.0.0.1:9876")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach *host*."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
