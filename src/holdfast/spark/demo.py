"""`make demo-spark`: a streaming click count that never restarts while its cluster is replaced under it.

    clicks ─┬─> Spark: count per page ──> counts ──> dashboard          both topics are static;
            │                             │                             the counts are written exactly once
            └─────────────────────────────┴──> Spark: archive ──> Parquet

    2 brokers ── 4 ── 1, the others removed and stopped ── that one is killed -9 and comes back

At the end every click that was acknowledged must be in the counts and in Parquet, once. A click that was on its way
when the broker was killed may be there or not, as its sender was told:

    lost, repeated     clicks that are not in Parquet, or are there twice                   must be 0
    unexpected         clicks in Parquet that nobody made                                   must be 0
    out of order       clicks of a page whose numbers do not rise with their offsets        must be 0
    holes              offsets of a queue at which no click was                             must be 0
    miscounted         pages whose last count is not the number of their clicks             must be 0
    query restarts     runs of the query beyond the first                                   must be 0
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.admin.operations import Admin, now_ms
from holdfast.admin.tables import Table, left, print_all, right
from holdfast.admin.topic_plans import create_plan
from holdfast.client.producer import Producer
from holdfast.client.push_consumer import PushConsumer
from holdfast.demo import DemoFailed, Play, Screen, running_cluster, wait_until
from holdfast.model.errors import SendFailed
from holdfast.model.message import Message, ReceivedMessage
from holdfast.model.topic import TopicConfig
from holdfast.spark.spark_session import session

CLICKS: Final = "clicks"
COUNTS: Final = "counts"
GROUP: Final = "count"
ARCHIVE: Final = "archive"
PAGES: Final = 40
QUEUES: Final = 8
PHASE_S: Final = 4.0
PATIENCE_S: Final = 90.0
_PACE_S: Final = 0.05


class Proof(msgspec.Struct, frozen=True):
    """The sums at the end."""

    clicks: int
    unsure: int
    archived: int
    counted: int
    lost: int
    repeated: int
    unexpected: int
    out_of_order: int
    holes: int
    miscounted: int
    restarts: int

    @property
    def is_good(self) -> bool:
        """Whether everything is as it was promised, and anything happened at all."""
        faults = (self.lost, self.repeated, self.unexpected, self.out_of_order, self.holes, self.miscounted)
        return 0 < self.clicks <= self.archived == self.counted and not any(faults) and not self.restarts


class Clicks:
    """Somebody clicks on pages until told to stop.

    Attributes:
        acknowledged: Page and number of each click that a broker promised to keep.
        unsure: Those that were on their way when a broker died: they may have been stored or not.
    """

    def __init__(self, namesrv: str) -> None:
        self.acknowledged: set[tuple[str, int]] = set()
        self.unsure: set[tuple[str, int]] = set()
        self._namesrv = namesrv
        self._is_over = False

    def stop(self) -> None:
        """Let the clicks in flight be the last."""
        self._is_over = True

    async def run(self) -> None:
        """Click on every page, again and again."""
        async with Producer(self._namesrv, "browser", retries=0) as producer:
            await asyncio.gather(*(self._click(producer, f"page-{number}") for number in range(PAGES)))

    async def _click(self, producer: Producer, page: str) -> None:
        number = 0
        while not self._is_over:
            try:
                await producer.send(Message(CLICKS, b"%d" % number, key=page))
            except SendFailed as error:
                if not error.maybe_stored:
                    await asyncio.sleep(_PACE_S)
                    continue  # Certainly not there: the same click again.
                self.unsure.add((page, number))
            else:
                self.acknowledged.add((page, number))
            number += 1
            await asyncio.sleep(_PACE_S)


class Dashboard:
    """Shows the newest count of every page, as the topic of counts tells it."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def consumer(self, namesrv: str) -> PushConsumer:
        """Return the consumer that keeps it up to date."""

        async def listen(message: ReceivedMessage) -> None:
            self.counts[message.key or ""] = int(message.body)

        found = PushConsumer(namesrv, GROUP, listener=listen, ordered=True, start="earliest")
        found.subscribe(COUNTS)
        return found

    @property
    def total(self) -> int:
        """All clicks that were counted."""
        return sum(self.counts.values())


