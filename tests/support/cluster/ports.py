"""Free ports on loopback, in a block that belongs to this test process alone."""

import contextlib
import functools
import itertools
import socket
import time
from collections.abc import Iterator

from tests.support.child import Child, ChildFailed

# Below the range from which the kernel takes ports for outgoing connections, and apart from what `holdfast up` picks.
PORT_FIRST, PORT_LAST, PORT_STEP = 20000, 26900, 10
_BLOCK_SIZE = 300
READY_TIMEOUT_S = 60.0
_PAUSE_S = 0.02


@functools.cache
def _claim_block() -> tuple[socket.socket, Iterator[int]]:
    """Take a block of ports for this process alone, and return its bases in a circle.

    A broker that is down for a moment wants its port back: no other run may find it free meanwhile. The process that
    holds the first port of a block has the block, until it ends.
    """
    for first in range(PORT_FIRST, PORT_LAST, _BLOCK_SIZE):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
            continue
        return claim, itertools.cycle(range(first + PORT_STEP, first + _BLOCK_SIZE, PORT_STEP))
    raise ChildFailed(f"no free block of ports between {PORT_FIRST} and {PORT_LAST}")


def free_port() -> int:
    """Return a port that is free on loopback together with the two below and the one above.

    A broker takes port - 2 and port + 1 besides its port.
    """
    _, bases = _claim_block()
    for _ in range(0, _BLOCK_SIZE, PORT_STEP):
        port = next(bases) + 4
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in range(port - 2, port + 2):
                probe = stack.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", each))
            return port
    raise ChildFailed(f"no free ports between {PORT_FIRST} and {PORT_LAST}")


def port_of(address: str) -> int:
    """Return the port of HOST:PORT."""
    return int(address.rpartition(":")[2])


def wait_until_listening(child: Child, port: int, *, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Return once *child* accepts connections on *port*."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=timeout_s).close()
        except OSError:
            if not child.is_running:
                raise ChildFailed(f"{child.name} ended before it listened on {port}:\n{child.last_lines()}") from None
            if time.monotonic() > deadline:
                raise ChildFailed(f"{child.name} does not listen on {port}:\n{child.last_lines()}") from None
            time.sleep(_PAUSE_S)  # a refused connection gives nothing else to wait on
        else:
            return
