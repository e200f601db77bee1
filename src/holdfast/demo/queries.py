"""The two queries of the demo with Spark, and the dashboard that shows their counts.

clicks ─┬─> count: clicks per page ──> counts ──> dashboard          both topics are static;
        │                                │                           counts are written exactly once
        └────────────────────────────────┴──> archive ──> Parquet
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.client.push_consumer import PushConsumer
from holdfast.demo.proof import Row
from holdfast.demo.stage import DemoFailed
from holdfast.model.message import ReceivedMessage

CLICKS: Final = "clicks"
COUNTS: Final = "counts"
GROUP: Final = "count"
ARCHIVE: Final = "archive"
_POLL_S: Final = 0.05
_START_S: Final = 180.0


class Dashboard:
    """Shows the newest count of every page, consumed from the topic of counts."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def consumer(self, namesrv: str) -> PushConsumer:
        """Return the consumer that updates it."""

        async def listen(message: ReceivedMessage) -> None:
            self.counts[message.key or ""] = int(message.body)

        found = PushConsumer(namesrv, GROUP, listener=listen, ordered=True, start="earliest")
        found.subscribe(COUNTS)
        return found

    @property
    def total(self) -> int:
        """The sum of the newest counts of all pages."""
        return sum(self.counts.values())


class Queries:
    """The two queries, from their start to their end.

    Args:
        spark: The session to run them in. Create this object in the thread that made the session: Spark looks up sinks
            there.
        namesrv: The cluster.
        folder: The folder for checkpoints and archived files.
    """

    def __init__(self, spark: SparkSession, namesrv: str, folder: Path) -> None:
        self._spark = spark
        self._files = str(folder / ARCHIVE)
        source = spark.readStream.format("holdfast").option("namesrv", namesrv).option("startingOffsets", "earliest")
        counts = source.option("subscribe", CLICKS).option("groupId", GROUP).load().groupBy("key").count()

        def write_changed(changed: DataFrame, number: int) -> None:
            """Write the counts that changed. Spark's Python sinks support no updates; a named write is exactly once."""
            sink = changed.selectExpr("key", "cast(count as string) body").write.format("holdfast").mode("append")
            sink = sink.option("namesrv", namesrv).option("topic", COUNTS).option("exactlyOnce", "true")
            sink.option("txnAppId", "click-count").option("txnVersion", str(number)).save()

        updates = counts.writeStream.outputMode("update").foreachBatch(write_changed)
        rows = source.option("subscribe", f"{CLICKS},{COUNTS}").option("groupId", ARCHIVE).load()
        files = rows.drop("properties").writeStream.format("parquet").option("path", self._files)
        self._queries: list[StreamingQuery] = []
        for name, writer in ((GROUP, updates), (ARCHIVE, files)):
            writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}"))  # noqa: PLW2901
            self._queries.append(_start(writer.queryName(name)))
        self._runs = [query.runId for query in self._queries]

    def require_running(self) -> bool:
        """Return True if both queries run.

        Raises:
            DemoFailed: A query has ended.
        """
        for query in self._queries:
            if (error := query.exception()) is not None or not query.isActive:
                raise DemoFailed(f"the query {query.name!r} has ended: {error}")
        return True

    @property
    def batches(self) -> dict[str, int]:
        """The number of completed batches of each query."""
        return {query.name: (query.lastProgress or {"batchId": -1})["batchId"] + 1 for query in self._queries}

    def finish(self) -> int:
        """Let each query read all available messages, then stop both. Return how often a query was restarted."""
        for query in self._queries:
            query.processAllAvailable()
        self.require_running()
        runs = [
            {query.runId, *(progress["runId"] for progress in query.recentProgress)} | {run}
            for query, run in zip(self._queries, self._runs, strict=True)
        ]
        for query in self._queries:
            query.stop()
        return sum(len({str(run) for run in each}) - 1 for each in runs)

    def archived(self, topic: str) -> Sequence[Row]:
        """Return the archived rows of a topic."""
        found = self._spark.read.parquet(self._files).where(f"topic = '{topic}'")
        columns = found.selectExpr("key", "cast(cast(body as string) as bigint) number", "queue", "offset")
        return [Row(*row) for row in columns.collect()]


def _start(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query and return it after its first batch.

    Spark gives its Python process ten seconds to connect, which is not always enough on a busy machine. Start the query
    again if that fails.

    Raises:
        DemoFailed: The query does not begin.
    """
    deadline_s = time.monotonic() + _START_S
    query = writer.start()
    while query.lastProgress is None:
        if time.monotonic() > deadline_s:
            raise DemoFailed(f"the query {query.name!r} does not begin: {query.exception()}")
        if not query.isActive:
            if "failed to connect back" not in str(query.exception()):
                raise DemoFailed(f"the query {query.name!r} has ended: {query.exception()}")
            query = writer.start()
        time.sleep(_POLL_S)
    return query
