"""Spark's parent process of Python workers (started by Spark with `python -m`), with workers that exit quietly.

When a session ends, Java closes its connections to idle workers, and kills their parent a moment later. A worker that
notices the closed connection first would print a broken-pipe error on the user's terminal: while it waits for its next
task, or while it writes the end of an answer that Java no longer reads.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

_run_worker = daemon.worker


def run_worker_or_exit(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - as Spark calls it
    """Run the next task from *sock*; exit the process if Java has closed the connection."""
    try:
        is_closed = not sock.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        is_closed = True
    if not is_closed:
        try:
            return int(_run_worker(sock, authenticated))
        except ConnectionError:  # Failures of a task do not arrive here: the worker reports them to Java.
            pass
    os._exit(0)


if __name__ == "__main__":
    daemon.worker = run_worker_or_exit
    daemon.manager()
