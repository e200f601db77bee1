"""Lag is one figure in commands, in the metric and in Spark."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import wait_until

from holdfast import Message, blocking
from holdfast.spark.options import read_source_options
from holdfast.spark.stream_reader import HoldfastStreamReader

NORMAL, STATIC = "normal", "static"
TOPICS = f"{NORMAL},{STATIC}"
_SAMPLE = re.compile(r"^holdfast_broker_group_lag\{(.*)\} (\S+)$", re.MULTILINE)


class LagCluster(ProcessCluster):
    """A name server and three brokers with metrics, of which two have both topics and the third may get queues."""

    def start_all(self) -> None:
        """Start the brokers."""
        for name in ("a", "b", "c"):
            self.start(name, settings={"metrics_listen": f"127.0.0.1:{free_port()}"})

    def send(self, topic: str, count: int) -> None:
        """Send messages to all queues of a topic in turn."""
        with blocking.Producer(self.namesrv, "tests", timeout_s=60) as producer:
            producer.send_many([Message(topic, b"%d" % number, key=f"{number}") for number in range(count)])

    def metric(self, group: str) -> dict[str, dict[str, int]]:
        """Return the lag that each broker reports for *group*, by topic: broker to topic to lag."""
        found: dict[str, dict[str, int]] = {}
        for name in self.brokers:
            for labels, value in _SAMPLE.findall(self.metrics(name)):
                named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                if named["group"] == group and not named["topic"].startswith("%"):
                    found.setdefault(name, {})[named["topic"]] = int(float(value))
        return found

    def figures(self, group: str) -> dict[str, int]:
        """Return the lag of a group by topic, having seen that commands and the metric agree."""
        lag = self.run("group", "lag", group)
        by_topic: Counter[str] = Counter()
        for queue in lag["queues"]:
            by_topic[queue["topic"]] += queue["lag"]
        reported: Counter[str] = Counter()
        for topics in self.metric(group).values():
            reported.update(topics)
        apart = {topic: self.run("group", "lag", group, topic)["lag"] for topic in (NORMAL, STATIC)}
        assert lag["lag"] == sum(by_topic.values())
        assert self.run("group", "describe", group)["lag"] == lag["lag"]
        assert by_topic == reported == apart
        return dict(by_topic)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LagCluster]:
    with LagCluster(tmp_path) as found:
        found.start_all()
        found.run("topic", "create", NORMAL, "--queues", "2", "--brokers", "a,b")
        found.run("topic", "create", STATIC, "--logical-queues", "4", "--brokers", "a,b")
        found.send(NORMAL, 60)
        found.send(STATIC, 80)
        yield found


@pytest.mark.timeout(170)
def test_commands_metric_and_spark_agree_on_lag(cluster: LagCluster) -> None:
    """Over normal and static topics on several brokers, before and after a move."""
    options = {"namesrv": cluster.namesrv, "subscribe": TOPICS, "startingOffsets": "earliest", "groupId": "spark"}
    reader = HoldfastStreamReader(
        read_source_options(options | {"maxOffsetsPerTrigger": "30"}, is_stream=True), ("body",)
    )

    def next_batch(start: dict[str, Any]) -> dict[str, Any]:
        """Do as Spark does: plan and read a batch after *start*, which is published as done."""
        end = reader.latestOffset(start, ReadAllAvailable())
        if reader._publishing is not None:
            reader._publishing.result(30)
        for share in reader.partitions(start, end):
            list(reader.read(share))
        return end

    first = next_batch(reader.initialOffset())
    told = reader.reportLatestOffset()
    second = next_batch(first)

    assert told is not None
    assert sum(told["lag"].values()) == 110
    assert told["lag"] == cluster.figures("spark")

    leaders = cluster.leaders(STATIC)
    cluster.run("queue", "migrate", STATIC, "0", "--to", "c")
    cluster.run("queue", "migrate", STATIC, "1", "--to", "b" if leaders[1] == "a" else "a")
    cluster.send(STATIC, 40)
    third = next_batch(second)
    told = reader.reportLatestOffset()
    next_batch(third)

    assert told is not None
    assert sum(told["lag"].values()) == 180 - 90
    assert told["lag"] == cluster.figures("spark")


@pytest.mark.timeout(170)
def test_a_group_lags_also_on_brokers_where_it_committed_nothing(cluster: LagCluster) -> None:
    """It consumed one queue of one broker, and is gone."""
    with blocking.PullConsumer(cluster.namesrv, "billing", start="earliest", auto_commit=False) as consumer:
        queue = next(each for each in consumer.queues(NORMAL) if each.broker_name == "a")
        consumer.assign([queue])
        consumed = len(consumer.poll(timeout_s=30))
        consumer.commit()
    assert consumed > 0

    lag = cluster.run("group", "lag", "billing")

    assert lag["lag"] == cluster.run("group", "lag", "billing", NORMAL)["lag"] == 60 - consumed
    assert cluster.run("group", "describe", "billing")["lag"] == lag["lag"]
    wait_until(lambda: "b" in cluster.metric("billing"))  # which hears within seconds that there is such a group
    assert sum(topics[NORMAL] for topics in cluster.metric("billing").values()) == lag["lag"]
    assert {row["broker"] for row in lag["queues"]} == {"a", "b"}
    assert [row["committed"] for row in lag["queues"]].count(None) == 3
