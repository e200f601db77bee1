"""The small demo as it is typed, and what the demos find in the logs of brokers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cluster.processes import ProcessCluster

from holdfast import Message, blocking
from holdfast.admin.cluster_start import BrokerPlan, ClusterPlan
from holdfast.demo.stage import copied_bytes


@pytest.mark.slow
def test_the_demo_without_spark_ends_well():
    """Under a minute where nothing else runs."""
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast.demo.orders"], capture_output=True, text=True, timeout=110, check=False
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the ledger is right" in ended.stdout
    assert len(re.findall("removed, stopped", ended.stderr)) == 3


def test_a_message_that_is_in_two_logs_was_copied(tmp_path: Path):
    """It is known by its properties, whichever broker has it."""
    with ProcessCluster(tmp_path, "broker-a") as cluster:
        with blocking.Producer(cluster.namesrv) as producer:
            for number in range(3):
                producer.send(Message("clicks", b"%d" % number, key="home"))
            producer.send(Message("others", b"x"))
        cluster.stop("broker-a")
        broker = cluster.brokers["broker-a"]
    plan = a_plan([broker.store])

    stored, copied = copied_bytes(plan, {"clicks"})
    _, twice = copied_bytes(a_plan([broker.store, broker.store]), {"clicks"})

    assert (stored, copied) == (3, 0)
    assert twice > 3 * 100


def a_plan(stores: list[Path]) -> ClusterPlan:
    brokers = [BrokerPlan("broker", "", "", str(store), None) for store in stores]
    return ClusterPlan("", "", "", brokers, None, [], None)
