"""Log lines that report the state of the store at a start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.machine.effects import Log
from holdfast.store.recovery.recovery import RecoveryResult

DAMAGES_LOGGED_MAX: Final = 20


def report_recovery(found: RecoveryResult, unused: Sequence[str]) -> Iterator[Log]:
    """Yield one line about the whole store, and one per damaged place, up to `DAMAGES_LOGGED_MAX`.

    *unused* are paths of log files that no longer belong to the log.
    """
    checked: dict[str, object] = {"records": found.records, "start": found.start, "end": found.log_end}
    if found.is_clean and not found.truncated_bytes:
        yield Log("info", "store opened", checked)
    elif found.is_clean:
        yield Log("warning", "store opened, its log had an unknown end", checked | {"cut": found.truncated_bytes})
    else:
        yield Log("warning", "store recovered after a crash", checked | {"cut": found.truncated_bytes})
    for path in unused[:DAMAGES_LOGGED_MAX]:
        yield Log("error", "log file not used: a later one is missing", {"file": path})
    for damage in found.damages[:DAMAGES_LOGGED_MAX]:
        yield Log("error", "log damaged", msgspec.structs.asdict(damage))
    unlogged = max(0, len(unused) - DAMAGES_LOGGED_MAX) + max(0, len(found.damages) - DAMAGES_LOGGED_MAX)
    if unlogged:
        yield Log("error", "log damaged in more places", {"count": unlogged})
