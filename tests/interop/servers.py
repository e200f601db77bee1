"""The cluster that foreign clients meet: ours, or the real RocketMQ in its place."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.child import Child
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import wait_until_registered
from tests.support.java_peer import JavaPeer

CLUSTER = "InteropCluster"
# A producer is asked about an undecided transaction after a second instead of after a minute.
JAVA_SETTINGS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "mappedFileSizeCommitLog": str(64 << 20),
    # 5.x notes decisions in batches, by default every 3 s: it would ask again about what it was just told.
    "transactionOpBatchInterval": "100",
    # A cold JVM keeps its first requests waiting longer than the 200 ms after which it refuses them.
    "waitTimeMillsInSendQueue": "20000",
    "waitTimeMillsInPullQueue": "20000",
    "waitTimeMillsInHeartbeatQueue": "20000",
    "waitTimeMillsInTransactionQueue": "20000",
}
HOLDFAST_SETTINGS = {
    "transaction_check_interval_ms": 1000,
    "transaction_timeout_ms": 1000,
    "log_file_size": 64 << 20,
}


@dataclass(frozen=True, slots=True)
class Servers:
    """Where a running cluster is reached. `kind` is "holdfast" or "java"."""

    kind: str
    name_server: str
    brokers: dict[str, str]

    @property
    def first_broker(self) -> str:
        """The address of the first broker by name."""
        return self.brokers[min(self.brokers)]


def holdfast_servers(folder: Path) -> Iterator[Servers]:
    """Run a name server and two brokers of ours, one that syncs before it answers and one that does not."""
    with ProcessCluster(folder, cluster=CLUSTER, settings=HOLDFAST_SETTINGS) as cluster:
        for name, flush in (("broker-a", "sync"), ("broker-b", "async")):
            cluster.start(name, flush=flush)
        yield Servers("holdfast", cluster.namesrv, {name: broker.address for name, broker in cluster.brokers.items()})


def java_servers(peer: JavaPeer, folder: Path) -> Iterator[Servers]:
    """Run a name server and two brokers of the real RocketMQ."""
    children: list[Child] = []
    try:
        port = free_port()
        name_server = f"127.0.0.1:{port}"
        children.append(peer.start_name_server(port=port, home=folder / "namesrv"))
        brokers: dict[str, str] = {}
        for name in ("broker-a", "broker-b"):
            port = free_port()
            brokers[name] = f"127.0.0.1:{port}"
            store = folder / name
            children.append(
                peer.start_broker(
                    name=name, cluster=CLUSTER, port=port, name_server=name_server, store=store, settings=JAVA_SETTINGS
                )
            )
        wait_until_registered(name_server, brokers)
        yield Servers("java", name_server, brokers)
    finally:
        for child in reversed(children):
            child.kill()
