"""The KV store by itself."""

import pytest

from holdfast.machine.events import ChannelId
from holdfast.model.errors import ConfigError
from holdfast.nameserver.config.kv_config import KvStore, Waiter
from holdfast.wire.frames.command import Command

WAITER = Waiter(ChannelId(1), Command(code=100))


def test_nothing_to_write_when_nothing_waits():
    """A write that nobody asked for does not start another."""
    store = KvStore(None, is_durable=True)

    assert store.written() == ([], [])


def test_a_store_without_a_disk_is_done_at_once():
    """The waiter comes straight back."""
    store = KvStore(None, is_durable=False)
    store.put("ns", "k", "v")

    assert store.save(WAITER) == ([WAITER], [])


def test_kept_content_is_found_again():
    """Namespace by namespace, key by key."""
    store = KvStore(b'{"configTable":{"ns":{"k":"v"}}}', is_durable=True)

    assert store.find("ns", "k") == "v"
    assert store.find_namespace("ns") == {"k": "v"}
    assert store.find("ns", "x") is None
    assert store.find_namespace("x") is None


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"configTable":{"ns":7}}', b"\xff"])
def test_content_that_cannot_be_read_stops_the_start(content: bytes):
    """An operator decides what to do with it; it is not overwritten with nothing."""
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        KvStore(content, is_durable=True)


def test_deleting_what_is_not_there_is_fine():
    """It is gone either way."""
    store = KvStore(None, is_durable=True)

    store.delete("ns", "k")

    assert store.find("ns", "k") is None
