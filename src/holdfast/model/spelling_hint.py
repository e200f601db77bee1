"""Find the known word that is closest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str], *, likeness: float = 0.75) -> str | None:
    """Return the known word that is most similar to *word*, or None if none is similar enough."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=likeness)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that suggests a very similar known word, or an empty text."""
    found = closest(word, set(known) - {word})
    return "" if found is None else f"did you mean {found!r}?"


def hint_suffix(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the most similar known word, or `; known are ...` with all of them."""
    known = sorted(known)
    found = closest(word, known, likeness=0.5)
    return f"; known are {', '.join(known)}" if found is None else f"; did you mean {found!r}?"
