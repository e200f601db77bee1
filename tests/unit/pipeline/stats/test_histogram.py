"""Classes of numbers: exact where they are small, an eighth wide where they are not, and they can be added."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.stats.histogram import add, by_power, count, lowest, quantile


@given(value=st.integers(0, 1 << 52))
def test_a_number_lies_in_its_class(value: int):
    """Which is no wider than an eighth of it."""
    (number,) = count(np.array([value], dtype=np.int64))

    assert lowest(number) <= value < lowest(number + 1)
    assert lowest(number + 1) - lowest(number) <= max(1, value // 8)


@given(values=st.lists(st.integers(0, 1 << 40), min_size=1), share=st.floats(0.01, 1.0))
def test_a_quantile_is_right_to_an_eighth(values: list[int], share: float):
    """Never too low."""
    exact = sorted(values)[max(0, int(np.ceil(share * len(values) - 1e-9)) - 1)]

    found = quantile(count(np.array(values, dtype=np.int64)), share)

    assert found is not None
    assert exact <= found <= exact + exact // 8


@given(one=st.lists(st.integers(0, 1 << 40)), other=st.lists(st.integers(0, 1 << 40)))
def test_histograms_can_be_added(one: list[int], other: list[int]):
    """As if all had been counted at once."""
    sums = count(np.array(one, dtype=np.int64))

    add(sums, count(np.array(other, dtype=np.int64)))

    assert sums == count(np.array(one + other, dtype=np.int64))
    assert sum(times for _, times in by_power(sums)) == len(one) + len(other)


def test_nothing_has_no_quantile():
    """And no power."""
    assert quantile({}, 0.5) is None
    assert by_power({}) == []
