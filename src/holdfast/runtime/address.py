"""Addresses as people write them: `host:port`, with IPv6 hosts in brackets."""

from __future__ import annotations

import errno
import ipaddress

from holdfast.model.errors import ConfigError, PortTaken


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of *text*.

    Raises:
        ConfigError: *text* is not `host:port`.
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


def to_listen_error(host: str, port: int, error: OSError, *, option: str) -> ConfigError | PortTaken:
    """Return the error for the operator after listening on *host*:*port*, which *option* sets, failed."""
    if error.errno == errno.EADDRINUSE:
        return PortTaken(
            f"port {port} of {host} is taken: stop the process there, or choose another with --{option} HOST:PORT"
        )
    return ConfigError(f"cannot listen on {host}:{port} (--{option}): {error.strerror or error}")
