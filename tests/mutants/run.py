"""Applies each mutant of the list to a copy of the source and runs tests, which must fail.

    .venv/bin/python -m tests.mutants.run           # runs the tests that are known to fail with each mutant
    .venv/bin/python -m tests.mutants.run --find    # looks for such tests and prints the completed list

Every mutant of the list has such a test. One that gets into the list needs a test that notices it, or another mutant
takes its place: no test can notice a change that nobody can observe.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue

from tests.mutants.generate import ROOT, Mutant, read_mutants

LIST = Path(__file__).with_name("mutants.jsonl")
WORKERS = 3

# A mutant can make a test wait for ever: that is a failure, too.
_SECONDS = 240
_PASSED, _NO_TESTS = 0, 5


class Copies:
    """Copies of the source tree, one for each worker."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: Queue[Path] = Queue()
        for number in range(count):
            copy = folder / str(number)
            shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
            self._free.put(copy)

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[Path]:
        """Lend a copy of the source that has the mutant."""
        copy = self._free.get()
        path = copy / mutant.file
        original = (ROOT / mutant.file).read_text()
        path.write_text(mutant.apply(original))
        try:
            yield copy / "src"
        finally:
            path.write_text(original)
            self._free.put(copy)


def fails(source: Path, tests: str) -> str | None:
    """Run tests against a source tree. Return the file of the test that failed, or None if all passed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "60"]
    command += ["-m", "not slow and not interop and not spark", tests]
    surroundings = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return tests
    if done.returncode in {_PASSED, _NO_TESTS}:
        return None
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED tests/", "ERROR tests/")):
            return line.split()[1].split("::")[0]
    return tests


def suites_for(file: str, *, is_thorough: bool) -> list[str]:
    """Return the tests that may notice a change of a source file, the nearest first.

    A thorough search also runs the suites that start whole clusters: minutes for each mutant that survives.
    """
    parts = Path(file).relative_to("src/holdfast").with_suffix("").parts
    folder = Path("tests/unit").joinpath(*parts[:-1])
    near = [folder / f"test_{parts[-1]}.py"]
    while folder != Path("tests/unit"):
        near.append(folder)
        folder = folder.parent
    wide = ("conformance", "properties", "batches", "scope", "push", "integration", "sim", "unit")
    near += [Path("tests", name) for name in wide if is_thorough]
    return [str(path) for path in near if (ROOT / path).exists()]


def find_tests(copies: Copies, mutant: Mutant, *, is_thorough: bool) -> Mutant:
    """Return the mutant with the tests that notice it, or unchanged if none of them does."""
    with copies.with_mutant(mutant) as source:
        for tests in suites_for(mutant.file, is_thorough=is_thorough):
            failed = fails(source, tests)
            if failed is not None:
                return replace(mutant, killed_by=failed)
    return mutant


def survives(copies: Copies, mutant: Mutant) -> bool:
    """Return whether the tests that should notice a mutant pass with it, or none are named."""
    if mutant.killed_by is None:
        return True
    if not (ROOT / mutant.killed_by).exists():
        raise FileNotFoundError(f"{mutant.killed_by} is gone: name the tests that notice {mutant.line()}")
    with copies.with_mutant(mutant) as source:
        return fails(source, mutant.killed_by) is None


def main() -> int:
    """Check the list, or complete it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--find", action="store_true", help="look for tests that notice the mutants that have none")
    parser.add_argument("--thorough", action="store_true", help="with --find: also in the suites that start clusters")
    options = parser.parse_args()
    mutants = read_mutants(LIST)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        copies = Copies(Path(folder), WORKERS)
        if options.find:
            find = partial(find_tests, copies, is_thorough=options.thorough)
            unnoticed = 0
            for number, mutant in enumerate(pool.map(lambda it: it if it.killed_by else find(it), mutants), 1):
                sys.stdout.write(mutant.line() + "\n")
                sys.stdout.flush()
                unnoticed += mutant.killed_by is None
                sys.stderr.write(f"\r{number} of {len(mutants)}, {unnoticed} without a test")
            return 1 if unnoticed else 0
        alive = []
        for number, mutant in enumerate(pool.map(lambda it: it if survives(copies, it) else None, mutants), 1):
            if mutant is not None:
                alive.append(mutant)
            sys.stderr.write(f"\r{number} of {len(mutants)}, {len(alive)} survived")
    sys.stdout.write(f"\n{len(mutants) - len(alive)} of {len(mutants)} mutants are noticed\n")
    for mutant in alive:
        sys.stdout.write(f"survived: {mutant.line()}\n")
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())
