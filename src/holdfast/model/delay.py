"""The fixed levels of delayed delivery: `1s 5s ... 2h`, numbered from 1."""

from __future__ import annotations

import re

from holdfast.model.errors import ConfigError

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d+)([smhd])")


class DelayLevels:
    """The delay of each level.

    Raises:
        ConfigError: the text is not a list of times.
    """

    def __init__(self, text: str) -> None:
        self._delays_ms: list[int] = []
        for word in text.split():
            found = _LEVEL.fullmatch(word)
            if found is None:
                raise ConfigError(f"delay level {word!r} is not a time such as 30s, 5m or 2h")
            self._delays_ms.append(int(found[1]) * _UNITS_MS[found[2]])
        if not self._delays_ms:
            raise ConfigError("there must be at least one delay level")

    def __len__(self) -> int:
        return len(self._delays_ms)

    def clamp(self, level: int) -> int:
        """Return the nearest existing level: too high a level means the longest delay, as upstream does."""
        return min(level, len(self._delays_ms))

    def delay_ms(self, level: int) -> int:
        """Return the delay of *level*."""
        return self._delays_ms[level - 1]
