"""Convert the RocketMQ versions that peers announce: a number on the wire, `V5_3_3` in texts, 5.3.3 for people.

The number is an index into upstream's list of versions. From 4.0.0 on, the list has ten patches of each of ten minor
versions, and a snapshot before every release.
"""

from __future__ import annotations

from typing import Final

_BASES: Final = {5: 413, 4: 213}
_END: Final = 611  # 5.9.9


def version_text(number: int) -> str:
    """Return the version with the wire number *number*, for people."""
    for major, base in _BASES.items():
        if base - 1 <= number <= _END:
            minor, patch = divmod((number + 1 - base) // 2, 10)
            return f"{major}.{minor}.{patch}{'-SNAPSHOT' if (number - base) % 2 else ''}"
    return "after 5.9.9" if number > _END else f"before 4.0.0 ({number})"


def version_name(name: str | None) -> str | None:
    """Return upstream's name of a version, such as V4_9_7 or V3_0_0_BETA1, for people."""
    if name is None or not name.startswith("V") or "_" not in name:
        return name
    major, minor, *rest = name[1:].split("_", 2)
    return ".".join((major, minor, *rest)).replace("_", "-")
