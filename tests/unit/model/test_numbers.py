"""How wide numbers are."""

import msgspec
import pytest

from holdfast.model.numbers import Int32, Int64, parse_count


@pytest.mark.parametrize(("kind", "largest"), [(Int32, 2**31 - 1), (Int64, 2**63 - 1)])
def test_a_number_has_its_width_and_not_one_more(kind: type[int], largest: int):
    """On both sides of zero; decoders refuse what no layout can hold."""
    for number in (largest, 0, -largest - 1):
        assert msgspec.json.decode(str(number), type=kind) == number
    for number in (largest + 1, -largest - 2, 10**100):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(str(number), type=kind)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), ("9" * 18, 10**18 - 1), ("9" * 19, -1), ("9" * 5000, -1), ("-1", -1), ("", -1), (None, -1)],
)
def test_a_count_is_read_or_is_the_default(text: str | None, number: int) -> None:
    """Whatever a stranger wrote."""
    assert parse_count(text, -1) == number
    assert parse_count(text) == (None if number < 0 else number)
