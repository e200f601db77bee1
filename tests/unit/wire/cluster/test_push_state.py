"""How a name server tells about itself that it pushes routes."""

import json

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.cluster.push_state import (
    PushState,
    ReportedReadings,
    decode_push_state,
    encode_push_state,
    to_percent,
)


def test_what_is_told_is_what_is_understood():
    """Numbers, words, and readings of which one is not known."""
    state = PushState(watching_clients=3, pace="paused", reason="load 95 %", readings=ReportedReadings(load=95.0))

    assert decode_push_state(encode_push_state(state)) == state


def test_an_unknown_reading_is_told_as_such():
    """Neither 0 nor null: somebody would count with it."""
    state = PushState(readings=ReportedReadings(memory=to_percent(41.234), network=to_percent(None)))

    assert json.loads(encode_push_state(state))["readings"] == {"memory": 41.2, "load": "unknown", "network": "unknown"}


def test_what_a_newer_name_server_adds_is_ignored_and_what_an_older_lacks_is_empty():
    """They need not be of one version."""
    assert decode_push_state(b'{"watchedTopics":4,"more":{}}') == PushState(watched_topics=4)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"watches":"many"}', b'{"readings":{"load":"high"}}'])
def test_what_is_none_is_refused(body: bytes):
    """With a typed error."""
    with pytest.raises(RemoteProtocolError):
        decode_push_state(body)
