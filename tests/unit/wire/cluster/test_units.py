"""The switch for the loss of a site, as it is sent and kept."""

import msgspec
import pytest

from holdfast.model.dr_switch import CLOSED, OPENINGS_MAX, DrSwitch, UnitOpening
from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.cluster.units import decode_switch, encode_switch, switch_text

SWITCH = DrSwitch(7, (UnitOpening("east", topic="orders"), UnitOpening("*", group="billing")))


def test_a_switch_survives_its_way():
    """As bytes and as a header field."""
    assert decode_switch(encode_switch(SWITCH)) == SWITCH
    assert decode_switch(switch_text(SWITCH) or "") == SWITCH


def test_one_that_was_never_used_is_not_told():
    """Whoever knows no units gets nothing new to read."""
    assert switch_text(CLOSED) is None
    assert decode_switch(b"") == CLOSED


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"version":"x"}',
        b'{"version":-1}',
        b'{"openings":[{}]}',
        b"\xff",
        b" " * (1 << 21),
        msgspec.json.encode({"version": 1, "openings": [{"unit": "east"}] * (OPENINGS_MAX + 1)}),
    ],
)
def test_what_is_no_switch_is_refused(data: bytes):
    """It may come from anybody."""
    with pytest.raises(RemoteProtocolError, match="switch"):
        decode_switch(data)


def test_a_switch_of_the_largest_size_is_read():
    """One more byte is refused."""
    data = encode_switch(SWITCH)

    assert decode_switch(data.ljust(1 << 20)) == SWITCH
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode_switch(data.ljust((1 << 20) + 1))
