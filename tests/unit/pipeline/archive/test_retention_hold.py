"""What archives say to retention: each for itself, and none takes back what another said."""

from pathlib import Path

import msgspec
import pytest

from holdfast.pipeline.archive.retention_hold import hold_retention, release_retention
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.log.retention import RETENTION_HOLD_PATH, find_retention_hold


def test_the_log_is_kept_for_the_archive_that_is_furthest_behind(tmp_path: Path):
    """Each has its own position, which moves with it."""
    hold_retention(str(tmp_path), "/one", 500)
    hold_retention(str(tmp_path), "/other", 300)
    assert find_retention_hold(PosixDisk(tmp_path)) == 300

    hold_retention(str(tmp_path), "/other", 900)
    assert find_retention_hold(PosixDisk(tmp_path)) == 500
    assert msgspec.json.decode((tmp_path / RETENTION_HOLD_PATH).read_bytes()) == {
        "positions": {"/one": 500, "/other": 900}
    }


@pytest.mark.parametrize("damage", [b"{", b"", b'{"positions": {"\xff": 1}}', b'{"positions": {"/one": "x"}}'])
def test_a_hold_that_is_damaged_keeps_everything_until_it_is_released(tmp_path: Path, damage: bytes):
    """One archive cannot know what others had said, and must not let go of what they have not got."""
    assert hold_retention(str(tmp_path), "/one", 500)
    assert hold_retention(str(tmp_path), "/other", 300)
    (tmp_path / RETENTION_HOLD_PATH).write_bytes(damage)

    assert not hold_retention(str(tmp_path), "/one", 600)

    assert find_retention_hold(PosixDisk(tmp_path)) == 0
    release_retention(str(tmp_path))
    assert hold_retention(str(tmp_path), "/one", 600)
    assert find_retention_hold(PosixDisk(tmp_path)) == 600


def test_what_is_released_is_held_by_nobody(tmp_path: Path):
    """Also where nothing was held."""
    release_retention(str(tmp_path))
    hold_retention(str(tmp_path), "/one", 500)

    release_retention(str(tmp_path))

    assert find_retention_hold(PosixDisk(tmp_path)) is None
