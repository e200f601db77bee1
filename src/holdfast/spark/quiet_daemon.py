"""Spark's parent of Python workers, as Spark starts it (`python -m`), whose workers leave quietly.

When a session ends Java closes its lines to workers that wait, and ends their parent a moment later. A worker that
hears of the first before the second complains, of a broken pipe, on the terminal of whoever ran the session.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

_work = daemon.worker


def work_or_leave(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - as Spark calls it
    """Run the next task that comes over *sock*; end this process if none will come any more."""
    try:
        is_over = not sock.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        is_over = True
    if is_over:
        os._exit(0)
    return int(_work(sock, authenticated))


if __name__ == "__main__":
    daemon.worker = work_or_leave
    daemon.manager()