class Queries:
    """The two queries: one counts clicks per page into a topic, one keeps everything as Parquet.

    Attributes:
        restarts: How many of them were not in their first run when they ended.
    """

    def __init__(self, spark: SparkSession, namesrv: str, folder: Path) -> None:
        source = spark.readStream.format("holdfast").option("namesrv", namesrv).option("startingOffsets", "earliest")
        counts = source.option("subscribe", CLICKS).option("groupId", GROUP).load().groupBy("key").count()

        def tell(changed: DataFrame, number: int) -> None:
            """Write the counts that changed. Spark's Python sinks take no updates; a named write does, once."""
            sink = changed.selectExpr("key", "cast(count as string) body").write.format("holdfast").mode("append")
            sink = sink.option("namesrv", namesrv).option("topic", COUNTS).option("exactlyOnce", "true")
            sink.option("txnAppId", "click-count").option("txnVersion", str(number)).save()

        updates = counts.writeStream.outputMode("update").foreachBatch(tell)
        rows = source.option("subscribe", f"{CLICKS},{COUNTS}").option("groupId", ARCHIVE).load()
        files = rows.drop("properties").writeStream.format("parquet").option("path", str(folder / "archive"))
        self.restarts = 0
        self._queries: list[StreamingQuery] = []
        for name, writer in (("count", updates), ("archive", files)):
            self._queries.append(
                writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")).queryName(name).start()
            )
            self._await_first_batch()
        self._runs = [query.runId for query in self._queries]

    def _await_first_batch(self) -> None:
        """Return when the newest query has done a batch: Spark gives up on one that takes long to start."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.check() and self._queries[-1].lastProgress is None:
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"the query {self._queries[-1].name!r} does not begin")
            time.sleep(_PACE_S)

    def check(self) -> bool:
        """Say that both run.

        Raises:
            DemoFailed: one does not.
        """
        for query in self._queries:
            if (error := query.exception()) is not None or not query.isActive:
                raise DemoFailed(f"the query {query.name!r} has ended: {error}")
        return True

    @property
    def batches(self) -> str:
        """How many batches each has done."""
        done = [(query.name, (query.lastProgress or {"batchId": 0})["batchId"]) for query in self._queries]
        return ", ".join(f"{name} at batch {number}" for name, number in done)

    def finish(self) -> None:
        """Let both read what there is, one behind the other, and end them."""
        for query in self._queries:
            query.processAllAvailable()
        self.restarts = sum(query.runId != run for query, run in zip(self._queries, self._runs, strict=True))
        for query in self._queries:
            query.stop()


async def make_topics(admin: Admin) -> None:
    """Make both topics, static."""
    for name in (CLICKS, COUNTS):
        view = await admin.static.read()
        await admin.changes.apply(create_plan(view, TopicConfig(name=name), QUEUES, now_ms=now_ms()))


async def shrink(play: Play, admin: Admin, screen: Screen) -> None:
    """Take all brokers but the last away."""
    *leaving, last = play.plan.brokers
    for topic in (CLICKS, COUNTS):
        await play.move(admin, await admin.moves.plan_topic(topic, [last.name]))
    screen.event(f"{last.name} took over every queue; bytes copied: 0")
    for broker in leaving:
        await play.retire(admin, broker.name, [GROUP, ARCHIVE])


async def kill(play: Play, screen: Screen) -> None:
    """Kill the broker that holds everything; whoever keeps it running starts it again."""
    child = play.supervisor.get_child(play.plan.brokers[-1].name)
    assert child.pid is not None, "it runs"
    os.kill(child.pid, signal.SIGKILL)
    before = child.restarts
    await wait_until(lambda: child.restarts > before and child.ready.is_set(), PATIENCE_S)
    screen.event(f"{child.name} was killed with everything on it, and is back")


async def run(folder: Path, screen: Screen) -> Proof:
    """Play it all and return the sums."""
    # Here and not in another thread: Spark looks for sinks in the session of the thread that starts a query.
    spark = start_spark()
    async with running_cluster(folder, screen) as play, Admin(play.plan.namesrv) as admin:
        await make_topics(admin)
        screen.event(f"static topics {CLICKS} and {COUNTS}: {QUEUES} logical queues each; Spark is up")
        queries = Queries(spark, play.plan.namesrv, folder)
        clicks, dashboard = Clicks(play.plan.namesrv), Dashboard()
        async with dashboard.consumer(play.plan.namesrv):
            clicking = asyncio.create_task(clicks.run())
            await phase(queries, dashboard, screen, "2 brokers")
            await play.grow(admin)
            await phase(queries, dashboard, screen, "4 brokers")
            await shrink(play, admin, screen)
            await phase(queries, dashboard, screen, "1 broker")
            await kill(play, screen)
            await phase(queries, dashboard, screen, "1 broker, killed and back")
            clicks.stop()
            await clicking
            screen.event(f"{len(clicks.acknowledged):,} clicks were acknowledged; the queries read to the end")
            await asyncio.get_running_loop().run_in_executor(None, queries.finish)
            restarts = queries.restarts
            total = archived(spark, folder).count()
            await wait_until(lambda: dashboard.total >= total, PATIENCE_S)
        proof = prove(spark, folder, clicks, dashboard, restarts)
        spark.stop()
    return proof


def start_spark() -> SparkSession:
    """Start Spark, quietly: that brokers come and go is what is shown here."""
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    spark = session("click-count", config={"spark.log.level": "OFF"})
    spark.sparkContext.setLogLevel("OFF")
    return spark


async def phase(queries: Queries, dashboard: Dashboard, screen: Screen, what: str) -> None:
    """Let the clicks go on until some of them are counted, and for a while."""
    before = dashboard.total
    await asyncio.sleep(PHASE_S)
    if not await wait_until(lambda: queries.check() and dashboard.total > before, PATIENCE_S):
        raise DemoFailed(f"{what}: no click was counted for {PATIENCE_S:g} s")
    screen.event(f"{what}: {dashboard.total:,} clicks counted; {queries.batches}, the same runs")


def archived(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the clicks that are in Parquet."""
    return spark.read.parquet(str(folder / "archive")).where(f"topic = '{CLICKS}'")


