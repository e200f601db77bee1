"""Guessing what a word was meant to be."""

from holdfast.model.nearest import nearest


def test_a_misspelt_word_gets_the_one_it_looks_like():
    """One good guess is better than a list."""
    assert nearest("flsuh", ["flush", "store", "listen"]) == "; did you mean 'flush'?"


def test_a_word_like_nothing_gets_the_whole_list():
    """Where no guess is good, the choices are shown."""
    assert nearest("xyzzy", ["store", "flush"]) == "; known are flush, store"
