"""Users and rules on real servers: every server of a domain has the same, in a file that only its owner can read."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster.processes import ProcessCluster

FILE = "config/holdfastAccess.json"
CREATE_USER, DELETE_USER = 3001, 3003


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Two name servers, two brokers and a replica that know the cluster secret."""
    folder = tmp_path_factory.mktemp("domain")
    secret = folder / "cluster-secret"
    secret.write_text("a-long-random-secret-of-the-cluster\n")
    secret.chmod(0o600)
    cluster = ProcessCluster(
        folder,
        "broker-a",
        "broker-b",
        name_servers=2,
        settings={"cluster_secret": secret, "log_file_size": 1 << 20},
        name_server_environment={"HOLDFAST_NAMESRV_CLUSTER_SECRET": str(secret)},
    )
    with cluster:
        cluster.start("broker-a", store=folder / "replica", settings={"replica_of": "broker-a"})
        yield cluster


def files(cluster: ProcessCluster) -> list[Path]:
    """Return where each server keeps its users."""
    stores = [broker.store for broker in cluster.brokers.values()] + [cluster.folder / "replica"]
    return [folder / FILE for folder in (*stores, *(cluster._data_of(address) for address in cluster.name_servers))]


def users_in(file: Path) -> set[str]:
    """Return the names of the users in a file."""
    if not file.exists():
        return set()
    records = json.loads(file.read_bytes())["records"]
    return {record["key"].partition("/")[2] for record in records if "user" in record}


def wait_until_all_have(cluster: ProcessCluster, *names: str) -> None:
    """Wait until every server has saved exactly these users."""
    deadline = time.monotonic() + 30
    while any(users_in(file) != set(names) for file in files(cluster)):
        assert time.monotonic() < deadline, {str(file): users_in(file) for file in files(cluster)}
        time.sleep(0.05)


def create(cluster: ProcessCluster, server: str, name: str) -> int:
    body = json.dumps({"username": name, "password": "secret-of-a-user"}).encode()
    return cluster.request(server, CREATE_USER, {"username": name}, body).code


def test_a_change_at_any_server_is_saved_by_all(cluster: ProcessCluster):
    """A server that was killed learns what it missed."""
    assert create(cluster, "broker-a", "alice") == 0
    wait_until_all_have(cluster, "alice")
    assert {file.stat().st_mode & 0o777 for file in files(cluster)} == {0o600}

    cluster.kill("broker-b")
    assert create(cluster, cluster.name_servers[1], "bob") == 0
    assert cluster.request("broker-a", DELETE_USER, {"username": "alice"}).code == 0
    cluster.restart("broker-b")

    wait_until_all_have(cluster, "bob")


def test_a_server_with_an_exposed_or_damaged_file_does_not_start(cluster: ProcessCluster):
    """Its message says what to do, and contains no secret."""
    assert create(cluster, "broker-a", "carol") in {0, 16}
    cluster.stop("broker-b")
    file = cluster.brokers["broker-b"].store / FILE
    good = file.read_bytes()
    broker = cluster.brokers["broker-b"]
    arguments = ["serve", "broker", "--name", "broker-b", "--namesrv", cluster.namesrv, "--store", str(broker.store)]

    file.chmod(0o644)
    refused = cluster.attempt(*arguments, "--listen", broker.address)
    assert (refused.status, "chmod 600" in refused.err) == (1, True)
    file.chmod(0o600)
    file.write_bytes(good[:-10])
    refused = cluster.attempt(*arguments, "--listen", broker.address)
    assert (refused.status, ".bak" in refused.err) == (1, True)
    assert "secret-of-a-user" not in refused.err

    file.write_bytes(good)
    cluster.restart("broker-b")
