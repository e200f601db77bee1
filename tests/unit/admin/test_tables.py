"""How answers look."""

import json

import pytest

from holdfast.admin.tables import (
    Facts,
    Table,
    cell_text,
    left,
    print_all,
    print_json,
    right,
    size_text,
    time_text,
)


def test_a_table_is_aligned_and_plain_in_a_pipe(capsys: pytest.CaptureFixture[str]):
    """No lines, no colours, no wrapping, nothing behind the last column."""
    long = "x" * 200
    print_all([Table([*left("NAME"), *right("COUNT"), *left("NOTE")], [("a", 1234, None), (long, 5, "ok")])])

    lines = capsys.readouterr().out.splitlines()

    assert lines == [
        f"NAME{' ' * 196}  COUNT  NOTE",
        f"a{' ' * 199}  1,234  -",
        f"{long}      5  ok",
    ]


def test_an_empty_table_says_so_in_words(capsys: pytest.CaptureFixture[str]):
    """A bare header would look like a failure."""
    print_all([Table(left("TOPIC"), [], empty="no topics yet")])

    assert capsys.readouterr().out == "no topics yet\n"


def test_parts_are_separated_by_an_empty_line(capsys: pytest.CaptureFixture[str]):
    """Facts, then a table with a title."""
    print_all(["done", Facts([("topic", "t"), ("messages", 5)]), Table(left("A"), [("1",)], title="Title")])

    assert capsys.readouterr().out == "done\n\ntopic     t\nmessages  5\n\nTitle\nA\n1\n"


def test_markup_in_names_is_not_obeyed(capsys: pytest.CaptureFixture[str]):
    """Names come from users: brackets are text."""
    print_all([Table(left("A"), [("[bold]x[/bold]",)]), Facts([("[red]", "[/]")]), "[blue]"])

    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]):
    """One line for programs."""
    print_json({"a": [1, None], "b": "ü"})

    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": [1, None], "b": "ü"}
    assert printed.count("\n") == 1


def test_cells_are_printed_for_people():
    """Nothing is a dash, large numbers have separators."""
    assert [cell_text(cell) for cell in (None, True, 1234567, 1234.56, "x")] == [
        "-",
        "yes",
        "1,234,567",
        "1,234.6",
        "x",
    ]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 50, "5120.0 TiB")]
)
def test_sizes_have_the_unit_that_fits(size: int, text: str):
    """Powers of 1024, as disks and logs are measured here."""
    assert size_text(size) == text


def test_no_time_is_none():
    """The wire writes -1 and 0 for never."""
    assert (time_text(None), time_text(-1), time_text(0)) == (None, None, None)
    assert str(time_text(1_763_229_023_123)).endswith(".123")
