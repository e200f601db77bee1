"""A store folder seen from outside: whoever looked leaves no trace."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.descriptors import open_files
from tests.support.store_folders import StoreFolderBuilder, flip

from holdfast.pipeline.archive.archive_job import archive
from holdfast.pipeline.audit.audit_job import audit
from holdfast.pipeline.scan.tasks import InProcess
from holdfast.pipeline.stats.stats_job import stats

Job = Callable[[str, Path], object]
JOBS: dict[str, Job] = {
    "audit": lambda store, _: audit(InProcess(), [store], range_size=4000),
    "stats": lambda store, _: stats(InProcess(), [store], range_size=4000),
    "archive": lambda store, target: archive(InProcess(), [store], str(target), range_size=4000),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("is_damaged", [False, True], ids=["right", "damaged"])
def test_a_job_leaves_no_file_open(tmp_path: Path, job: Job, *, is_damaged: bool):
    """A process of Spark's does thousands of tasks; and a file that retention takes gives its room back."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    folder.fill()
    folder.close()
    if is_damaged:
        flip(folder.entry_path(3))
    before = open_files(folder.root)

    job(str(folder), tmp_path / "archive")

    assert open_files(folder.root) <= before
