"""The list of planted bugs belongs to this source tree."""

import pytest
from tests.mutants.generate import ROOT, Mutant, mutants_of, read_mutants
from tests.mutants.run import LIST

MUTANTS = read_mutants(LIST)
SOURCE = "def is_full(count):\n    if count >= MAX:\n        stop()\n    return count >= MAX and True\n"


def test_the_list_is_complete():
    """Two hundred changes, each of them once."""
    assert len({(it.file, it.function, it.old, it.new, it.nth) for it in MUTANTS}) == 200


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda it: f"{it.file}:{it.function}")
def test_a_mutant_changes_the_source(mutant: Mutant):
    """Its text is still there, the tests that notice it are, too, and the result is Python."""
    text = (ROOT / mutant.file).read_text()

    changed = mutant.apply(text)

    assert changed != text
    compile(changed, mutant.file, "exec")
    assert mutant.killed_by is not None, "no test notices it: write one, or choose another mutant"
    assert (ROOT / mutant.killed_by).is_file()


def test_every_kind_of_change_is_made():
    """At the right one of two equal texts."""
    changed = [mutant.apply(SOURCE) for mutant in mutants_of("a.py", SOURCE)]

    assert SOURCE.replace("if count >= MAX", "if count > MAX") in changed
    assert SOURCE.replace("return count >= MAX", "return count > MAX") in changed
    assert SOURCE.replace("stop()", "pass") in changed
    assert SOURCE.replace("count >= MAX and True", "(count >= MAX) or True") in changed


def test_a_mutant_whose_text_is_gone_is_an_error():
    """Instead of a run that checks nothing."""
    mutant = Mutant("a.py", "is_full", "count < MAX", "count <= MAX", 0)

    with pytest.raises(LookupError, match="no longer has"):
        mutant.apply(SOURCE)
