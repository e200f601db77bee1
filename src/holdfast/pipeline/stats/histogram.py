"""Histograms with classes that are an eighth of a power of two wide.

    0 1 2 ... 15 | 16-17 18-19 ... 30-31 | 32-35 36-39 ... | ...       a quantile is accurate to an eighth

Histograms are merged by adding their counts, so each task returns one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

_EXACT: Final = 16
_STEPS: Final = 8

Histogram = dict[int, int]
"""Maps the number of a class to the count of values in it."""


def count(values: npt.NDArray[np.int64]) -> Histogram:
    """Return the histogram of non-negative numbers."""
    classes, counts = np.unique(_classes(values), return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def _classes(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    exponents = np.frexp(np.maximum(values, 1).astype(np.float64))[1].astype(np.int64) - 1
    steps = (values >> np.maximum(exponents - 3, 0)) & (_STEPS - 1)
    return np.where(values < _EXACT, values, _EXACT + (exponents - 4) * _STEPS + steps)


def add(target: Histogram, more: Mapping[int, int]) -> None:
    """Add *more* to *target*."""
    for number, occurrences in more.items():
        target[number] = target.get(number, 0) + occurrences


def lowest(number: int) -> int:
    """Return the smallest value of a class."""
    if number < _EXACT:
        return number
    power, step = divmod(number - _EXACT, _STEPS)
    return (_STEPS + step) << power + 1


def quantile(histogram: Mapping[int, int], share: float) -> int | None:
    """Return the largest value of the class that contains the quantile *share*; None if the histogram is empty."""
    remaining = share * sum(histogram.values())
    for number in sorted(histogram):
        remaining -= histogram[number]
        if remaining <= 0:
            return lowest(number + 1) - 1
    return None


def by_power(histogram: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return (smallest value, count) by powers of two, including empty ones between the first and the last."""
    powers: dict[int, int] = {}
    for number, occurrences in histogram.items():
        power = lowest(number).bit_length()
        powers[power] = powers.get(power, 0) + occurrences
    if not powers:
        return []
    return [((1 << power) >> 1, powers.get(power, 0)) for power in range(min(powers), max(powers) + 1)]
