"""Configuration files with a copy of the one before."""

from __future__ import annotations

import pytest

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.config_files import load_config


def test_javas_json_is_read():
    """Bare numbers as keys."""
    disk = SimDisk()
    disk.replace("config/consumerOffset.json", b'{"offsetTable":{"t@g":{0:52,1:3}}}')

    assert load_config(disk.read_file, "consumerOffset.json") == {"offsetTable": {"t@g": {"0": 52, "1": 3}}}


@pytest.mark.parametrize("torn", [None, b"", b'{"a":'])
def test_a_torn_file_gives_way_to_the_one_before(torn: bytes | None):
    """Missing, empty or cut off."""
    disk = SimDisk()
    disk.replace("config/topics.json.bak", b'{"a":1}')
    if torn is not None:
        disk.replace("config/topics.json", torn)

    assert load_config(disk.read_file, "topics.json") == {"a": 1}


def test_nothing_readable_is_nothing():
    """Then the broker begins with defaults."""
    disk = SimDisk()
    disk.replace("config/topics.json", b"garbage")

    assert load_config(disk.read_file, "topics.json") is None
