"""The words that the glossary has retired are gone from names and prose."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
TEXTS = sorted(
    [
        *(ROOT / "src").rglob("*.py"),
        *(path for path in (ROOT / "docs").glob("*.md") if path != GLOSSARY),
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
    ]
)
# A part of a name: of snake_case, of CamelCase, of CAPITALS.
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def read_retired() -> dict[str, list[str]]:
    """Return each retired word or phrase with the texts in which it is no use of the word."""
    section = GLOSSARY.read_text(encoding="utf-8").split("## Retired words")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z ,]+) \| [^|]+ \| ([^|]*)\|$", section, re.MULTILINE)
    return {
        word: re.findall(r"`([^`]+)`", exceptions)
        for words, exceptions in rows
        for word in words.split(", ")
        if words != "retired word"
    }


RETIRED = read_retired()
_ANY = re.compile(rf"\b({'|'.join(RETIRED)})\b")


def find_retired(text: str) -> list[str]:
    """Return the retired words of a line."""
    return [word for word in _ANY.findall(_to_words(text)) if _is_used(word, text)]


def _to_words(text: str) -> str:
    return " ".join(_PART.findall(text)).lower()


def _is_used(word: str, text: str) -> bool:
    for exception in RETIRED[word]:
        text = text.replace(exception, "")
    return re.search(rf"\b{word}\b", _to_words(text)) is not None


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_text_has_no_retired_word(path: Path):
    """The glossary says what to write instead."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    found = [
        f"{path.name}:{number}: {words}: {line.strip()}" for number, line in lines if (words := find_retired(line))
    ]

    assert not found, "see 'Retired words' in docs/glossary.md:\n" + "\n".join(found)


def test_no_module_is_named_with_a_retired_word():
    """File names are names, too."""
    assert [path.name for path in TEXTS if find_retired(path.stem)] == []


@pytest.mark.parametrize(
    "text", ["self._errands = errands", "class OldDesk:", "OLD_HOME = 1", "the pull goes on", "Somebody else has it"]
)
def test_a_retired_word_is_found(text: str):
    """In every way to write a name, and in prose."""
    assert find_retired(text)


@pytest.mark.parametrize("text", ["JAVA_HOME is not set", "a retold story", 'name="homes"', "producer.has_room(1)"])
def test_other_words_are_left_alone(text: str):
    """A word inside another one, and names of others."""
    assert find_retired(text) == []
