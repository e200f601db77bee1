"""Children that are started, watched, restarted and stopped."""

import asyncio
import os
import sys

import pytest

from holdfast.machine.effects import Log
from holdfast.runtime.supervisor import ChildFailed, ChildSpec, Supervisor, describe_exit

# Says that it is ready, then waits for the end of its standard input or for a signal.
SERVES = 'import sys; print(\'{"address": "here"}\', flush=True); sys.stdin.read()'
# Ignores SIGTERM in no way, but tells when it was asked to end in order.
ORDERLY = (
    "import signal, sys\n"
    "def stop(*_): print('bye', file=sys.stderr, flush=True); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
    "print('{}', flush=True)\n"
    "signal.pause()\n"
)


def a_child(name: str, script: str) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-c", script))


class Journal:
    """Collects what is logged and wakes whoever waits for a line."""

    def __init__(self) -> None:
        self.lines: list[Log] = []
        self._heard = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, line: Log) -> None:
        """Take one line."""
        self.lines.append(line)
        task = asyncio.get_running_loop().create_task(self._wake())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake(self) -> None:
        async with self._heard:
            self._heard.notify_all()

    async def wait_for(self, event: str, count: int = 1) -> list[Log]:
        """Return the lines of *event* once there are *count* of them."""
        async with self._heard:
            await self._heard.wait_for(lambda: len(self.of(event)) >= count)
        return self.of(event)

    def of(self, event: str) -> list[Log]:
        """Return the lines of *event* so far."""
        return [line for line in self.lines if line.event == event]


async def test_a_started_child_has_said_that_it_is_ready():
    """`start` returns what the ready line says, and the child runs."""
    supervisor = Supervisor(Journal())
    try:
        announced = await supervisor.start([a_child("one", SERVES), a_child("two", SERVES)])

        assert announced == [{"address": "here"}, {"address": "here"}]
        assert supervisor.get_child("one").pid is not None
    finally:
        await supervisor.stop()


async def test_a_killed_child_is_started_again_and_it_is_said():
    """A crash is followed by a restart of the same command, with a line that names the reason."""
    journal = Journal()
    supervisor = Supervisor(journal)
    try:
        await supervisor.start([a_child("one", SERVES)])
        child = supervisor.get_child("one")
        first = child.pid
        assert first is not None

        os.kill(first, 9)
        await journal.wait_for("ready", 2)

        (died,) = journal.of("died, restarting")
        assert died.fields["reason"] == "killed by SIGKILL"
        assert child.restarts == 1
        assert child.pid not in {None, first}
    finally:
        await supervisor.stop()


async def test_a_child_that_cannot_restart_is_tried_again_more_and_more_slowly(tmp_path: object):
    """The second wait is longer than the first: a role that cannot start does not eat the machine."""
    marker = f"{tmp_path}/started"
    # Serves once; every later start fails.
    script = (
        f"import os, sys\nif os.path.exists({marker!r}): sys.exit(3)\nopen({marker!r}, 'w').close()\n"
        "print('{}', flush=True)\nsys.exit(4)\n"
    )

    journal = Journal()
    supervisor = Supervisor(journal)
    await supervisor.start([a_child("one", script)])
    lines = await journal.wait_for("died, restarting", 3)
    await supervisor.stop()

    assert [line.fields["reason"] for line in lines[:3]] == ["exit status 4", "exit status 3", "exit status 3"]
    waits = [float(str(line.fields["in_s"])) for line in lines[:3]]
    assert waits == sorted(waits)
    assert waits[2] > waits[0]


async def test_a_first_start_that_fails_is_told_and_not_repeated():
    """A mistake in the configuration must not look like a crash."""
    journal = Journal()
    supervisor = Supervisor(journal)
    with pytest.raises(ChildFailed, match=r"one could not start \(exit status 7\)"):
        await supervisor.start([a_child("one", "import sys; sys.exit(7)")])
    await supervisor.stop()

    assert journal.of("died, restarting") == []


async def test_a_child_that_says_something_else_is_not_ready():
    """Only the ready line counts, and the child does not stay behind."""
    supervisor = Supervisor(Journal())
    with pytest.raises(ChildFailed, match="said b'hello"):
        await supervisor.start([a_child("one", "import sys; print('hello', flush=True); sys.stdin.read()")])

    assert supervisor.get_child("one").pid is None


async def test_stopping_is_orderly(capfd: pytest.CaptureFixture[str]):
    """SIGTERM, and time to say good-bye; nothing is restarted."""
    journal = Journal()
    supervisor = Supervisor(journal)
    await supervisor.start([a_child("one", ORDERLY)])
    await supervisor.stop()

    assert journal.of("died, restarting") == []
    assert supervisor.get_child("one").pid is None
    assert "bye" in capfd.readouterr().err


async def test_a_child_ends_with_its_supervisor():
    """Standard input is held by the supervisor: a child that watches it does not outlive a killed one."""
    supervisor = Supervisor(Journal())
    await supervisor.start([a_child("one", SERVES)])
    child = supervisor.get_child("one")
    process = child._process
    assert process is not None
    assert process.stdin is not None
    child._stopping.set()  # so that its end is not taken for a crash

    process.stdin.close()

    assert await process.wait() == 0
    await supervisor.stop()


def test_an_exit_is_described_in_words():
    """Status or signal, by name where it has one."""
    assert describe_exit(3) == "exit status 3"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-250) == "killed by signal 250"
