"""The audit file: real files, and a real full disk where the system has one."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.machine.effects import AuditKind, Log
from holdfast.model.errors import ConfigError
from holdfast.runtime.access import audit_file
from holdfast.runtime.access.audit_file import LINES_MAX, NOT_WRITTEN, WINDOW_S, AuditFile


class Audited:
    """An audit file, the log beside it, and a clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logged: list[Log] = []
        self.now = 100.0
        self.file = AuditFile(str(path), "broker b", self.logged.append, lambda: self.now)

    def emit(self, kind: AuditKind | None = "change", event: str = "changed", **fields: object) -> None:
        self.file.emit(Log("info", event, fields, kind))

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    return Audited(tmp_path / "audit.jsonl")


def test_audit_lines_are_in_the_file_and_all_lines_in_the_log(audited: Audited) -> None:
    """In order, with the time and the server."""
    audited.emit("change", user="ann", code=17)
    audited.emit(None, "something else")
    audited.emit("refusal", reason="no\nline break")

    assert [line.event for line in audited.logged] == ["changed", "something else", "changed"]
    first, second = audited.entries()
    assert (first["kind"], first["event"], first["user"], first["code"]) == ("change", "changed", "ann", 17)
    assert first["server"] == "broker b"
    assert first["time"].endswith("+00:00")
    assert second["reason"] == "no\nline break"


def test_only_the_owner_can_read_the_file_and_it_is_continued(audited: Audited) -> None:
    """A second start appends."""
    audited.emit()
    audited.file.close()
    assert audited.path.stat().st_mode & 0o777 == 0o600

    Audited(audited.path).emit()

    assert len(audited.entries()) == 2


@pytest.mark.parametrize("what", ["shared", "folder", "missing", "device"])
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, what: str) -> None:
    """With its name and the reason."""
    path = tmp_path / "audit.jsonl"
    if what == "shared":
        path.touch(0o644)
    elif what == "folder":
        path.mkdir()
    elif what == "missing":
        path = tmp_path / "no" / "audit.jsonl"
    else:
        path = Path("/dev/null")

    with pytest.raises(ConfigError, match=f"audit_file: .*{path.name}"):
        Audited(path)


def test_a_file_that_was_moved_away_is_followed_by_a_new_one(audited: Audited) -> None:
    """As logrotate does it."""
    audited.emit(user="before")
    moved = audited.path.rename(audited.path.with_suffix(".1"))
    audited.emit(user="after")

    assert json.loads(moved.read_text())["user"] == "before"
    assert [entry["user"] for entry in audited.entries()] == ["after"]
    assert audited.path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_cannot_be_written_is_an_error_in_the_log(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the line. The next one is written, and whole, when there is space again."""
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed by the file that takes it over
    own = audited.file._descriptor
    with monkeypatch.context() as patched:
        patched.setattr(audited.file, "_follow_rotation", lambda: None)
        audited.file._descriptor = full.fileno()
        audited.emit(user="lost")
        audited.file._descriptor = own

    (error,) = [line for line in audited.logged if line.event == NOT_WRITTEN]
    assert error.level == "error"
    assert error.fields["reason"] == "No space left on device"
    assert "lost" in str(error.fields["line"])
    audited.emit(user="kept")
    assert [entry["user"] for entry in audited.entries()] == ["kept"]
    full.close()


def test_after_half_a_line_the_next_one_begins_a_new_line(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up accepts a part."""
    write, sizes = audit_file.os.write, iter([10, -1])

    def write_part(descriptor: int, data: Any) -> int:
        size = next(sizes, None)
        if size == -1:
            raise OSError(28, "No space left on device")
        return write(descriptor, data if size is None else data[:size])

    monkeypatch.setattr(audit_file.os, "write", write_part)
    audited.emit(user="torn")
    audited.emit(user="whole")

    torn, whole = audited.path.read_text().splitlines()
    assert len(torn) == 10
    assert json.loads(whole)["user"] == "whole"
    assert audited.logged[1].event == NOT_WRITTEN


def test_a_flood_of_refusals_is_counted_and_changes_are_never_left_out(audited: Audited) -> None:
    """Anybody can be refused; nobody may fill the disk."""
    for _ in range(LINES_MAX + 7):
        audited.emit("refusal")
    audited.emit("change")
    audited.emit("login")
    kinds = [entry["kind"] for entry in audited.entries()]
    assert kinds == ["refusal"] * LINES_MAX + ["change", "login"]

    audited.now += WINDOW_S
    audited.emit("refusal", user="next")

    counted, following = audited.entries()[-2:]
    assert (counted["kind"], counted["event"], counted["times"]) == ("refusal", "not recorded", 7)
    assert following["user"] == "next"


def test_what_was_left_out_is_counted_at_the_end(audited: Audited) -> None:
    """An orderly stop loses no number."""
    for _ in range(LINES_MAX + 2):
        audited.emit("login")
    audited.file.close()

    assert audited.entries()[-1]["times"] == 2
