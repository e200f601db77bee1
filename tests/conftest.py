"""What holds for every test. The gate tries the same examples each time; `--hypothesis-profile=explore` new ones."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.support.descriptors import open_descriptors

# What many tests share stays open to the end: a loop in the background, the way to a JVM.
DESCRIPTORS_MAX = 50

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("gate")


@pytest.fixture(scope="session", autouse=True)
def closed_in_the_end() -> Iterator[None]:
    """Let everything that tests opened be closed when all of them have ended; what leaks is named here."""
    before = open_descriptors()
    yield
    gc.collect()
    left = [what for number, what in open_descriptors().items() if before.get(number) != what]
    assert len(left) <= DESCRIPTORS_MAX, f"{len(left)} descriptors are open still: {Counter(left).most_common(20)}"
