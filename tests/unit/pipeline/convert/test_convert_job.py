"""The index of a topic, converted by tasks: the same files, the same notes, the same refusals."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.conversions import convert, fill_store, plain_disk, read_served
from tests.support.stores import SMALL

from holdfast.cli.main import main
from holdfast.model.errors import ConfigError, DiskFailed, StoreError
from holdfast.pipeline.convert.convert_job import ConvertResult, convert_index, to_report
from holdfast.pipeline.scan.tasks import InProcess, Progress
from holdfast.runtime.posix_disk import PosixDisk, PosixFile
from holdfast.store.recovery.conversion_plan import IndexKind, load_progress


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    disk: Any = PosixDisk(tmp_path / "broker-a")
    plain_disk(disk)
    fill_store(disk, 31)
    return tmp_path / "broker-a"


def run(folder: Path, to: IndexKind, tasks: Any = None, **settings: int) -> ConvertResult:
    settings = {"piece_size": 4, "wave": 3} | settings
    return convert_index(tasks or InProcess(), [str(folder)], "orders", to, options=SMALL, **settings)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Stopped(BaseException):
    pass


class StoppedTasks(InProcess):
    """Ends after some tasks, of which there is one for each piece."""

    cores = 8

    def __init__(self, count: int) -> None:
        self._left = count

    def run(
        self, function: Callable[[Any], Any], inputs: Sequence[Any], result_type: Any, progress: Progress
    ) -> list[Any]:
        def work(each: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Stopped
            return function(each)

        return super().run(work, inputs, result_type, progress)


def test_tasks_make_what_the_command_makes(folder: Path, tmp_path: Path):
    """File by file; and back again what there was."""
    shutil.copytree(folder, tmp_path / "other")
    before, whole = read_served(PosixDisk(tmp_path / "other")), files_below(folder / "consumequeue")
    convert(PosixDisk(tmp_path / "other"), "batch")

    found = run(folder, "batch")

    assert files_below(folder / "batchconsumequeue") == files_below(tmp_path / "other" / "batchconsumequeue")
    assert [store.converted for store in found.stores] == [31]
    assert [(each.queue, each.entries, each.new_bytes) for each in found.stores[0].queues] == [
        (0, 16, 736),
        (1, 15, 690),
    ]
    assert read_served(PosixDisk(folder)) == before
    run(folder, "simple")
    assert files_below(folder / "consumequeue") == whole


@pytest.mark.parametrize("count", [0, 3, 7])
def test_a_stopped_run_is_gone_on_with(folder: Path, count: int):
    """By whole waves: those that were done are not done again. The command may go on with it, too."""
    before = read_served(PosixDisk(folder))
    with pytest.raises(Stopped):
        run(folder, "batch", StoppedTasks(count))
    progress = load_progress(PosixDisk(folder), "orders")
    assert progress is not None
    assert progress.done == ([(0, count // 3 * 3)] if count else [])

    found = run(folder, "batch")

    assert found.stores[0].resumed
    assert read_served(PosixDisk(folder)) == before


def test_what_was_begun_by_tasks_is_ended_by_the_command(folder: Path):
    """And the other way round: the notes are the same."""
    before = read_served(PosixDisk(folder))
    with pytest.raises(Stopped):
        run(folder, "batch", StoppedTasks(5))

    convert(PosixDisk(folder), "batch")

    assert read_served(PosixDisk(folder)) == before


def test_what_may_not_be_on_disk_is_not_served(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """It is synced while the next pieces are converted: nobody switches before all of that has ended well."""
    before = read_served(PosixDisk(folder))

    def fail(file: PosixFile) -> None:
        raise DiskFailed(f"{file.path} is lost")

    with monkeypatch.context() as patch:
        patch.setattr(PosixFile, "sync", fail)
        with pytest.raises(DiskFailed, match="is lost"):
            run(folder, "batch")

    progress = load_progress(PosixDisk(folder), "orders")
    assert progress is not None
    assert (progress.state, progress.done) == ("building", [])
    assert read_served(PosixDisk(folder)) == before


def test_all_folders_are_built_before_any_is_switched(folder: Path, tmp_path: Path):
    """One that cannot be converted leaves the others as they were."""
    other = tmp_path / "broker-b"
    shutil.copytree(folder, other)
    path = other / "consumequeue" / "orders" / "1" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[40:60] = data[60:80]
    path.write_bytes(data)

    with pytest.raises(StoreError, match="queue 1 of topic orders has message 2"):
        convert_index(InProcess(), [str(folder), str(other)], "orders", "batch", options=SMALL)

    assert (folder / "consumequeue" / "orders").is_dir()


def test_what_is_right_already_is_left_alone(folder: Path):
    """The report says so."""
    found = run(folder, "simple")

    assert found.stores[0].queues == []
    assert "nothing to convert" in to_report(found).tables[0].empty


def test_a_folder_that_is_none_is_refused(tmp_path: Path):
    """Nothing is made there."""
    with pytest.raises(ConfigError, match="is not a store folder"):
        run(tmp_path / "nowhere", "batch")


def test_the_command_runs_it(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Without Spark here; for programs and for people."""
    words = ["pipeline", "convert-index", str(folder), "--topic", "orders", "--to", "batch", "--master", "none"]

    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["topic"], found["stores"][0]["converted"]) == ("orders", 31)
    assert main(words) == 0
    assert "orders has an index by record (batch)" in capsys.readouterr().out
