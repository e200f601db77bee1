"""The check that a name server answers before the sink writes anything.

A wrong address fails within seconds, while a query that has begun waits for name servers that go away. Spark plans
every batch of a stream anew, in any idle planner process, and ends planners that were idle for a minute. So an empty
file records, for all planners of one driver, that the name servers have answered. They have the same parent process.

The folder of these files is in the temporary directory, where another user may have put something in its place. Then
each planner records its own contacts only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from holdfast.bulk.cluster_session import link_to
from holdfast.bulk.read_options import DEFAULT_GROUP
from holdfast.spark.sink_options import SinkOptions

_answered: Final[set[str]] = set()
"""The name servers that have answered this process."""


def require_contact(options: SinkOptions) -> None:
    """Return if a name server answers, or has answered a planner of this driver before.

    Raises:
        Unavailable: none ever did.
    """
    mark = _mark(options.namesrv)
    if options.namesrv in _answered or (mark is not None and mark.exists()):
        return
    # Not the link that sends: brokers would list the planner as a producer.
    link_to(options.namesrv, DEFAULT_GROUP, options.patience_s, options.unit).require_name_server()
    _answered.add(options.namesrv)
    if mark is not None:
        with contextlib.suppress(OSError):  # A full disk, for example.
            _forget_ended_drivers(mark.parent)
            mark.touch()


def _mark(namesrv: str) -> Path | None:
    """Return the file that records a contact; None if its folder is not ours or cannot be used."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or not os.access(folder, os.W_OK | os.X_OK):
        return None
    return folder / f"{os.getppid()}-{hashlib.sha256(namesrv.encode()).hexdigest()[:16]}"


def _forget_ended_drivers(folder: Path) -> None:
    for mark in folder.iterdir():
        try:
            os.kill(int(mark.name.partition("-")[0]), 0)
        except ProcessLookupError:
            mark.unlink(missing_ok=True)
        except (PermissionError, ValueError, OverflowError):
            pass  # Another user's process has the number now, or the file is not one of these.