def prove(spark: SparkSession, folder: Path, clicks: Clicks, dashboard: Dashboard, restarts: int) -> Proof:
    """Compare what was sent with what arrived."""
    rows = archived(spark, folder).select("key", "queue", "offset", "body").collect()
    rows.sort(key=lambda row: (row["queue"], row["offset"]))
    found = Counter((row["key"], int(row["body"])) for row in rows)
    latest: dict[str, int] = defaultdict(lambda: -1)
    out_of_order = 0
    for row in rows:
        out_of_order += int(row["body"]) < latest[row["key"]]
        latest[row["key"]] = int(row["body"])
    ends: dict[int, int] = {row["queue"]: row["offset"] + 1 for row in rows}
    offsets = Counter(row["queue"] for row in rows)
    pages = Counter(row["key"] for row in rows)
    return Proof(
        clicks=len(clicks.acknowledged),
        unsure=len(clicks.unsure),
        archived=len(rows),
        counted=dashboard.total,
        lost=len(clicks.acknowledged - found.keys()),
        repeated=sum(found.values()) - len(found),
        unexpected=len(found.keys() - clicks.acknowledged - clicks.unsure),
        out_of_order=out_of_order,
        holes=sum(end - offsets[queue] for queue, end in ends.items()),
        miscounted=sum(dashboard.counts.get(page) != count for page, count in pages.items()),
        restarts=restarts,
    )


def proof_rows(proof: Proof) -> Sequence[tuple[str, int, str]]:
    """Return the sums as people read them."""
    return [
        ("clicks", proof.clicks, "acknowledged"),
        ("unsure", proof.unsure, "on their way when the broker was killed: there or not"),
        ("archived", proof.archived, "rows in Parquet"),
        ("counted", proof.counted, "by the last count of every page: must be the same"),
        ("lost", proof.lost, "acknowledged and not in Parquet: must be 0"),
        ("repeated", proof.repeated, "in Parquet twice: must be 0"),
        ("unexpected", proof.unexpected, "in Parquet and never sent: must be 0"),
        ("out of order", proof.out_of_order, "behind a later click of the same page: must be 0"),
        ("holes", proof.holes, "offsets without a click: must be 0"),
        ("miscounted", proof.miscounted, "pages with a wrong count: must be 0"),
        ("query restarts", proof.restarts, "must be 0"),
    ]


def main() -> int:
    """Run the demo; 0 when the proof holds, 1 when it does not."""
    screen, begun_s = Screen(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            proof = asyncio.run(run(Path(folder), screen))
    finally:
        screen.close()
    print_all([Table([*left("PROOF"), *right("COUNT"), *left("")], proof_rows(proof))])
    verdict = "the proof holds" if proof.is_good else "THE PROOF DOES NOT HOLD"
    sys.stdout.write(f"{verdict}; {time.monotonic() - begun_s:.0f} s\n")
    return 0 if proof.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
