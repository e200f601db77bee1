"""What happens to objects in a forked child."""

import asyncio
import gc
import os
import socket
import traceback
from collections.abc import Callable

from holdfast.runtime.pool import ConnectionPool
from holdfast.runtime.process.background_loop import BackgroundLoop
from holdfast.runtime.process.fork import register_after_fork


class Owner:
    """Remembers how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def forked(self) -> None:
        self.calls += 1


def in_child(work: Callable[[], object]) -> int:
    """Fork, do *work* in the child, which ends then, and return its process id."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child must not go back into the test run
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_method_is_called_once_in_the_child_alone():
    """Registered twice or not; of an object that is gone, never."""
    owner, gone = Owner(), Owner()
    for each in (owner, owner, gone):
        register_after_fork(each.forked)
    del gone, each
    gc.collect()

    def look() -> None:
        assert owner.calls == 1

    assert status_of(in_child(look)) == 0
    assert owner.calls == 0


def test_a_child_has_a_background_loop_of_its_own():
    """The parent's thread is not there, and a thread that is not there may have held the lock."""
    loop = BackgroundLoop("test")
    loop.run(asyncio.sleep(0))
    loop._start_lock.acquire()
    pid = in_child(lambda: loop.run(asyncio.sleep(0)))
    loop._start_lock.release()

    assert status_of(pid) == 0
    loop.run(asyncio.sleep(0))


async def test_a_child_does_not_keep_connections_open():
    """When the parent closes one, its peer hears of it, though a child that inherited it lives on."""
    ready, go = os.pipe()

    def live_on() -> None:
        os.close(go)
        os.read(ready, 1)  # until the parent closes its end, whatever becomes of the test

    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool = ConnectionPool(on_request=lambda *_: None)
        await pool.connect(f"127.0.0.1:{listener.getsockname()[1]}")
        peer, _ = listener.accept()
        pid = in_child(live_on)
        await pool.close()
        with peer:
            peer.settimeout(30)
            assert peer.recv(1) == b""
        os.close(go)
        assert status_of(pid) == 0
    os.close(ready)
