"""Install instructions for the packages that only some parts of Holdfast need.

Holdfast is on no package index, so pip cannot install one of its extras by name: the packages themselves are listed.
"""

from __future__ import annotations

import re
from typing import Final

_MARKER: Final = re.compile(r"""(.+?)\s*;\s*extra\s*==\s*['"](\w+)['"]""")


def requirements_of(extra: str) -> list[str]:
    """Return the requirements of *extra* in pyproject.toml; nothing if Holdfast runs without being installed."""
    from importlib import metadata  # noqa: PLC0415 - slow to load, and only needed for an error

    try:
        requirements = metadata.requires("holdfast") or []
    except metadata.PackageNotFoundError:
        return []
    found = (_MARKER.fullmatch(text) for text in requirements)
    return [match[1].replace(" ", "") for match in found if match and match[2] == extra]


def describe_missing(part: str, error: ImportError, extra: str) -> str:
    """Return how to install a missing package that *part* of Holdfast needs."""
    missing = (error.name or "a package").partition(".")[0]
    packages = " ".join(f"'{requirement}'" for requirement in requirements_of(extra)) or missing
    return f"{part} needs {missing}, which is not installed: run `pip install {packages}`"
