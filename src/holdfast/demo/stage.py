"""The cluster of a demo, and the operations on it.

2 brokers ── 2 more, which get their share ── 3 are emptied, removed and stopped ── 1 broker ── which may be killed
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.admin.cluster_start import ClusterPlan, plan_cluster, wait_until_registered
from holdfast.admin.draining import blocker_text
from holdfast.admin.moves import MovePlan
from holdfast.admin.operations import Admin, now_ms
from holdfast.admin.topic_plans import create_plan
from holdfast.config import UpOptions
from holdfast.demo.screen import Screen
from holdfast.machine.effects import Log
from holdfast.model.errors import HoldfastError
from holdfast.model.topic import TopicConfig
from holdfast.runtime.logs import start_logging
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.runtime.supervisor import Supervisor
from holdfast.store.base.log_file import LogFiles
from holdfast.store.log.log_scanner import LogWalk

BROKERS_AT_START: Final = 2
BROKERS_MAX: Final = 4
QUEUES: Final = 8
PATIENCE_S: Final = 90.0
_POLL_S: Final = 0.05
_EMPTY_S: Final = 0.5
_QUIET_ARGUMENTS: Final = ["--log-level", "error"]


class DemoFailed(HoldfastError):
    """An expected result did not happen."""


class DemoCluster:
    """A name server and brokers.

    Args:
        plan: All brokers that the demo may start.
        supervisor: Starts and stops the processes.
        screen: Receives the events.

    Attributes:
        copied: Bytes of messages in moved queues from before their new leaders opened them.
    """

    def __init__(self, plan: ClusterPlan, supervisor: Supervisor, screen: Screen) -> None:
        self.plan = plan
        self.copied = 0
        self._supervisor = supervisor
        self._screen = screen

    async def start(self, count: int) -> None:
        """Start brokers until the first *count* of them run."""
        started = self.plan.brokers[:count]
        new = [broker for broker in started if not self._supervisor.has_child(broker.name)]
        await self._supervisor.start([self.plan.broker_spec(broker, _QUIET_ARGUMENTS) for broker in new])
        await wait_until_registered(msgspec.structs.replace(self.plan, brokers=started))

    async def create(self, admin: Admin, *topics: str) -> None:
        """Create static topics."""
        for name in topics:
            view = await admin.static_topics.read()
            await admin.static_changes.apply(create_plan(view, TopicConfig(name=name), QUEUES, now_ms=now_ms()))

    async def grow(self, admin: Admin) -> None:
        """Start the other brokers and move a share of the queues to each."""
        await self.start(BROKERS_MAX)
        for broker in self.plan.brokers[BROKERS_AT_START:]:
            moved = await self._move(admin, await admin.moves.plan_spread(broker.name))
            self._screen.show_event(f"{broker.name} took over {moved}")

    async def shrink(self, admin: Admin, topics: Sequence[str], groups: Sequence[str]) -> None:
        """Remove all brokers but the last: move their queues, expire what *groups* have consumed, then stop them.

        Raises:
            DemoFailed: A part of a removed broker is left.
        """
        *leaving, last = self.plan.brokers
        for topic in topics:
            moved = await self._move(admin, await admin.moves.plan_topic(topic, [last.name]))
            self._screen.show_event(f"{last.name} took over {moved} of {topic}")
        for broker in leaving:
            await self._drain_broker(admin, broker.name, groups)
            await admin.draining.remove(broker.name)
            await self._supervisor.stop([broker.name])
            self._screen.timeline.end(broker.name, self._screen.now_s)
            self._screen.show_event(
                f"{broker.name} holds no messages that {' or '.join(groups)} needs: removed, stopped"
            )
        if leftovers := await self.find_leftovers(admin, [broker.name for broker in leaving]):
            raise DemoFailed("; ".join(leftovers))

    async def kill(self) -> None:
        """Kill the last broker as a crash would; the supervisor starts it again.

        Raises:
            DemoFailed: It does not come back.
        """
        child = self._supervisor.get_child(self.plan.brokers[-1].name)
        before = child.restarts
        self._screen.show_event(f"kill -9 {child.name} (process {child.pid}), which holds everything")
        child.kill()
        if not await wait_until(lambda: child.restarts > before and child.ready.is_set(), PATIENCE_S):
            raise DemoFailed(f"{child.name} did not come back in {PATIENCE_S:g} s")

    async def find_leftovers(self, admin: Admin, brokers: Collection[str]) -> list[str]:
        """Return the remains of brokers that should be gone: processes, names, segments that are not expired."""
        found = [f"{name} still runs" for name in brokers if self._supervisor.get_child(name).pid is not None]
        found += [f"{each.name} is still listed" for each in await admin.cluster.statuses() if each.name in brokers]
        view = await admin.static_topics.read()
        found += [
            f"{segment.broker} still has a segment of queue {queue.queue} of {name}"
            for name, topic in view.topics.items()
            for queue in topic.merged.queues.values()
            for segment in queue.readable
            if segment.broker in brokers
        ]
        return found

    async def _move(self, admin: Admin, plan: MovePlan) -> str:
        """Execute *plan* and return a description of the moved queues."""
        moves = await admin.moves.follow(await admin.moves.start(plan))
        for move in moves:
            if move.state != "done":
                raise DemoFailed(f"{len(move.queues)} queues to {move.target}: {move.state}, {move.reason}")
        self.copied += sum(move.copied or 0 for move in moves)
        count = sum(len(move.queues) for move in moves)
        return f"{count} logical queue{'' if count == 1 else 's'}"

    async def _drain_broker(self, admin: Admin, broker: str, groups: Sequence[str]) -> None:
        """Expire the segments that *groups* have consumed, until none is left on the broker."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            _, kept = await admin.draining.discard_consumed(broker, groups)
            blockers = await admin.draining.find_blockers(broker)
            if not blockers:
                return
            reason = f"{broker} is still needed: {blocker_text(blockers[0])}; {kept[0].kept_for if kept else ''}"
            if time.monotonic() > deadline_s:
                raise DemoFailed(reason)
            self._screen.show_status(reason)
            await asyncio.sleep(_EMPTY_S)


