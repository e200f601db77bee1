"""The defaults are upstream's."""

from __future__ import annotations

from holdfast.store.base.options import StoreOptions


def test_sizes_are_those_of_a_java_broker_without_settings():
    """So that either opens the other's folder as it is."""
    options = StoreOptions()

    assert options.log_file_size == 1_073_741_824
    assert options.queue_file_size == 6_000_000
    assert 40 + 4 * options.index_slots + 20 * options.index_items == 420_000_040
    assert options.body_size_max == 4_194_304


def test_there_are_eighteen_delay_levels():
    """From a second to two hours."""
    levels = StoreOptions().delay_levels_ms

    assert (len(levels), levels[0], levels[-1]) == (18, 1000, 7_200_000)
