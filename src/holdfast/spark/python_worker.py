"""One-time setup of a Python worker process of Spark, which runs many tasks."""

from __future__ import annotations

import gc
import os
from typing import Final

from holdfast.runtime.process.libc import keep_freed_memory

_prepared_pids: Final[set[int]] = set()


def prepare_worker() -> None:
    """Set up this worker process on the first call.

    Keep freed memory in the process: every pull creates megabytes of columns, which Spark consumes at once; without
    this, the memory of the next ones would be page-faulted and zeroed again. Exclude loaded objects from garbage
    collection, because Spark collects after every task.
    """
    if os.getpid() not in _prepared_pids:
        _prepared_pids.add(os.getpid())
        keep_freed_memory()
        gc.collect()
        gc.freeze()
