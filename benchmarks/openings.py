"""How soon a lost unit is read in another unit: from the start of `holdfast dr open` to the first message.

    two units under one name server, a static topic of 50 queues in each
    a consumer of the kept unit has its queues ─ the command, as a process ─> the first message of the lost unit

Measured twice: while the broker of the lost unit serves, and when only its replica is left. The consumer commits
nothing, so that every opening finds the same backlog.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from benchmarks.programs import BenchmarkFailed
from benchmarks.remoting import Remote, log_ends
from benchmarks.replica_findings import OpeningStats, OpeningTimes, Reader
from benchmarks.servers import READY_TIMEOUT_S, Server, ServerFleet
from tests.support.cluster.operator import HoldfastCommand
from tests.support.cluster.raw_requests import wait_until_gone

from holdfast import Message, Producer, PullConsumer

TOPIC: Final = "TopicTest"
GROUP: Final = "readers"
LOST_UNIT: Final = "siteA"
KEPT_UNIT: Final = "siteB"
QUEUES: Final = 50
MESSAGES: Final = 200
POLL_S: Final = 0.05
FIRST_TIMEOUT_S: Final = 60.0


class OpeningBench:
    """Opens a unit repeatedly."""

    def __init__(self, fleet: ServerFleet, log: Callable[[str], None], count: int) -> None:
        self._fleet = fleet
        self._log = log
        self._count = count

    def measure(self) -> list[OpeningStats]:
        """Return the times of the openings, by the broker that served the lost unit."""
        fleet = self._fleet
        name_server = fleet.start_holdfast_name_server()
        lost, kept = (
            fleet.start_holdfast(name_server, "async", name=f"in-{unit}", options=["--cluster", unit])
            for unit in (LOST_UNIT, KEPT_UNIT)
        )
        options = ["--cluster", LOST_UNIT, "--replica-of", lost.name]
        replica = fleet.start_holdfast(name_server, "async", name=lost.name, options=options)
        asyncio.run(self._fill(name_server))
        _wait_for_replica(lost, replica)
        found = [asyncio.run(self._open_repeatedly(name_server, "master"))]
        fleet.crash(lost)
        wait_until_gone(name_server.name_server, [f"127.0.0.1:{lost.port}"])
        found.append(asyncio.run(self._open_repeatedly(name_server, "replica")))
        for server in (replica, kept, name_server):
            fleet.stop(server)
        assert lost.store is not None
        fleet.remove(lost.store)
        return found

    async def _fill(self, name_server: Server) -> None:
        operator = HoldfastCommand(name_server.name_server)
        for unit in (LOST_UNIT, KEPT_UNIT):
            await operator.run("topic", "create", TOPIC, "--logical-queues", str(QUEUES), "--scope", unit)
            async with Producer(name_server.name_server, unit=unit) as producer:
                queues = await producer.queues(TOPIC)
                for number in range(MESSAGES):
                    await producer.send(Message(TOPIC, unit.encode()), queue=queues[number % QUEUES])

    async def _open_repeatedly(self, name_server: Server, reader: Reader) -> OpeningStats:
        openings = [await self._open(name_server) for _ in range(self._count)]
        found = OpeningStats(reader=reader, queues=QUEUES, openings=openings)
        self._log(
            f"   dr open to the first message, at the {reader}: {found.first_s:.2f} s, "
            f"{found.delay_after_command_s:+.2f} s"
        )
        return found

    async def _open(self, name_server: Server) -> OpeningTimes:
        operator = HoldfastCommand(name_server.name_server)
        consumer = PullConsumer(name_server.name_server, GROUP, start="earliest", auto_commit=False, unit=KEPT_UNIT)
        consumer.subscribe(TOPIC)
        async with consumer:
            await _read(consumer, KEPT_UNIT, count=MESSAGES)
            since_s = time.monotonic()

            async def command() -> float:
                await operator.run("dr", "open", "--unit", LOST_UNIT)
                return time.monotonic() - since_s

            opening = asyncio.create_task(command())
            await _read(consumer, LOST_UNIT, count=1)
            first_s = time.monotonic() - since_s
            ended_s = await opening
        await operator.run("dr", "close", "--unit", LOST_UNIT)
        return OpeningTimes(ended_s=ended_s, first_s=first_s)


async def _read(consumer: PullConsumer, unit: str, *, count: int) -> None:
    """Return once *count* messages of *unit* have arrived.

    Raises:
        BenchmarkFailed: They do not arrive in time.
    """
    deadline_s, found = time.monotonic() + FIRST_TIMEOUT_S, 0
    while found < count:
        if time.monotonic() > deadline_s:
            raise BenchmarkFailed(f"{found} of {count} messages of {unit} arrived within {FIRST_TIMEOUT_S:.0f} s")
        messages = await consumer.poll(timeout_s=1)
        found += sum(message.body == unit.encode() for message in messages)


def _wait_for_replica(master: Server, replica: Server) -> None:
    """Return once the replica has the log, and knows the topic, which it requests every few seconds."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    with Remote(master.port) as master_remote, Remote(replica.port) as replica_remote:
        while len(set(log_ends([master_remote, replica_remote]))) > 1 or TOPIC not in replica_remote.topics():
            if time.monotonic() > deadline_s:
                raise BenchmarkFailed(f"the replica of {master.name} did not catch up in time")
            time.sleep(POLL_S)  # poll: a replica sends no notice
