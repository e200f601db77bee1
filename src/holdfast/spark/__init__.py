"""Holdfast as a source and a sink of Spark: `format("holdfast")`, pure Python, Arrow both ways.

    from holdfast.spark import session

    spark = session("clicks")
    frame = spark.readStream.format("holdfast").option("namesrv", "127.0.0.1:9876").option("subscribe", "orders").load()

`register(spark)` does the same for a session that exists already. What is planned is in terms of logical queues; which
broker serves one is found out when it is read, so brokers come and go without the query taking notice.

Pure modules decide (`options`, `offsets`, `plan`), `holdfast.columns` makes rows of bytes; `holdfast.bulk` reaches the
cluster and needs no Spark; `source`, `batch_reader`, `stream_reader` and `writer` are what Spark calls.

    batch_reader   A batch query
    delivery       Brings the rows of one task to their queues and waits for every answer
    key_hash       Java's `String.hashCode` of a column of keys, which decides on their queues
    offsets        How far a stream has come, as Spark keeps it in its checkpoint
    options        What users say to the source and the sink, judged before anything starts
    plan           How much of each queue a batch takes, and how it is divided among tasks
    pushdown       What a batch query need not read, going by the filters that Spark tells of
    python_worker  What a Python worker of Spark does once for all tasks that it will run
    quiet_daemon   Spark's parent of Python workers, as Spark starts it (`python -m`), whose workers leave quietly
    sink_contact   The check that a name server answers before the sink writes anything
    sink_items     Columns of messages as the bodies of batch sends
    sink_options   What users say to the sink, judged before anything is written
    sink_requests  The rows of one queue as requests, from any row on, in either form
    sink_rows      From Arrow batches to messages, as columns
    source         `format("holdfast")`
    spark_session  A Spark session that is set up for us
    stream_reader  A streaming query
    writer         The sink
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from holdfast.runtime.extras import describe_missing

if TYPE_CHECKING:
    from holdfast.spark.source import HoldfastSource
    from holdfast.spark.spark_session import register, session

__all__ = ["HoldfastSource", "register", "session"]

# Whoever only decodes columns needs no Spark.
_HOMES = {"HoldfastSource": "source", "register": "spark_session", "session": "spark_session"}


def __getattr__(name: str) -> object:
    """Return a public name."""
    if name in _HOMES:
        try:
            home = importlib.import_module(f"holdfast.spark.{_HOMES[name]}")
        except ModuleNotFoundError as error:
            raise ImportError(describe_missing("holdfast.spark", error, "spark"), name=error.name) from None
        found: object = getattr(home, name)
        return found
    raise AttributeError(f"module 'holdfast.spark' has no attribute {name!r}")
