"""Guessing what a word was meant to be."""

from holdfast.model.spelling_hint import did_you_mean, hint_suffix


def test_a_misspelt_word_gets_the_one_it_looks_like():
    """One good guess is better than a list."""
    assert hint_suffix("flsuh", ["flush", "store", "listen"]) == "; did you mean 'flush'?"


def test_a_word_like_nothing_gets_the_whole_list():
    """Where no guess is good, the choices are shown."""
    assert hint_suffix("xyzzy", ["store", "flush"]) == "; known are flush, store"


def test_only_a_very_similar_word_is_asked_about():
    """Among names that users chose; never the word itself."""
    assert did_you_mean("ordrs", ["orders", "payments", "ordrs"]) == "did you mean 'orders'?"
    assert did_you_mean("invoices", ["orders", "payments"]) == ""
