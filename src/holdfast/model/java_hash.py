"""Java's `String.hashCode`, which the format uses for tags and keys.

hash = sum of unit[i] * 31^(n-1-i), over UTF-16 units, wrapped to a signed 32-bit integer
"""

from __future__ import annotations

from functools import lru_cache
from operator import mul

_TABLE_SIZE = 512
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_TABLE_SIZE)][::-1]


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Return what `text.hashCode()` is in Java. The latest texts are remembered: tags repeat."""
    return hash_units(_to_units(text))


def hash_units(units: bytes | list[int]) -> int:
    """Return the hash of UTF-16 *units*; the bytes of an ASCII text are its units."""
    total = 0
    for start in range(0, len(units), _TABLE_SIZE):
        part = units[start : start + _TABLE_SIZE]
        total = total * pow(31, len(part), 1 << 32) + sum(map(mul, part, _POWERS[_TABLE_SIZE - len(part) :]))
    return ((total + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def _to_units(text: str) -> bytes | list[int]:
    if text.isascii():
        return text.encode()
    wide = text.encode("utf-16-be", "surrogatepass")
    return [high << 8 | low for high, low in zip(wide[::2], wide[1::2], strict=True)]
