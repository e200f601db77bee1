"""The KV store alone."""

import pytest

from holdfast.machine.effects import SendBytes, WriteFile
from holdfast.machine.events import ChannelId
from holdfast.machine.request import Request
from holdfast.machine.turn import Turn
from holdfast.model.errors import ConfigError
from holdfast.nameserver.config.kv_config import FILE, KvStore
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.command import Command

REQUEST = Request(command=Command(code=100), channel=ChannelId(1), peer="192.0.2.1:4000")


def a_disk(content: bytes) -> SimDisk:
    disk = SimDisk()
    disk.replace(FILE, content)
    return disk


def test_a_change_is_acknowledged_when_it_is_on_disk():
    """One write at a time, and it is the one that is acknowledged."""
    turn = Turn()
    store = KvStore(turn, SimDisk())
    store.put("ns", "k", "v")

    assert store.save(REQUEST) is None
    assert turn.drain_effects() == [WriteFile(FILE, b'{"configTable":{"ns":{"k":"v"}}}')]
    (file,) = store.files()
    file.on_written(FILE)

    (effect,) = turn.drain_effects()
    assert isinstance(effect, SendBytes)
    assert effect.channel == REQUEST.channel


def test_a_store_without_a_disk_acknowledges_at_once():
    """The change lasts until the process ends."""
    turn = Turn()
    store = KvStore(turn, None)
    store.put("ns", "k", "v")

    answer = store.save(REQUEST)

    assert isinstance(answer, Command)
    assert answer.code == 0
    assert turn.drain_effects() == []


def test_kept_content_is_found_again():
    """Namespace by namespace, key by key."""
    store = KvStore(Turn(), a_disk(b'{"configTable":{"ns":{"k":"v"}}}'))

    assert store.find("ns", "k") == "v"
    assert store.find_namespace("ns") == {"k": "v"}
    assert store.find("ns", "x") is None
    assert store.find_namespace("x") is None


def test_an_empty_file_has_no_values():
    """Somebody may have created it in advance."""
    assert KvStore(Turn(), a_disk(b"")).find_namespace("ns") is None


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"configTable":{"ns":7}}', b"\xff"])
def test_content_that_cannot_be_read_stops_the_start(content: bytes):
    """An operator decides what to do with it; it is not overwritten with nothing."""
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        KvStore(Turn(), a_disk(content))


def test_deleting_what_is_not_there_is_fine():
    """It is gone either way."""
    store = KvStore(Turn(), None)

    store.delete("ns", "k")

    assert store.find("ns", "k") is None
