"""Holdfast as a source and a sink of Spark: `format("holdfast")`, pure Python, Arrow both ways.

    from holdfast.spark import session

    spark = session("clicks")
    frame = spark.readStream.format("holdfast").option("namesrv", "127.0.0.1:9876").option("subscribe", "orders").load()

`register(spark)` registers the source in an existing session. Plans name logical queues only. A task finds the broker
of a queue when it reads it, so brokers can come and go without disturbing the query.

Pure modules decide (`options`, `offsets`, `plan`). `holdfast.columns` converts between bytes and rows. `holdfast.bulk`
talks to the cluster and does not need Spark. Spark calls `source`, `batch_reader`, `stream_reader` and `writer`.

    options         The options of the source, validated before a query starts
    offsets         The position of a stream, as stored in Spark's checkpoint
    plan            Chooses the rows of a batch from each queue, and divides them among tasks
    pushdown        Narrows a batch query by the filters that Spark pushes down
    python_worker   One-time setup of a Python worker process
    quiet_daemon    Spark's parent process of Python workers, with workers that exit quietly
    batch_reader    Batch queries
    stream_reader   Streaming queries
    sink_options    The options and columns of the sink, validated before it writes
    sink_contact    The check that a name server answers before the sink writes anything
    key_hash        Java's `String.hashCode` for a column of keys, which determines their queues
    sink_rows       Converts Arrow batches to columns of messages, and chooses their queues
    sink_items      Encodes columns of messages as the bodies of batch sends
    sink_requests   Encodes the rows of one queue as send requests
    sink_session    A process's session with a cluster, for the tasks that write
    delivery        Sends the rows of one task to their queues and waits for every acknowledgement
    writer          The sink: batch and streaming writes
    source          The data source class behind `format("holdfast")`
    spark_session   Creates a Spark session with Java found and the source registered
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from holdfast.runtime.process.extras import describe_missing

if TYPE_CHECKING:
    from holdfast.spark.source import HoldfastSource
    from holdfast.spark.spark_session import register, session

__all__ = ["HoldfastSource", "register", "session"]

# Import lazily: some modules of this package work without Spark.
_MODULES = {"HoldfastSource": "source", "register": "spark_session", "session": "spark_session"}


def __getattr__(name: str) -> object:
    """Import and return a public name on first use."""
    if name in _MODULES:
        try:
            module = importlib.import_module(f"holdfast.spark.{_MODULES[name]}")
        except ModuleNotFoundError as error:
            raise ImportError(describe_missing("holdfast.spark", error, "spark"), name=error.name) from None
        found: object = getattr(module, name)
        return found
    raise AttributeError(f"module 'holdfast.spark' has no attribute {name!r}")
