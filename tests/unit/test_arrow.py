"""Topics as Arrow, for those who have no Arrow. What it reads is stated in tests/spark/test_arrow.py."""

import subprocess
import sys

import pytest


def test_who_lacks_pyarrow_is_told_in_one_line_what_to_install():
    """It is an extra: everything else works without."""
    script = "import sys; sys.modules.update(numpy=None, pyarrow=None); import holdfast; import holdfast.arrow"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1].endswith(
        "holdfast.arrow needs numpy, which is not installed: run `pip install 'numpy>=2' 'pyarrow>=18'`"
    )


def test_arrow_needs_no_spark():
    """Not a module of the Spark source is loaded, and pyspark may be missing."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: make install-spark")
    script = (
        "import sys; sys.modules.update(pyspark=None); import holdfast.arrow; "
        "print(*(name for name in sys.modules if name.startswith('holdfast.spark')))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
