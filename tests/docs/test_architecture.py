"""The map names files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
NAMED = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py|tests/[a-z_/]+)`")
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "benchmarks" not in page.parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_exists(page: Path):
    """A renamed module leaves no dead reference behind."""
    named = NAMED.findall(page.read_text(encoding="utf-8"))

    assert [name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()] == []


def test_the_map_names_the_modules_of_its_walks():
    """A test over no names would pass."""
    assert len(NAMED.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))) > 50