@contextlib.asynccontextmanager
async def running_cluster(folder: Path, screen: Screen) -> AsyncIterator[DemoCluster]:
    """Run a name server and the first brokers on free ports for the duration of the block."""
    write = start_logging(level="error")

    def emit(line: Log) -> None:
        role, is_broker = str(line.fields.get("role")), line.fields.get("role") != "namesrv"
        if line.event == "ready" and is_broker:
            screen.timeline.begin(role, screen.now_s)
            screen.show_event(f"{role} is up (process {line.fields['pid']})")
        elif line.event.startswith("died"):
            screen.timeline.end(role, screen.now_s)
            screen.show_event(f"{role} died ({line.fields['reason']}) and is started again")
        else:
            write(line)

    with contextlib.ExitStack() as reserved_ports:
        plan = plan_cluster(UpOptions(brokers=BROKERS_MAX, base_port=0), folder, reserved_ports)
        supervisor = Supervisor(emit)
        cluster = DemoCluster(plan, supervisor, screen)
        try:
            await supervisor.start([plan.name_server_spec(_QUIET_ARGUMENTS)])
            await cluster.start(BROKERS_AT_START)
            yield cluster
        finally:
            await supervisor.stop([broker.name for broker in plan.brokers if supervisor.has_child(broker.name)])
            await supervisor.stop()


def copied_bytes(plan: ClusterPlan, topics: Collection[str]) -> tuple[int, int]:
    """Read every record in the logs of all brokers, including removed ones.

    Returns:
        The number of different messages of *topics*, and the bytes of their second copies. Each message has unique
            properties, which identify a second copy on any broker.
    """
    seen: set[tuple[bytes, bytes]] = set()
    copied = 0
    for broker in plan.brokers:
        files = LogFiles.load(PosixDisk(broker.store), "commitlog", 0)
        for record in LogWalk(files, files.start):
            if record.topic.decode() in topics:
                copied += record.size if (record.topic, record.properties) in seen else 0
                seen.add((record.topic, record.properties))
    return len(seen), copied


async def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Return True once *condition* returns true, or False after *timeout_s*."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_POLL_S)
    return True
