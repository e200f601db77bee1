"""A file in `config/`, as RocketMQ writes it."""

import msgspec
import pytest

from holdfast.broker.tables.config_file import config_file
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk

PATH = "config/thing.json"


class Thing(msgspec.Struct, frozen=True):
    """The content of the file."""

    table: dict[int, int] = {}


def a_file(disk: SimDisk, table: dict[int, int]) -> KeptFile[Thing]:
    return config_file(Turn(), disk, "thing.json", Thing, lambda: Thing(table))


def test_integer_keys_are_written_in_quotes_and_read_either_way() -> None:
    disk = SimDisk()

    a_file(disk, {1: 2}).save_now()

    assert disk.read_file(PATH) == b'{"table":{"1":2}}'
    assert a_file(disk, {}).load() == Thing({1: 2})
    disk.replace(PATH, b'{"table":{1:3}}')
    assert a_file(disk, {}).load() == Thing({1: 3})


def test_the_previous_version_replaces_a_torn_file() -> None:
    """Java brokers may leave one torn."""
    disk = SimDisk()
    a_file(disk, {1: 1}).save_now()
    a_file(disk, {1: 2}).save_now()
    disk.replace(PATH, b'{"table":')

    assert a_file(disk, {}).load() == Thing({1: 1})


@pytest.mark.parametrize("content", [b"", b"{", b'{"table":[]}'])
def test_a_file_that_cannot_be_used_is_an_error(content: bytes) -> None:
    """To start without it would lose its content; the message names the file."""
    disk = SimDisk()
    disk.replace(PATH, content)

    with pytest.raises(StoreError, match=r"config/thing\.json"):
        a_file(disk, {}).load()
