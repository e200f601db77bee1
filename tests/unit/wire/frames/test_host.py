"""Hosts as records hold them."""

from __future__ import annotations

import pytest

from holdfast.model.errors import LocalProtocolError
from holdfast.wire.frames.host import format_host, pack_host


@pytest.mark.parametrize(
    ("address", "packed"),
    [
        ("127.0.0.1:10911", "7f00000100002a9f"),
        ("[::1]:1", "0000000000000000000000000000000100000001"),
    ],
)
def test_a_host_is_address_bytes_and_a_four_byte_port(address: str, packed: str):
    """Eight bytes for IPv4, twenty for IPv6, and back to the same text."""
    assert pack_host(address).hex() == packed
    assert format_host(bytes.fromhex(packed)) == address


@pytest.mark.parametrize("address", ["", "localhost:1", "127.0.0.1", "127.0.0.1:x", "1.2.3:4", "127.0.0.1:-1"])
def test_what_is_no_numeric_address_is_refused(address: str):
    """Names are resolved before they come here."""
    with pytest.raises(LocalProtocolError):
        pack_host(address)
