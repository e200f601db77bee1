"""What somebody may have meant by a word that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for the known word that looks most like *word*, or what there is to choose from."""
    known = sorted(known)
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else f"; known are {', '.join(known)}"
