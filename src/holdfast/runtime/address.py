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


def join_address(host: str, port: int) -> str:
    """Return the text that `split_address` reads as *host* and *port*."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach *host*."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_listening(host: str, *, has_auth: bool, has_tls: bool, is_insecure: bool) -> str | None:
    """Return a warning about who can reach a role that listens on *host*, or None if there is none to give.

    Raises:
        ConfigError: everybody on the network could do everything, and the operator has not asked for that.
    """
    if is_loopback(host):
        return None
    if not has_auth and not is_insecure:
        raise ConfigError(
            f"refused to listen on {host}, beyond loopback, without access control: anyone who reaches this port could"
            " read and change everything. Switch access control on (--auth --cluster-secret FILE), listen on 127.0.0.1,"
            " or give --insecure if nothing but trusted machines can reach this network"
        )
    if not has_auth:
        return "listening beyond loopback without access control: anyone who reaches this port can read and write"
    if not has_tls:
        return (
            "listening beyond loopback without TLS: anyone who sees the traffic can read it, and replay signed requests"
        )
    return None


def check_metrics_listening(address: str, *, is_guarded: bool, is_insecure: bool) -> None:
    """Refuse to show the names of topics and groups to a whole network that the operator has not called safe.

    Args:
        address: Where `/metrics` is.
        is_guarded: Whether scrapers need a user or a token.
        is_insecure: Whether the operator allows what nothing guards.

    Raises:
        ConfigError: everybody on the network could read the metrics.
    """
    host, _ = split_address(address)
    if not (is_guarded or is_insecure or is_loopback(host)):
        raise ConfigError(
            f"refused to serve /metrics on {host}, beyond loopback, to everybody: give --metrics-token FILE, switch"
            " access control on (--auth --cluster-secret FILE), listen on 127.0.0.1, or give --insecure if nothing but"
            " trusted machines can reach this network"
        )


def to_listen_error(host: str, port: int, error: OSError, *, option: str) -> ConfigError | PortTaken:
    """Return the error for the operator after listening on *host*:*port*, which *option* sets, failed."""
    if error.errno == errno.EADDRINUSE:
        return PortTaken(
            f"port {port} of {host} is taken: stop the process there, or choose another with --{option} HOST:PORT"
        )
    return ConfigError(f"cannot listen on {host}:{port} (--{option}): {error.strerror or error}")
