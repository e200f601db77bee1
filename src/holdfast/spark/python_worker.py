"""What a Python worker of Spark does once for all tasks that it will run."""

from __future__ import annotations

import gc
import os
from typing import Final

from holdfast.runtime.libc import keep_freed_memory

_settled: Final[set[int]] = set()


def settle() -> None:
    """Set up this worker, once.

    Freed memory is kept: every answer makes megabytes of columns, which Spark takes at once, and the next ones would be
    faulted in and zeroed anew. What is loaded is kept out of garbage collection: Spark collects after every task.
    """
    if os.getpid() not in _settled:
        _settled.add(os.getpid())
        keep_freed_memory()
        gc.collect()
        gc.freeze()
