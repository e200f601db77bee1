"""The console of `holdfast up`: where it listens, or why it is not started.

--console not given      127.0.0.1:9880, or a free port with --base-port 0; `up` continues without it
--console HOST:PORT      there, or `up` fails
--console off            not at all
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.admin.cluster_start import child_spec, find_free_ports, is_free
from holdfast.config import UpOptions
from holdfast.console.options import DEFAULT_LISTEN, check_console_address, find_missing_package
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError
from holdfast.runtime.supervisor import ChildSpec

OFF: Final = "off"
NAME: Final = "console"
_HOST: Final = "127.0.0.1"
_NO_LOGIN: Final = (
    "it has no login yet: everyone on this machine could do what its user may do. Start one with a user that may only"
    " read: `holdfast serve console --read-only --access-key USER --secret-file FILE`"
)


class ConsolePlan(msgspec.Struct, frozen=True):
    """The console of a local cluster.

    Attributes:
        listen: Where it listens; None if it is not started.
        reason: Why it is not started although the user did not switch it off.
        is_required: Whether `up` fails without it, because the user asked for it.
    """

    listen: str | None = None
    reason: str | None = None
    is_required: bool = False

    def spec(self, namesrv: str, tls: ClientTls | None, extra: Sequence[str]) -> ChildSpec:
        """Return how to start it."""
        assert self.listen is not None, "there is a console to start"
        words = ["console", "--namesrv", namesrv, "--listen", self.listen]
        if tls is not None:
            words += ["--tls-verify", tls.verify]
            for flag, value in (("--tls-ca", tls.ca), ("--tls-cert", tls.cert), ("--tls-key", tls.key)):
                words += [flag, value] if value is not None else []
        return child_spec(NAME, [*words, *extra])


def plan_console(options: UpOptions, *, has_auth: bool, reserved_ports: contextlib.ExitStack) -> ConsolePlan:
    """Return the console that `holdfast up` with *options* starts.

    Args:
        options: Of `up`.
        has_auth: Whether the cluster has access control.
        reserved_ports: Holds a port that is picked here until it is closed.

    Raises:
        ConfigError: the user asked for a console that cannot be started; the text says why, and what to do.
    """
    if options.console == OFF:
        return ConsolePlan()
    problem = _NO_LOGIN if has_auth else find_missing_package()
    if options.console is None:
        if problem is not None:
            return ConsolePlan(reason=problem)
        if options.base_port == 0:
            return ConsolePlan(_pick(_HOST, reserved_ports))
        host, port = check_console_address(DEFAULT_LISTEN)
        if not is_free(host, port):
            return ConsolePlan(reason=f"port {port} is taken: choose another with --console HOST:PORT")
        return ConsolePlan(DEFAULT_LISTEN)
    host, port = check_console_address(options.console)
    if problem is not None:
        raise ConfigError(f"no console can be started on {options.console}: {problem}")
    if port == 0:
        return ConsolePlan(_pick(host, reserved_ports), is_required=True)
    if not is_free(host, port):
        raise ConfigError(f"port {port} is taken: choose another with --console HOST:PORT, or none with --console off")
    return ConsolePlan(options.console, is_required=True)


def _pick(host: str, reserved_ports: contextlib.ExitStack) -> str:
    (port,) = find_free_ports(host, 1, reserved_ports)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
