"""How a server asks a client to wait."""

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.access.throttle import WAIT_MS_MAX, encode_throttle, read_wait_ms
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command
from holdfast.wire.frames.frame import split_frames


def decoded(wait_ms: int) -> Command:
    frames, _ = split_frames(memoryview(encode_throttle(wait_ms)))
    return decode_command(frames[0])


def test_a_throttle_wants_no_answer_and_has_the_wait():
    """Under its own code."""
    command = decoded(250)

    assert (command.code, command.is_one_way, command.fields) == (RequestCode.THROTTLE, True, {"waitMs": "250"})
    assert read_wait_ms(command) == 250


@pytest.mark.parametrize(("asked", "obeyed"), [(-5, 0), (WAIT_MS_MAX + 1, WAIT_MS_MAX), (0x7FFFFFFF, WAIT_MS_MAX)])
def test_no_server_stops_a_client_for_long(asked: int, obeyed: int):
    """Whatever it asks for."""
    assert read_wait_ms(decoded(asked)) == obeyed


@pytest.mark.parametrize("fields", [{}, {"waitMs": "soon"}, {"waitMs": "99999999999"}])
def test_a_wait_that_cannot_be_read_is_an_error(fields: dict[str, str]):
    """Of the protocol: the peer is not what it seems."""
    with pytest.raises(RemoteProtocolError, match="waitMs"):
        read_wait_ms(Command(code=RequestCode.THROTTLE, fields=fields))
