"""How many files and connections this process may have open.

Most systems start a process with 1024 descriptors, and permit it to have many more. A server that has used them up
accepts no connection. So it takes all that the system permits, and unproven connections get at most half of them.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from holdfast.machine.effects import Log
from holdfast.machine.security_options import SecurityOptions
from holdfast.runtime.logs import Emit

_WANTED: Final = 1 << 20

_Options = TypeVar("_Options", bound=SecurityOptions)


def raise_limit() -> None:
    """Let this process have as many descriptors as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # Some systems permit less than they say.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit_unproven(options: _Options, emit: Emit) -> _Options:
    """Return *options* whose limit for unproven connections leaves half of the descriptors to all others."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if not options.auth or most == resource.RLIM_INFINITY or options.unproven_connections_max <= most // 2:
        return options
    hint = f"this process may have {most} open files (ulimit -n): half of them are for unproven connections"
    emit(Log("warning", "unproven_connections_max lowered", {"to": most // 2, "reason": hint}))
    return msgspec.structs.replace(options, unproven_connections_max=max(1, most // 2))
