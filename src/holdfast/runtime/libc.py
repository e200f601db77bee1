"""What the C library can do that Python has no name for. Where it cannot, everything works without it."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from typing import Final

_TRIM_THRESHOLD: Final = -1  # numbers of malloc.h
_MMAP_THRESHOLD: Final = -3
_MIB: Final = 1024 * 1024
_KEPT: Final = 64 * _MIB
_LARGE: Final = 32 * _MIB  # the most that glibc takes; larger blocks are given back one by one


def find_function(name: str, *arguments: type) -> Callable[..., int] | None:
    """Return a function of the system's library; None where there is none."""
    library = ctypes.util.find_library("c")
    if library is None:
        return None
    function = getattr(ctypes.CDLL(library, use_errno=True), name, None)
    if function is not None:
        function.argtypes = arguments
        function.restype = ctypes.c_int
    return function


def keep_freed_memory() -> bool:
    """Let this process keep up to 64 MiB that it freed, for what it needs next. Return whether that was possible.

    A turn of the loop makes megabytes of answers and frees them when they have left. By default malloc gives them back
    to the kernel each time, and each page of the next turn's is faulted in and zeroed anew: a third of a large pull.
    """
    mallopt = find_function("mallopt", ctypes.c_int, ctypes.c_int)
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
