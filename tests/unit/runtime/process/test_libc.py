"""Behaviour of what comes from the C library."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from holdfast.runtime.process.libc import find_function

ROUNDS = 50
# Fills 8 MiB, frees them, and so on: how many pages does the kernel have to bring each time?
PROGRAM = f"""
import resource, sys
from holdfast.runtime.process.libc import keep_freed_memory
if sys.argv[1] == "keeping":
    assert keep_freed_memory()
def fill():
    return [b"x" * (1 << 20) for _ in range(8)]
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    fill()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // {ROUNDS})
"""


def pages_a_round(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_memory_that_was_freed_is_used_again_without_asking_the_kernel():
    """Otherwise every turn of the loop with large answers pays for all their pages."""
    assert pages_a_round("keeping") < 10 < pages_a_round("as it comes")


def test_a_function_that_the_system_lacks_is_none():
    """Whoever wanted it does without."""
    assert find_function("holdfast_has_no_such_function", ctypes.c_int) is None
