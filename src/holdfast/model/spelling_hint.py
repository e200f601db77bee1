"""The known word that an unknown one may have been meant for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str], *, likeness: float = 0.75) -> str | None:
    """Return the known word that looks most like *word*, or None if none does."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=likeness)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question whether another, very similar word was meant; nothing if there is none."""
    found = closest(word, set(known) - {word})
    return "" if found is None else f"did you mean {found!r}?"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for the known word that looks most like *word*, or what there is to choose from."""
    known = sorted(known)
    found = closest(word, known, likeness=0.5)
    return f"; known are {', '.join(known)}" if found is None else f"; did you mean {found!r}?"
