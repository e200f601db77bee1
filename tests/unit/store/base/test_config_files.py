"""Configuration files with a copy of the one before."""

from __future__ import annotations

import pytest

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.config_files import load_config, plan_save, save_config


def test_javas_json_is_read():
    """Bare numbers as keys."""
    disk = SimDisk()
    disk.replace("config/consumerOffset.json", b'{"offsetTable":{"t@g":{0:52,1:3}}}')

    assert load_config(disk, "consumerOffset.json") == {"offsetTable": {"t@g": {"0": 52, "1": 3}}}


@pytest.mark.parametrize("torn", [None, b"", b'{"a":'])
def test_a_torn_file_gives_way_to_the_one_before(torn: bytes | None):
    """Missing, empty or cut off."""
    disk = SimDisk()
    disk.replace("config/topics.json.bak", b'{"a":1}')
    if torn is not None:
        disk.replace("config/topics.json", torn)

    assert load_config(disk, "topics.json") == {"a": 1}


def test_nothing_readable_is_nothing():
    """Then the broker begins with defaults."""
    disk = SimDisk()
    disk.replace("config/topics.json", b"garbage")

    assert load_config(disk, "topics.json") is None


def test_saving_keeps_what_was_there():
    """The copy is written first."""
    disk = SimDisk()

    save_config(disk, "topics.json", b"1")
    assert disk.list("config") == ["topics.json"]
    assert plan_save(disk, "topics.json", b"2") == [("config/topics.json.bak", b"1"), ("config/topics.json", b"2")]
    save_config(disk, "topics.json", b"2")

    assert (disk.read_file("config/topics.json"), disk.read_file("config/topics.json.bak")) == (b"2", b"1")
    assert plan_save(disk, "topics.json", b"2") == []


def test_saving_does_not_replace_the_copy_by_an_unreadable_file():
    """Until the new content is written, the copy is all there is; afterwards it is still one to fall back to."""
    disk = SimDisk()
    disk.replace("config/topics.json", b'{"a":')
    disk.replace("config/topics.json.bak", b'{"a":1}')

    assert plan_save(disk, "topics.json", b'{"a":2}') == [("config/topics.json", b'{"a":2}')]
    save_config(disk, "topics.json", b'{"a":2}')

    assert disk.read_file("config/topics.json.bak") == b'{"a":1}'
