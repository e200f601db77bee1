"""A cluster of real processes for stories about static topics: brokers come, go, die and return; an operator commands.

async with on_stage(tmp_path) as stage: ...
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from tests.support.cluster.operator import HoldfastCommand
from tests.support.cluster.processes import BrokerProcess, Processes

from holdfast.admin.moves import FINISHED
from holdfast.admin.operations import Admin
from holdfast.model.errors import HoldfastError

TOPIC = "orders"
QUEUES = 8
_SETTINGS: dict[str, object] = {
    "log_file_size": 64 << 20,
    "transaction_timeout_ms": 60_000,  # nobody is asked about a transaction that a story leaves open
}


class ProcessCluster:
    """A name server and brokers that can be killed and started again where they were."""

    def __init__(self, processes: Processes, *, flush: str = "async", settings: Mapping[str, object]) -> None:
        self.processes = processes
        self.flush = flush
        self.settings = _SETTINGS | settings
        self.namesrv = processes.start_name_server()
        self.operator = HoldfastCommand(self.namesrv)
        self.brokers: dict[str, BrokerProcess] = {}

    async def start(self, *names: str) -> None:
        """Start brokers, each on its own port and data if it ran before."""
        for name in names:
            old = self.brokers.get(name)
            self.brokers[name] = await asyncio.to_thread(
                self.processes.start_broker,
                name,
                self.namesrv,
                flush=self.flush,
                port=old.port if old else None,
                settings=self.settings,
            )

    async def create(self, *brokers: str, queues: int = QUEUES) -> None:
        """Make the topic, led by *brokers*."""
        arguments = ["--logical-queues", str(queues), "--brokers", ",".join(brokers)]
        await self.operator.run("topic", "create", TOPIC, *arguments)

    def kill(self, name: str) -> None:
        """Let a broker, or the name server, die without warning."""
        child = self.brokers[name].child if name in self.brokers else self.processes.name_servers[self.namesrv]
        os.kill(child.pid, signal.SIGKILL)
        child.kill()

    async def restart(self, name: str) -> None:
        """Start again what was killed."""
        if name in self.brokers:
            await self.start(name)
        else:
            port = int(self.namesrv.rpartition(":")[2])
            await asyncio.to_thread(self.processes.start_name_server, port=port)

    async def try_to_move(self, admin: Admin, *targets: str) -> None:
        """Order the move of the whole topic, and do not care what becomes of the order."""
        try:
            await admin.moves.start(await admin.moves.plan_topic(TOPIC, targets))
        except HoldfastError:
            return

    async def wait_for_moves(self, admin: Admin) -> None:
        """Return once no move is under way and the mapping is whole."""
        while True:
            try:
                moves = await admin.moves.list()
                topic = (await admin.static_topics.read(topic=TOPIC)).get_topic(TOPIC)
            except HoldfastError:
                await asyncio.sleep(0.1)
                continue
            prepared = [queue.queue for queue in topic.merged.queues.values() if queue.prepared is not None]
            if all(move.state in FINISHED for move in moves) and topic.merged.is_complete and not prepared:
                return
            await asyncio.sleep(0.1)  # brokers finish by themselves and tell nobody

    async def count_leaders(self) -> Counter[str]:
        """Return how many queues each broker leads."""
        return Counter((await self.operator.leaders(TOPIC)).values())


@asynccontextmanager
async def process_cluster(
    folder: Path, *, flush: str = "async", settings: Mapping[str, object] = MappingProxyType({})
) -> AsyncIterator[ProcessCluster]:
    """Provide a stage of real processes; when its user fails, the output of the processes is printed."""
    with Processes(folder) as processes:
        try:
            yield ProcessCluster(processes, flush=flush, settings=settings)
        except BaseException:
            sys.stdout.write(processes.last_lines() + "\n")
            raise
