"""Topics as Arrow, for those who have no Arrow. What it reads is stated in tests/spark/test_arrow.py."""

import subprocess
import sys


def test_who_lacks_pyarrow_is_told_in_one_line_what_to_install():
    """It is an extra: everything else works without."""
    script = "import sys; sys.modules.update(numpy=None, pyarrow=None); import holdfast; import holdfast.arrow"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1].endswith("holdfast.arrow needs numpy: pip install 'holdfast[arrow]'")
