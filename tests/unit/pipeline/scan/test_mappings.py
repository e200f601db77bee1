"""The mapping of a store folder: its snapshot, and the changes in the log after it."""

from pathlib import Path

import msgspec
from tests.support.store_folders import StoreFolderBuilder

from holdfast.broker.mapping.mapping_journal import ChangeRecord, MappingChange
from holdfast.model.topic import MAPPING_TOPIC
from holdfast.pipeline.scan.mappings import load_mapping
from holdfast.pipeline.scan.store_folder import inspect_store


def test_changes_after_the_snapshot_count(tmp_path: Path):
    """In the order of the log; a record that changes no mapping is passed over."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    folder.write_mapping("orders", {}, epoch=1)
    changes = [MappingChange(topic="orders", epoch=epoch, total=8, is_whole=True) for epoch in (2, 3)]
    for record in (ChangeRecord(mapping=changes[0]), ChangeRecord(), ChangeRecord(mapping=changes[1])):
        folder.append(msgspec.json.encode(record), topic=MAPPING_TOPIC)
    folder.close()

    found = load_mapping(inspect_store(str(folder), "broker-a"))

    assert (found.topics["orders"].epoch, found.topics["orders"].total) == (3, 8)
