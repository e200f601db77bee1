"""Build the extension for the wheel, and name the systems that can load it."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GLIBC_MIN = 17
"""The oldest C library that a manylinux tag of this form names is 2.17."""


class NativeHook(BuildHookInterface[Any]):
    """Adds the library that cargo builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface
        """Build it before the wheel is packed."""
        root = Path(self.root)
        subprocess.run(
            ["cargo", "build", "--release", "--locked", "--target-dir", "target"],  # noqa: S607 - whichever is installed
            cwd=root,
            check=True,
        )
        library = root / "target" / "release" / "libholdfast_native.so"
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform_tag(library.read_bytes(), platform.machine())}"
        build_data["force_include"][str(library)] = "holdfast/_native.abi3.so"


def platform_tag(library: bytes, machine: str) -> str:
    """Return the tag of the systems whose C library is new enough for all symbols that *library* needs."""
    minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)\b", library)]
    return f"manylinux_2_{max([GLIBC_MIN, *minors])}_{machine}"
