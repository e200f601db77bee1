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

from holdfast.bulk.cluster_session import open_session
from holdfast.bulk.read_options import DEFAULT_GROUP
from holdfast.spark.sink_options import SinkOptions

_answered_servers: Final[set[str]] = set()
"""The name servers that have answered this process, with the settings of TLS."""


def require_contact(options: SinkOptions) -> None:
    """Return if a name server answers, or has answered a planner of this driver before.

    Raises:
        Unavailable: none ever did.
    """
    servers = options.namesrv if options.tls is None else f"{options.namesrv} {options.tls}"
    contact_file = _contact_file(servers)
    if servers in _answered_servers or (contact_file is not None and contact_file.exists()):
        return
    # Not the session that sends: brokers would list the planner as a producer.
    session = open_session(
        options.namesrv, DEFAULT_GROUP, options.patience_s, options.unit, options.tls, options.credentials
    )
    session.connection.require_name_server()
    _answered_servers.add(servers)
    if contact_file is not None:
        with contextlib.suppress(OSError):  # A full disk, for example.
            _remove_stale_files(contact_file.parent)
            contact_file.touch()


def _contact_file(servers: str) -> Path | None:
    """Return the file that records a contact; None if its folder is not ours or cannot be used."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or not os.access(folder, os.W_OK | os.X_OK):
        return None
    return folder / f"{os.getppid()}-{hashlib.sha256(servers.encode()).hexdigest()[:16]}"


def _remove_stale_files(folder: Path) -> None:
    for contact_file in folder.iterdir():
        try:
            os.kill(int(contact_file.name.partition("-")[0]), 0)
        except ProcessLookupError:
            contact_file.unlink(missing_ok=True)
        except (PermissionError, ValueError, OverflowError):
            pass  # Another user's process has the number now, or the file is not one of these.
