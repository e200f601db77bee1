"""A log file that was rolled early: its unused rest is no data."""

from pathlib import Path

from tests.support.store_folders import FILES, NOW_MS, StoreFolderBuilder

from holdfast.pipeline.archive import archive_job
from holdfast.pipeline.archive.archive_job import archive
from holdfast.pipeline.audit.audit_job import audit
from holdfast.pipeline.scan.tasks import InProcess
from holdfast.pipeline.stats.stats_job import stats


def test_reports_count_records_and_not_files(tmp_path: Path):
    """A large message did not fit into the rest of the first file: half of the log was never written."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    for size in (10, 5000, 5000):
        folder.append(b"x" * size, now_ms=NOW_MS)
    folder.close()

    counted = stats(InProcess(), [str(folder)])
    records = sum(queue.size for queue in counted.queues)
    audited = audit(InProcess(), [str(folder)])
    archived = archive(InProcess(), [str(folder)], str(tmp_path / "archive"), holds=False)

    assert records < FILES.log_file_size + 4000 < folder.store.written
    assert counted.size == audited.size == audited.stores[0].size == archived.read == records
    assert dict(archive_job.to_report(archived).facts)["log read"] == "10.1 KiB"
