"""Offset message ids: the address of a record, as clients dial it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import format_message_id, parse_message_id


def test_an_id_is_address_port_and_position_in_upper_case_hex():
    """The example of the protocol handbook."""
    assert format_message_id(pack_host("10.0.0.2:10911"), 1024) == "0A00000200002A9F0000000000000400"


@pytest.mark.parametrize("address", ["127.0.0.1:10911", "[::1]:10911", "[fe80::1234]:65535"])
@given(position=st.integers(0, (1 << 63) - 1))
def test_an_id_tells_where_the_record_is(address: str, position: int):
    """Both address families, any position, and back."""
    found = parse_message_id(format_message_id(pack_host(address), position))

    assert (found.address, found.position) == (address, position)


@pytest.mark.parametrize(
    "text",
    ["", "0A", "0A00000200002A9F00000000000004", "0A00000200002A9FFFFFFFFFFFFFFFFF", "0G" * 16, "0A 0 " * 8 + "0A" * 8],
)
def test_what_is_no_id_is_refused(text: str):
    """Wrong length, not hexadecimal, a negative position, blanks."""
    with pytest.raises(RemoteProtocolError):
        parse_message_id(text)


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_is_refused(text: str):
    """Nothing else happens."""
    try:
        parse_message_id(text)
    except RemoteProtocolError:
        return
    assert len(text) in (32, 56)
