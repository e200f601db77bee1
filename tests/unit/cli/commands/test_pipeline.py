"""`holdfast pipeline` as people and programs use it, without Spark: what it prints, and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make install-spark")

from tests.support.store_folders import StoreFolderBuilder, flip

from holdfast.cli.main import main
from holdfast.store.log.retention import RETENTION_HOLD_PATH


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolderBuilder:
    found = StoreFolderBuilder(tmp_path / "broker-a")
    found.append(b"the first", tags="t")
    found.fill(20)
    found.close()
    return found


def pipeline(*words: object) -> int:
    return main(["pipeline", *map(str, words), "--master", "none"])


def test_an_audit_says_by_its_status_whether_all_is_right(
    folder: StoreFolderBuilder, capsys: pytest.CaptureFixture[str]
):
    """0 or 1; programs get every fault."""
    assert pipeline("audit", folder) == 0
    assert "every checksum is right" in capsys.readouterr().out

    flip(folder.log_path(0), skip=89)

    assert pipeline("audit", f"mine={folder}", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [(fault["kind"], fault["broker"], fault["at"]) for fault in found["faults"]] == [("checksum", "mine", 0)]


def test_statistics_can_be_a_page(folder: StoreFolderBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Beside the tables."""
    assert pipeline("stats", folder, "--html", tmp_path / "stats.html", "--hot", 3) == 0

    assert "orders" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "stats.html").read_text(encoding="utf-8")


def test_an_archive_is_added_to_and_retention_is_told(
    folder: StoreFolderBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """And released by a word."""
    assert pipeline("archive", folder, "--to", tmp_path / "archive", "--topic", "ord*", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"orders": 21}
    assert (folder.root / RETENTION_HOLD_PATH).exists()

    assert main(["pipeline", "release", str(folder)]) == 0

    assert not (folder.root / RETENTION_HOLD_PATH).exists()


def test_a_word_to_retention_that_cannot_be_read_shows_in_the_status(
    folder: StoreFolderBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Everything is archived, and it says what to do about what is not removed any more."""
    words = ("archive", folder, "--to", tmp_path / "archive")
    assert pipeline(*words) == 0
    (folder.root / RETENTION_HOLD_PATH).write_bytes(b"{")

    assert pipeline(*words) == 1
    assert f"holdfast pipeline release {folder.root}" in " ".join(capsys.readouterr().out.split())
    assert pipeline(*words, "--json") == 1
    assert json.loads(capsys.readouterr().out)["stuck"] == [str(folder.root)]

    assert main(["pipeline", "release", str(folder)]) == 0
    assert pipeline(*words) == 0


def test_a_message_that_is_missing_shows_in_the_status(folder: StoreFolderBuilder, tmp_path: Path):
    """What was archived before stays."""
    flip(folder.log_path(0), skip=89)

    assert pipeline("archive", folder, "--to", tmp_path / "archive", "--no-hold") == 1
    assert pipeline("archive", folder, "--to", tmp_path / "archive", "--no-hold") == 0


def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A folder that is none, and a backfill without Spark."""
    assert pipeline("audit", tmp_path) == 2
    assert pipeline("backfill", tmp_path, "--to", "orders", "--state", tmp_path / "state") == 2

    told = capsys.readouterr().err.splitlines()
    assert told[0].endswith("is not a store folder: it has no commitlog/")
    assert told[1] == "holdfast: a backfill needs Spark: give another --master"


def test_who_lacks_spark_is_told_what_to_install(folder: StoreFolderBuilder):
    """It is an extra."""
    script = (
        "import sys; sys.modules.update(pyspark=None); from holdfast.cli.main import main; "
        f"sys.exit(main(['pipeline', 'audit', {str(folder)!r}]))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "holdfast pipeline needs pyspark, which is not installed: run `pip install " in done.stderr
    assert "'pyspark<" in done.stderr
