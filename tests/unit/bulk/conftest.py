"""What columns need beside the rest."""

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make install-spark")
