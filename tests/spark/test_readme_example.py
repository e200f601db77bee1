"""The Spark example of the README runs."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.conftest import SparkCluster

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_spark_example_counts_the_messages_of_each_queue(spark: SparkSession, cluster: SparkCluster):
    """With nothing changed but the address and the topic; `session` returns the session of the tests."""
    topic = cluster.new_topic(queues=2)
    cluster.send(topic, range(10))
    (example,) = re.findall(r"^```python\n(from holdfast.spark .*?)^```", README, re.DOTALL | re.MULTILINE)
    example = example.replace("127.0.0.1:9876", cluster.namesrv).replace('"orders"', f'"{topic}"')

    with redirect_stdout(io.StringIO()) as shown:
        exec(example, {})

    counts = re.findall(r"^\|\s*(\d+)\|\s*(\d+)\|$", shown.getvalue(), re.MULTILINE)
    assert sum(int(count) for _, count in counts) == 10
