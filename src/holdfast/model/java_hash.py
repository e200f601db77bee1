"""Java's `String.hashCode`, which RocketMQ's format uses for tags and keys.

    hash = sum of unit[i] * 31^(n-1-i), over UTF-16 units, wrapped to a signed 32-bit integer

This is the number that the text spells in base 31, if its digits were below 31. There are two ways to transform the
text into such digits; `int` then parses them at the speed of C:

    all units are in [48, 79): digits and A to N     unit = 48 + digit               unique keys are hexadecimal
    all units are ASCII                              unit = 31 * high + low          one number of each
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import mul

_TABLE_SIZE = 512
_WRAP = 0xFFFFFFFF
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_TABLE_SIZE)]
_POWERS_DOWN = _POWERS[::-1]
_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTU"
_NO_DIGIT = ord("!")  # Makes `int` refuse the text.
_NARROW_FIRST = 48
_NARROW = bytes(_DIGITS[unit - 48] if 48 <= unit < 79 else _NO_DIGIT for unit in range(256))
_NARROW_SHIFTS = [_NARROW_FIRST * (31**size - 1) // 30 & _WRAP for size in range(_TABLE_SIZE)]
_LOW = bytes(_DIGITS[unit % 31] if unit < 128 else _NO_DIGIT for unit in range(256))
_HIGH = bytes(_DIGITS[unit // 31] if unit < 128 else _NO_DIGIT for unit in range(256))


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Return Java's `text.hashCode()`. The latest texts are cached, because tags repeat."""
    if text.isascii() and 0 < len(text) <= _TABLE_SIZE:
        units = text.encode()
        return _to_signed(int(units.translate(_LOW), 31) + 31 * int(units.translate(_HIGH), 31))
    return hash_units(_to_units(text))


def extend_hash(prefix: int, text: bytes) -> int:
    """Return the hash of a text followed by *text* (UTF-8), as an unsigned integer; *prefix* is the first text's hash.

    Invalid UTF-8 counts as replacement characters.
    """
    units = _to_units(text.decode(errors="replace"))
    return prefix * pow(31, len(units), 1 << 32) + hash_units(units) & _WRAP


def extend_hashes(prefixes: Sequence[int], texts: Sequence[bytes]) -> list[int]:
    """Return `extend_hash` of many pairs at once. Fast if all texts are ASCII, fastest if all are short digits."""
    pairs = list(zip(prefixes, texts, strict=True))
    powers, shifts = _POWERS, _NARROW_SHIFTS
    try:
        return [
            prefix * powers[len(text)] + shifts[len(text)] + int(text.translate(_NARROW), 31) & _WRAP
            for prefix, text in pairs
        ]
    except (ValueError, IndexError):
        pass
    try:
        return [
            prefix * powers[len(text)] + int(text.translate(_LOW), 31) + 31 * int(text.translate(_HIGH), 31) & _WRAP
            for prefix, text in pairs
        ]
    except (ValueError, IndexError):
        return [extend_hash(prefix, text) for prefix, text in pairs]


def hash_units(units: bytes | list[int]) -> int:
    """Return the hash of UTF-16 *units*; the bytes of an ASCII text are its units."""
    total = 0
    for start in range(0, len(units), _TABLE_SIZE):
        part = units[start : start + _TABLE_SIZE]
        total = total * pow(31, len(part), 1 << 32) + sum(map(mul, part, _POWERS_DOWN[_TABLE_SIZE - len(part) :]))
    return _to_signed(total)


def _to_signed(total: int) -> int:
    return ((total + 0x80000000) & _WRAP) - 0x80000000


def _to_units(text: str) -> bytes | list[int]:
    if text.isascii():
        return text.encode()
    wide = text.encode("utf-16-be", "surrogatepass")
    return [high << 8 | low for high, low in zip(wide[::2], wide[1::2], strict=True)]


def key_text(key: bytes) -> str:
    """Return the text whose hash selects the queue of a bytes key; a key that is not UTF-8 is decoded as Latin-1."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.decode("latin-1")
