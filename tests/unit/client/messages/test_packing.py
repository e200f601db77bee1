"""From a message to what its request carries."""

import os
import zlib

import pytest

from holdfast.client.messages.packing import Packing, pack
from holdfast.model.errors import LocalProtocolError
from holdfast.model.message import Message
from holdfast.wire.records.properties import parse_properties


def test_everything_about_a_message_becomes_properties():
    """The key also decides where it goes, and can be searched for."""
    message = Message(
        "t", b"body", tags="red", key="k1", keys=("k2", "k3"), delay_level=3, flag=7, properties={"a": "ä"}
    )

    outgoing = pack(message, "ID", Packing(), {"TRAN_MSG": "true"})

    assert parse_properties(outgoing.properties) == {
        "UNIQ_KEY": "ID",
        "KEYS": "k1 k2 k3",
        "__SHARDINGKEY": "k1",
        "TAGS": "red",
        "DELAY": "3",
        "a": "ä",
        "TRAN_MSG": "true",
    }
    assert (outgoing.message_id, outgoing.body, outgoing.sys_flag, outgoing.flag) == ("ID", b"body", 0, 7)


def test_a_bare_message_has_its_id_only():
    """Nothing travels that nobody asked for."""
    assert pack(Message("t", b"x"), "ID", Packing()).properties == "UNIQ_KEY\x01ID\x02"


def test_keys_without_a_key_do_not_order():
    """They are for searching."""
    properties = parse_properties(pack(Message("t", b"x", keys=("a",)), "ID", Packing()).properties)

    assert properties == {"UNIQ_KEY": "ID", "KEYS": "a"}


def test_a_large_body_is_compressed():
    """From the limit on, and only if that makes it smaller."""
    packing = Packing(compress_over=100)

    small = pack(Message("t", b"a" * 99), "ID", packing)
    large = pack(Message("t", b"a" * 100), "ID", packing)
    noise = pack(Message("t", os.urandom(100)), "ID", packing)

    assert small.sys_flag == noise.sys_flag == 0
    assert (large.sys_flag, zlib.decompress(large.body)) == (0x301, b"a" * 100)


def test_compression_can_be_switched_off():
    """None means never."""
    assert pack(Message("t", b"a" * 10_000), "ID", Packing(compress_over=None)).sys_flag == 0


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (Message("t", b"x", tags="a\x01"), "tag"),
        (Message("t", b"x", key="a\x02"), "key"),
        (Message("t", b"x", keys=("a\x02",)), "key"),
        (Message("t", b"x", properties={"a": "b\x02"}), "'a'"),
        (Message("t", b"x", properties={"a": "x" * 40_000}), "32767"),
        (Message("t", bytes(11)), "at most 10"),
        (Message("a b", b"x"), "'a b'"),
    ],
)
def test_what_brokers_would_misread_or_refuse_does_not_leave(message: Message, word: str):
    """The text says why."""
    with pytest.raises(LocalProtocolError, match=word):
        pack(message, "ID", Packing(body_size_max=10))
