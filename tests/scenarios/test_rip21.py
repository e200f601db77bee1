"""The transcripts of RIP-21 end with the tables of the proposal, which `tests/data/rip21/tables.md` contains."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TABLES = (FOLDER.parent / "data" / "rip21" / "tables.md").read_text(encoding="utf-8").split("\n## Table ")[1:]
_COMMAND = "holdfast queue list orders --by-broker\n----\n"


def proposed(number: int) -> list[list[str]]:
    """Return the rows of a table of the proposal, the names of the columns first."""
    rows = [line.strip("|").split("|") for line in TABLES[number - 1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def recorded(number: int) -> list[list[str]]:
    """Return the last list of queues in a transcript, the names of the columns first."""
    (path,) = FOLDER.glob(f"rip21_{number}_*.txt")
    output = path.read_text(encoding="utf-8").rpartition(_COMMAND)[2].partition("\n\n")[0]
    return [line.split() for line in output[output.index("brokerName") :].splitlines()]


@pytest.mark.parametrize("number", range(1, 9))
def test_a_transcript_ends_with_the_table_of_the_proposal(number: int):
    """In the columns that the table has: the first one shows no status."""
    table = proposed(number)

    assert [row[: len(table[0])] for row in recorded(number)] == table


@pytest.mark.parametrize("number", range(1, 9))
def test_a_transcript_begins_with_the_sentence_of_its_table(number: int):
    """Word by word; a transcript may quote the end of it."""
    (path,) = FOLDER.glob(f"rip21_{number}_*.txt")
    comment = " ".join(line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "#")
    quoted = re.search(f'RIP-21, table {number}: "([^"]+?)[.]?"', comment)

    assert quoted is not None
    assert quoted.group(1) in TABLES[number - 1]


def test_all_tables_are_there():
    """A transcript of a table that was removed would be compared with another one."""
    assert len(TABLES) == len(list(FOLDER.glob("rip21_*.txt"))) == 8
