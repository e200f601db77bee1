"""Preparation of a reading: topics, messages to pull, a warm server."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

from benchmarks.cells import HOT_FOUR, HOT_ONE, SPAN
from benchmarks.load import Load
from benchmarks.measure import Bench
from benchmarks.process_cost import wait_until_quiet
from benchmarks.programs import BenchmarkFailed
from benchmarks.remoting import Remote
from benchmarks.servers import Server, create_topic

TOPIC = "TopicTest"


def fill(bench: Bench, broker: Server, topic: str, *, queues: int, count: int) -> None:
    """Send until every queue of *topic* holds at least *count* messages, as a cold broker may refuse some."""
    for _ in range(20):
        with Remote(broker.port) as remote:
            lacking = count - min(remote.max_offset(topic, queue) for queue in range(queues))
        if lacking <= 0:
            return
        bench.load(broker, Load(mode="send", topic=topic, queues=queues, in_flight=64, requests=lacking * queues))
    raise BenchmarkFailed(f"{broker.kind} did not accept {count} messages for each queue of {topic}")


def fill_hot_topics(bench: Bench, brokers: Sequence[tuple[Server, Server]], number: int) -> Mapping[str, str]:
    """Write new messages for the pulls of one round, so that they are in the hot part of the log.

    *brokers* are listed with their name servers. Return the topics to pull from.
    """
    topics = {HOT_ONE: f"{HOT_ONE}-{number}", HOT_FOUR: f"{HOT_FOUR}-{number}"}
    for broker, name_server in brokers:
        for topic, queues in ((topics[HOT_ONE], 1), (topics[HOT_FOUR], 4)):
            create_topic(broker, name_server, topic, queues=queues)
            fill(bench, broker, topic, queues=queues, count=SPAN)
        wait_until_quiet(broker.pid)
    return topics


def touch_memory(size: int) -> None:
    """Allocate *size* bytes of memory and free them, so that the next writes find physical pages.

    A virtual machine gets its memory page by page at the first write, and may lose unused pages: one reading would pay
    for that and the next would not.
    """
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def warm_broker(bench: Bench, broker: Server, *, seconds: float, pulls: bool) -> None:
    """Load *broker* as the readings will, so that a JVM has compiled its code.

    Sends take *seconds*; batches take a third of that, and so do pulls.
    """
    for connections, in_flight in ((16, 16), (4, 256)):
        bench.load(
            broker, Load(mode="send", topic=TOPIC, connections=connections, in_flight=in_flight, seconds=seconds / 2)
        )
    bench.load(broker, Load(mode="outer", topic=TOPIC, connections=4, in_flight=4, seconds=seconds / 3))
    if pulls:
        pull = Load(mode="pull", topic=TOPIC, connections=4, in_flight=4, seconds=seconds / 3, span=10_000)
        bench.load(broker, pull)
    wait_until_quiet(broker.pid)


def warm_name_server(bench: Bench, name_server: Server, *, seconds: float, topic: str = TOPIC) -> None:
    """Load *name_server* with route queries."""
    bench.load(name_server, Load(mode="route", topic=topic, connections=16, in_flight=16, seconds=seconds))
