"""Functions of the C library that Python does not offer. Everything works without them, too."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from typing import Final

_TRIM_THRESHOLD: Final = -1  # constants of malloc.h
_MMAP_THRESHOLD: Final = -3
_MIB: Final = 1024 * 1024
_TRIM_BYTES: Final = 64 * _MIB
_MMAP_BYTES: Final = 32 * _MIB  # glibc's maximum; larger blocks are returned to the kernel one by one


def find_function(name: str, *arguments: type) -> Callable[..., int] | None:
    """Return a function of the C library, or None if it has no such function."""
    library = ctypes.util.find_library("c")
    if library is None:
        return None
    function = getattr(ctypes.CDLL(library, use_errno=True), name, None)
    if function is not None:
        function.argtypes = arguments
        function.restype = ctypes.c_int
    return function


def keep_freed_memory() -> bool:
    """Let this process keep up to 64 MiB of freed memory for reuse. Return whether the C library supports it.

    A turn of the loop creates megabytes of answers and frees them once they are sent. By default malloc returns them to
    the kernel each time, and the next turn's pages are faulted in and zeroed again: a third of a large pull's cost.
    """
    mallopt = find_function("mallopt", ctypes.c_int, ctypes.c_int)
    return (
        mallopt is not None
        and bool(mallopt(_MMAP_THRESHOLD, _MMAP_BYTES))
        and bool(mallopt(_TRIM_THRESHOLD, _TRIM_BYTES))
    )
