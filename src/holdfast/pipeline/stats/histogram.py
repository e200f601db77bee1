"""How often numbers were how large: counts by classes that are an eighth of a power of two wide.

    0 1 2 ... 15 | 16-17 18-19 ... 30-31 | 32-35 36-39 ... | ...       a quantile is right to an eighth

Two of them are added by adding their counts: so they come back from tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

_EXACT: Final = 16
_STEPS: Final = 8

Histogram = dict[int, int]
"""The number of each class, to how many were in it."""


def count(values: npt.NDArray[np.int64]) -> Histogram:
    """Return the histogram of some numbers, none of which is negative."""
    classes, counts = np.unique(_classes(values), return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def _classes(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    exponents = np.frexp(np.maximum(values, 1).astype(np.float64))[1].astype(np.int64) - 1
    steps = (values >> np.maximum(exponents - 3, 0)) & (_STEPS - 1)
    return np.where(values < _EXACT, values, _EXACT + (exponents - 4) * _STEPS + steps)


def add(target: Histogram, more: Mapping[int, int]) -> None:
    """Add *more* to *target*."""
    for number, times in more.items():
        target[number] = target.get(number, 0) + times


def lowest(number: int) -> int:
    """Return the smallest number of a class."""
    if number < _EXACT:
        return number
    power, step = divmod(number - _EXACT, _STEPS)
    return (_STEPS + step) << power + 1


def quantile(histogram: Mapping[int, int], share: float) -> int | None:
    """Return the number that *share* of all are not above, as exactly as classes are; None when there are none."""
    left = share * sum(histogram.values())
    for number in sorted(histogram):
        left -= histogram[number]
        if left <= 0:
            return lowest(number + 1) - 1
    return None


def by_power(histogram: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return (smallest number, count) by powers of two, those between the first and the last too: for a plot."""
    powers: dict[int, int] = {}
    for number, times in histogram.items():
        power = lowest(number).bit_length()
        powers[power] = powers.get(power, 0) + times
    if not powers:
        return []
    return [((1 << power) >> 1, powers.get(power, 0)) for power in range(min(powers), max(powers) + 1)]
