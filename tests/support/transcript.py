"""Transcripts: files of commands with the output that was recorded for them.

    # Comments explain the story.
    send orders 0 first
    ----
    key    queue  offset  stored by
    first  0      0       broker-a

A block is a command, `----`, and its output up to an empty line. `run` executes every command and returns the file as
it is with the output of today: equal to the file, or the text to write in its place. Knows no command.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import msgspec

SEPARATOR = "----"
SILENT = "ok"
"""The output of a command that prints nothing."""


class TranscriptError(Exception):
    """A transcript that cannot be run. The text begins with the file and the line."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


class CommandError(Exception):
    """A command that is written wrongly. `run` adds the file and the line."""


class Block(msgspec.Struct, frozen=True):
    """A command with its recorded output.

    Attributes:
        line: The line of the command.
        preface: The comments and empty lines before it.
    """

    line: int
    preface: list[str]
    command: str
    output: list[str]


class Transcript(msgspec.Struct, frozen=True):
    """A file: its blocks, and the comments after the last of them."""

    path: Path
    blocks: list[Block]
    end: list[str]


def read_transcript(path: Path) -> Transcript:
    """Return the transcript in a file.

    Raises:
        TranscriptError: a command has no separator.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    blocks: list[Block] = []
    preface: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip() or line.startswith("#"):
            preface.append(line)
            at += 1
            continue
        if lines[at + 1 : at + 2] != [SEPARATOR]:
            raise TranscriptError(f"{path}:{at + 1}", f"{SEPARATOR} must follow the command {line.split()[0]!r}")
        end = next((number for number in range(at + 2, len(lines)) if not lines[number].strip()), len(lines))
        blocks.append(Block(at + 1, preface, line.strip(), lines[at + 2 : end]))
        preface, at = [], end
    return Transcript(path, blocks, preface)


def run(transcript: Transcript, execute: Callable[[str], str]) -> str:
    """Execute every command; return the text of the file with the output that they have now.

    Raises:
        TranscriptError: a command is written wrongly, or fails in a way that no output describes.
    """
    lines: list[str] = []
    for block in transcript.blocks:
        place = f"{transcript.path}:{block.line}"
        try:
            output = execute(block.command)
        except CommandError as error:
            raise TranscriptError(place, str(error)) from None
        except Exception as error:
            raise TranscriptError(place, f"{block.command!r} raised {type(error).__name__}: {error}") from error
        # An empty line would end the block.
        shown = [line.rstrip() for line in output.splitlines() if line.strip()]
        lines += [*block.preface, block.command, SEPARATOR, *(shown or [SILENT])]
    return "".join(f"{line}\n" for line in [*lines, *transcript.end])


def difference(transcript: Transcript, current: str) -> str:
    """Return what changed, with the place of the first change; empty if nothing did."""
    recorded = transcript.path.read_text(encoding="utf-8")
    if recorded == current:
        return ""
    before, after = recorded.splitlines(), current.splitlines()
    first = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(before))
    changes = difflib.unified_diff(before, after, "recorded", "now", n=4, lineterm="")
    place = f"{transcript.path}:{min(first, len(before) - 1) + 1}"
    return "\n".join([f"{place}: the output of a command changed", *changes])
