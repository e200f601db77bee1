"""How a table is made to fit a terminal."""

import pytest
from rich.cells import cell_len

from holdfast.admin.table_layout import Column, Fitted, fit

ID = "7F0000012343F70CFFBC4C090ADB0001"
NAME = Column("NAME")
COUNT = Column("COUNT", "right")


def width_of(fitted: Fitted) -> int:
    return sum(fitted.widths) + 2 * (len(fitted.widths) - 1)


def test_a_table_that_fits_is_left_alone():
    """With its natural widths, also if it has columns that could be left out."""
    fitted = fit([NAME, Column("NOTE", spare=1), COUNT], [["a", "-", "1,234"]], 80)

    assert (list(fitted.widths), fitted.rows, fitted.left_out) == ([4, 4, 5], [["a", "-", "1,234"]], [])


def test_columns_are_left_out_by_rank_and_empty_ones_before():
    """As many as needed, and no more; the others keep their order."""
    columns = [NAME, Column("FIRST", spare=1), Column("LAST", spare=2), COUNT, Column("REASON")]
    rows = [["n" * 20, "f" * 20, "l" * 20, "5", "-"]]

    assert fit(columns, rows, 80).left_out == []
    assert fit(columns, rows, 75).left_out == ["REASON"]
    assert fit(columns, rows, 60).left_out == ["LAST", "REASON"]
    assert fit(columns, rows, 30).left_out == ["FIRST", "LAST", "REASON"]


def test_words_wrap_before_names_are_shortened():
    """A list of brokers gets as narrow as its longest name, while the topic stays whole."""
    fitted = fit([Column("TOPIC"), Column("BROKERS")], [["t" * 60, "broker-a, broker-b, broker-c"]], 72)

    assert fitted.rows == [["t" * 60, "broker-a, broker-b, broker-c"]]
    assert list(fitted.widths) == [60, 10]


def test_a_name_is_shortened_in_the_middle_where_nothing_else_helps():
    """Names often differ at their ends; the id beside it stays whole."""
    fitted = fit([Column("ID", flow="whole"), Column("TOPIC")], [[ID, "customer-orders-eu-west-1-production"]], 50)

    assert fitted.rows == [[ID, "customer…duction"]]


def test_a_column_of_negative_rank_is_left_out_when_shortening_is_not_enough():
    """While the others can be shortened it is shown."""
    columns = [Column("ID", flow="whole"), Column("FROM", spare=-1), Column("TOPIC")]
    rows = [[ID, "f" * 20, "t" * 20]]

    assert fit(columns, rows, 60).left_out == []
    assert fit(columns, rows, 50).left_out == ["FROM"]


def test_text_is_cut_at_its_end():
    """A body of any length stays on one line."""
    fitted = fit(
        [Column("ID", flow="whole"), Column("BODY", flow="text")], [[ID, '{"customer": 17, "paid": true}']], 50
    )

    assert fitted.rows == [[ID, '{"customer": 17…']]


def test_an_id_is_never_shortened():
    """Also if the line gets too long for the terminal."""
    fitted = fit([Column("ID", flow="whole"), COUNT], [[ID, "1,234,567,890"]], 20)

    assert fitted.rows == [[ID, "1,234,567,890"]]
    assert width_of(fitted) > 20


@pytest.mark.parametrize("width", [20, 33, 47, 80, 200])
def test_wide_characters_count_twice(width: int):
    """A name of Chinese characters takes two columns for each."""
    fitted = fit([Column("TOPIC"), COUNT], [["订单" * 20, "5"]], width)

    assert width_of(fitted) <= width
    assert cell_len(fitted.rows[0][0]) <= fitted.widths[0]
