"""`make demo`: a streaming click count that never restarts while its cluster is replaced under it.

    2 brokers ── 4 ── 1, the others removed and stopped ── the last one is killed (kill -9) and comes back

At the end every acknowledged click must be in the counts and in Parquet, exactly once. A click in flight when the
broker was killed may be stored or not; its sender got an error that says so. See `queries` for the Spark queries, and
`proof` for the promises. Writes a picture into the output folder, and beside it the log of Spark and the brokers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from holdfast.admin.operations import Admin
from holdfast.admin.tables import Table, left, print_all, right
from holdfast.demo.ledger import Ledger, LoadGenerator
from holdfast.demo.picture import draw
from holdfast.demo.proof import Proof, check_counts, compare_clicks
from holdfast.demo.queries import ARCHIVE, CLICKS, COUNTS, GROUP, Dashboard, Queries
from holdfast.demo.screen import Screen
from holdfast.demo.stage import PATIENCE_S, QUEUES, DemoCluster, DemoFailed, copied_bytes, running_cluster, wait_until
from holdfast.model.errors import HoldfastError
from holdfast.spark.spark_session import session

OUTPUT: Final = Path("holdfast-demo")
PAGES: Final = 40
PHASE_S: Final = 5.0
_SAMPLE_S: Final = 0.25


class DemoRun:
    """One run of the demo."""

    def __init__(self, spark: SparkSession, cluster: DemoCluster, folder: Path, screen: Screen) -> None:
        self._cluster = cluster
        self._screen = screen
        self._ledger = Ledger()
        self._load = LoadGenerator(cluster.plan, self._ledger, CLICKS, [f"page-{number}" for number in range(PAGES)])
        self._dashboard = Dashboard()
        self._queries = Queries(spark, cluster.plan.namesrv, folder)
        for name in self._queries.batches:
            screen.timeline.begin(f"query {name}", screen.now_s)

    async def run(self, admin: Admin) -> tuple[int, int]:
        """Send clicks while brokers come and go. Return the query restarts, and the remains of removed brokers."""
        *leaving, _ = self._cluster.plan.brokers
        async with self._dashboard.consumer(self._cluster.plan.namesrv):
            watching, clicking = asyncio.create_task(self._watch()), asyncio.create_task(self._load.run())
            await self._phase("2 brokers")
            await self._cluster.grow(admin)
            await self._phase("4 brokers")
            await self._cluster.shrink(admin, [CLICKS, COUNTS], [GROUP, ARCHIVE])
            await self._phase("1 broker")
            await self._cluster.kill()
            await self._phase("1 broker, killed and back")
            self._load.stop()
            await clicking
            self._screen.show_event(f"{self._ledger.acknowledged:,} clicks were acknowledged; waiting for the queries")
            restarts = await asyncio.to_thread(self._queries.finish)
            total = len(await asyncio.to_thread(self._queries.archived, CLICKS))
            await wait_until(lambda: self._dashboard.total >= total, PATIENCE_S)
            watching.cancel()
        return restarts, len(await self._cluster.find_leftovers(admin, [broker.name for broker in leaving]))

    def make_proof(self, restarts: int, leftovers: int) -> Proof:
        """Compare sent and archived clicks. Call it after the brokers have stopped: it reads their logs."""
        clicks, counts = self._queries.archived(CLICKS), self._queries.archived(COUNTS)
        counted, miscounted = check_counts(clicks, counts)
        stored, copied = copied_bytes(self._cluster.plan, {CLICKS, COUNTS})
        return Proof(
            clicks=compare_clicks(self._ledger, clicks),
            counted=counted,
            shown=self._dashboard.total,
            miscounted=miscounted,
            restarts=restarts,
            stored=stored,
            rows=len(clicks) + len(counts),
            copied=max(copied, self._cluster.copied),
            left=leftovers,
        )

    async def _phase(self, label: str) -> None:
        """Let the clicks continue for a while, and until some of them are counted."""
        before = self._dashboard.total
        self._ledger.shares_since_last()
        await asyncio.sleep(PHASE_S)
        if not await wait_until(lambda: self._queries.require_running() and self._dashboard.total > before, PATIENCE_S):
            raise DemoFailed(f"{label}: no click was counted for {PATIENCE_S:g} s")
        shares, counted = self._ledger.shares_since_last(), self._dashboard.total
        self._screen.show_event(f"{label}: {counted:,} clicks counted so far, the newest stored by {shares}")

    async def _watch(self) -> None:
        """Record the current counts several times a second."""
        timeline, screen = self._screen.timeline, self._screen
        while True:
            timeline.sample(screen.now_s, self._ledger.stored, self._dashboard.total)
            for name, count in self._queries.batches.items():
                done = timeline.batches.setdefault(f"query {name}", [])
                done += [screen.now_s] * (count - len(done))
            screen.show_status(f"clicks {self._ledger.acknowledged:,}  counted {self._dashboard.total:,}")
            await asyncio.sleep(_SAMPLE_S)


async def run(folder: Path, screen: Screen) -> Proof:
    """Run the whole demo and return its proof."""
    # Create the session in this thread: Spark looks up sinks in the session of the thread that starts a query.
    spark = session("click-count", config={"spark.log.level": "OFF"})
    spark.sparkContext.setLogLevel("OFF")
    screen.show_event("Spark is up")
    try:
        async with running_cluster(folder, screen) as cluster, Admin(cluster.plan.namesrv) as admin:
            await cluster.create(admin, CLICKS, COUNTS)
            screen.show_event(f"static topics {CLICKS} and {COUNTS}: {QUEUES} logical queues each")
            demo_run = DemoRun(spark, cluster, folder, screen)
            screen.show_event("both queries run: one counts clicks into a topic, one archives both topics as Parquet")
            restarts, leftovers = await demo_run.run(admin)
        screen.show_event("the queries have ended, the cluster has stopped; comparing sent and archived messages")
        return demo_run.make_proof(restarts, leftovers)
    finally:
        spark.stop()


def redirect_stderr(path: Path) -> None:
    """Redirect the standard error of child processes to a file, so that only the demo's own events are shown."""
    shown = os.dup(2)
    log_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    sys.stderr = os.fdopen(shown, "w", buffering=1)
    logging.getLogger("holdfast").addHandler(logging.StreamHandler(path.open("a")))


def main() -> int:
    """Run the demo; return 0 if the proof holds, else 1."""
    OUTPUT.mkdir(exist_ok=True)
    log_path, picture = OUTPUT / "log.txt", OUTPUT / "timeline.svg"
    redirect_stderr(log_path)
    screen, begun_s = Screen(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            proof = asyncio.run(run(Path(folder), screen))
    except HoldfastError as error:
        screen.show_event(f"THE DEMO FAILED: {error}. The log of the brokers and of Spark is in {log_path}")
        return 1
    finally:
        screen.close()
    picture.write_text(draw(screen.timeline, proof), encoding="utf-8")
    (OUTPUT / "proof.json").write_bytes(msgspec.json.format(msgspec.json.encode(proof)))
    rows = [(name, count, text, "" if is_right else "<-- WRONG") for name, count, text, is_right in proof.lines]
    print_all([Table([*left("PROOF"), *right("COUNT"), *left("", "")], rows)])
    verdict = "The proof holds" if proof.is_good else "THE PROOF DOES NOT HOLD"
    sys.stdout.write(f"{verdict}; {time.monotonic() - begun_s:.0f} s. The timeline as a picture: {picture}\n")
    return 0 if proof.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
