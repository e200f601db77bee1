"""What a Python worker of Spark does once for all tasks that it will run."""

from __future__ import annotations

import gc
import os
from typing import Final

_settled: Final[set[int]] = set()


def settle() -> None:
    """Keep what is loaded out of garbage collection, once per worker: Spark collects after every task."""
    if os.getpid() not in _settled:
        _settled.add(os.getpid())
        gc.collect()
        gc.freeze()
