"""Holdfast as a source and a sink of Spark: `format("holdfast")`, pure Python, Arrow both ways.

    from holdfast.spark import session

    spark = session("clicks")
    frame = spark.readStream.format("holdfast").option("namesrv", "127.0.0.1:9876").option("subscribe", "orders").load()

`register(spark)` does the same for a session that exists already. What is planned is in terms of logical queues; which
broker serves one is found out when it is read, so brokers come and go without the query taking notice.

Pure modules decide (`options`, `offsets`, `plan`), `holdfast.columns` makes rows of bytes; `holdfast.bulk` reaches the
cluster and needs no Spark; `source`, `batch_reader`, `stream_reader` and `writer` are what Spark calls.
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
