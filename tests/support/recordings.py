"""Recorded traffic between Java components; `tests/data/frames/README.md` says what a line holds."""

import base64
import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.wire.frames.command import Command, decode_command
from holdfast.wire.frames.frame import Frame, split_frames

FOLDER = Path(__file__).parent.parent / "data" / "frames"


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One frame as it went over the wire, and what the recorder read in it."""

    file: str
    line: dict[str, Any]
    data: bytes

    @property
    def frame(self) -> Frame:
        """The frame, split."""
        (frame,), consumed = split_frames(memoryview(self.data))
        assert consumed == len(self.data)
        return frame

    @property
    def command(self) -> Command:
        """The frame, decoded."""
        return decode_command(self.frame)

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return bool(self.line["flag"] & 1)

    @property
    def code(self) -> int | None:
        """The request code that it is about, on the way there and on the way back; None when that is unknown."""
        code = self.line["re"] if self.is_response else self.line["code"]
        return None if code is None else int(code)

    def __str__(self) -> str:
        return f"{self.file}:{self.line['n']}"


def file_names(pattern: str = "*") -> list[str]:
    """Return the names of all recordings that match *pattern*, without their endings."""
    return sorted(file.name.removesuffix(".jsonl.gz") for file in FOLDER.glob(f"{pattern}.jsonl.gz"))


@cache
def read(name: str) -> tuple[RecordedFrame, ...]:
    """Return everything of one recording, in order."""
    text = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes()).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    return tuple(RecordedFrame(name, line, base64.b64decode(line.pop("frame"))) for line in lines)


def all_frames() -> list[RecordedFrame]:
    """Return every recorded frame."""
    return [recorded for name in file_names() for recorded in read(name)]
