"""The advice about packages that only some parts need."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.runtime.process.extras import describe_missing, requirements_of

PROJECT = Path(__file__).parents[4] / "pyproject.toml"


@pytest.mark.parametrize("name", ["session", "register", "HoldfastSource"])
def test_spark_without_pyspark_says_what_to_install(name: str):
    """One line that can be copied, and no advice that needs a package index: Holdfast is on none."""
    script = f"import sys; sys.modules.update(pyspark=None); import holdfast.spark; from holdfast.spark import {name}"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    line = done.stderr.splitlines()[-1]
    assert line.startswith("ImportError: holdfast.spark needs pyspark, which is not installed: run `pip install ")
    assert "'pyspark<4.4,>=4.3'" in line


def test_the_packages_are_those_of_the_project():
    """As they were when it was installed."""
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    for extra, wanted in extras.items():
        names = sorted(text.replace("<", ">").replace("=", ">").split(">")[0] for text in wanted)
        assert (
            sorted(text.replace("<", ">").replace("=", ">").split(">")[0] for text in requirements_of(extra)) == names
        )


def test_without_known_requirements_the_missing_package_is_named():
    """Holdfast may run from a folder."""
    error = ImportError(name="pyspark")

    assert describe_missing("it", error, "no such extra").endswith("`pip install pyspark`")
