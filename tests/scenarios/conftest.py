"""Collects the transcripts of this folder: each `.txt` file is a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.transcript import TranscriptError, difference, read_transcript, run
from tests.support.transcript_commands import Commands


class OutputChanged(Exception):
    """A command printed something else than the file has."""


class TranscriptFile(pytest.File):
    """A file with one transcript."""

    def collect(self) -> Iterator[TranscriptItem]:
        """Yield the transcript as a test."""
        yield TranscriptItem.from_parent(self, name="transcript")


class TranscriptItem(pytest.Item):
    """A transcript that is compared, or rewritten with `--rewrite`."""

    def runtest(self) -> None:
        """Run the commands of the file."""
        path = self.path.relative_to(Path.cwd()) if self.path.is_relative_to(Path.cwd()) else self.path
        transcript = read_transcript(path)
        current = run(transcript, Commands().execute)
        changes = difference(transcript, current)
        if changes and self.config.getoption("rewrite"):
            path.write_text(current, encoding="utf-8")
        elif changes:
            raise OutputChanged(f"{changes}\nIf this is right: pytest {path} --rewrite, and review the difference")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override]
        """Return the place and the difference; the traceback of an unexpected error."""
        error = excinfo.value
        if isinstance(error, TranscriptError) and error.__cause__ is not None:
            return f"{super().repr_failure(excinfo)}\n{error}"
        return str(error) if isinstance(error, OutputChanged | TranscriptError) else str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the test is."""
        return self.path, 0, self.path.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> TranscriptFile | None:
    """Collect transcripts."""
    return TranscriptFile.from_parent(parent, path=file_path) if file_path.suffix == ".txt" else None
