"""The figures of a load."""

from holdfast.cli.commands.bench import percentile


def test_a_percentile_is_a_value_that_was_measured():
    """Nothing is interpolated; the ends are the ends."""
    values = [float(number) for number in range(1, 101)]

    assert (percentile(values, 0.50), percentile(values, 0.99), percentile(values, 1.0)) == (51.0, 100.0, 100.0)
    assert percentile([7.0], 0.99) == 7.0
