"""Requests of servers to clients."""

import pytest

from holdfast.client.cluster.server_request import decode_request
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField
from holdfast.wire.requests.heartbeat import ConsumerGroupFields


def test_a_request_is_decoded_by_its_row():
    """The handler gets the type that the table of requests names."""
    request = decode_request("a:1", Command(code=40, fields={"consumerGroup": "g"}))

    assert request is not None
    assert request.address == "a:1"
    assert request.header_as(ConsumerGroupFields).consumer_group == "g"


def test_a_missing_field_is_reported():
    """Before a handler sees the request."""
    with pytest.raises(BadField, match="is missing"):
        decode_request("a:1", Command(code=40))


@pytest.mark.parametrize("code", [10, 99_999])
def test_other_requests_have_no_row(code: int):
    """Only a broker stores a message, and 99999 is no request code."""
    assert decode_request("a:1", Command(code=code)) is None
