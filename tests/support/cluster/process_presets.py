"""Clusters of processes as several stories need them: units under common name servers, and one static topic."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.cluster.processes import ProcessCluster

from holdfast.admin.moves import FINISHED
from holdfast.admin.operations import Admin
from holdfast.model.errors import HoldfastError

SMALL = {"log_file_size": 1 << 20}
"""Settings of brokers whose folders are copied: they hold little."""
TOPIC = "orders"
QUEUES = 8


@contextlib.contextmanager
def units_cluster(folder: Path, brokers: Mapping[str, str], *, name_servers: int = 1) -> Iterator[ProcessCluster]:
    """Run name servers, which push route changes however busy the machine is, and *brokers*: name to unit."""
    calm = {"HOLDFAST_NAMESRV_NOTIFY_BACK_OFF": "false"}
    with ProcessCluster(folder, name_servers=name_servers, settings=SMALL, name_server_environment=calm) as cluster:
        for name, unit in brokers.items():
            cluster.start(name, cluster=unit)
        yield cluster


def static_topic_cluster(
    folder: Path, *brokers: str, flush: str = "async", settings: Mapping[str, object] | None = None
) -> ProcessCluster:
    """Return a cluster whose brokers never ask about the transactions that a story leaves open."""
    usual: dict[str, object] = {"log_file_size": 64 << 20, "transaction_timeout_ms": 60_000}
    return ProcessCluster(folder, *brokers, flush=flush, settings=usual | dict(settings or {}))


async def create_static(cluster: ProcessCluster, *brokers: str, queues: int = QUEUES) -> None:
    """Make the static topic, led by *brokers*."""
    arguments = ["--logical-queues", str(queues), "--brokers", ",".join(brokers)]
    await cluster.operator.run("topic", "create", TOPIC, *arguments)


async def try_to_move(admin: Admin, *targets: str) -> None:
    """Order a move of the whole topic, which may fail."""
    with contextlib.suppress(HoldfastError):
        await admin.moves.start(await admin.moves.plan_topic(TOPIC, targets))


async def wait_for_moves(admin: Admin) -> None:
    """Return once no move is under way and the mapping is complete."""
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
        await asyncio.sleep(0.1)  # Brokers finish without a notice.


async def count_leaders(cluster: ProcessCluster) -> Counter[str]:
    """Return how many queues of the topic each broker leads."""
    return Counter((await cluster.operator.leaders(TOPIC)).values())
