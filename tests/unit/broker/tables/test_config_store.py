import msgspec
import pytest

from holdfast.broker.tables.config_store import load_config, report_fallbacks, save_config, write_config
from holdfast.machine.effects import WriteFile
from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk


class Thing(msgspec.Struct, frozen=True):
    """What is in the file."""

    table: dict[int, int] = {}


def test_a_file_that_was_never_written_is_none() -> None:
    """A new broker begins with its own defaults."""
    assert load_config(SimDisk(), "thing.json", Thing) is None


def test_what_was_saved_is_loaded() -> None:
    """Integer keys are written in quotes and read either way."""
    disk = SimDisk()

    save_config(disk, "thing.json", Thing({1: 2}))

    assert disk.read_file("config/thing.json") == b'{"table":{"1":2}}'
    assert load_config(disk, "thing.json", Thing) == Thing({1: 2})
    disk.replace("config/thing.json", b'{"table":{1:3}}')
    assert load_config(disk, "thing.json", Thing) == Thing({1: 3})


def test_the_version_before_steps_in_for_a_broken_file() -> None:
    """Java brokers may leave one torn."""
    disk = SimDisk()
    save_config(disk, "thing.json", Thing({1: 1}))
    save_config(disk, "thing.json", Thing({1: 2}))
    disk.replace("config/thing.json", b'{"table":')

    assert load_config(disk, "thing.json", Thing) == Thing({1: 1})


@pytest.mark.parametrize("content", [b"{", b'{"table":[]}'])
def test_a_file_that_means_nothing_is_an_error(content: bytes) -> None:
    """Silence would lose what was in it; the message names the file."""
    disk = SimDisk()
    disk.replace("config/thing.json", content)

    with pytest.raises(StoreError, match=r"config/thing\.json"):
        load_config(disk, "thing.json", Thing)


def test_a_save_off_the_loop_writes_the_same_two_files() -> None:
    """Nothing at all when nothing changed."""
    disk = SimDisk()
    save_config(disk, "thing.json", Thing({1: 1}))

    assert write_config(disk, "thing.json", Thing({1: 2})) == [
        WriteFile("config/thing.json.bak", b'{"table":{"1":1}}', is_retried=True),
        WriteFile("config/thing.json", b'{"table":{"1":2}}', is_retried=True),
    ]
    assert write_config(disk, "thing.json", Thing({1: 1})) == []


def test_a_file_whose_predecessor_is_used_is_told() -> None:
    """What was last changed in it is forgotten: somebody may have to change it again. Whole files say nothing."""
    disk = SimDisk()
    for name in ("topics.json", "whole.json", "gone.json"):
        disk.replace(f"config/{name}.bak", b"{}")
    disk.replace("config/topics.json", b'{"topicConfigTable":{"T1":')
    disk.replace("config/whole.json", b"{}")

    lines = report_fallbacks(disk, ["topics.json", "whole.json", "gone.json", "never.json"])

    assert [line.fields for line in lines] == [
        {"file": "config/topics.json", "used": "config/topics.json.bak"},
        {"file": "config/gone.json", "used": "config/gone.json.bak"},
    ]
    assert {line.level for line in lines} == {"warning"}
