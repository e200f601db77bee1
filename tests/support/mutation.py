"""Damaging bytes and values the way networks, disks and clever strangers do."""

from random import Random
from typing import Any

_PIECES = (
    b"",
    b"\x00",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\",
    b'"$ref":',
    b"null",
    b"-1",
    b"1e999",
    b"9" * 30,
    b"\xed\xa0\x80",
    b"\\ud800",
    b"{{",
    b"}:",
    b",",
)
_NUMBERS: tuple[Any, ...] = (0, -1, 2**31, 2**63, 10**30, 0.5)
_VALUES: tuple[Any, ...] = (*_NUMBERS, None, True, "", "x", [], [None], {}, {"$ref": "$"}, {"x": 7})


def mutate(data: bytes, random: Random) -> bytes:
    """Return *data* with one to four damages."""
    for _ in range(random.randint(1, 4)):
        data = _damage(bytearray(data), random)
    return data


def _damage(data: bytearray, random: Random) -> bytes:
    at = random.randint(0, len(data))
    end = min(len(data), at + random.choice((1, 2, 4, 8, 100)))
    match random.randrange(6):
        case 0 if data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        case 1:
            del data[at:]
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = data[at:end] * random.choice((1, 2, 50))
        case 4:
            data[at:end] = random.choice(_PIECES)
        case _:
            data[at:at] = random.choice(_PIECES)
    return bytes(data)


def mutate_value(value: Any, random: Random) -> Any:
    """Return a JSON value with one part of it replaced by something of another kind, or taken out."""
    parts: list[Any] = list(value) if isinstance(value, dict | list) else []
    if not parts or random.random() < 0.2:
        return random.choice(_VALUES)
    if isinstance(value, dict):
        key = random.choice(parts)
        if random.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {name: mutate_value(item, random) if name == key else item for name, item in value.items()}
    at = random.randrange(len(parts))
    return [mutate_value(item, random) if index == at else item for index, item in enumerate(parts)]
