"""What brokers ask of name servers for their logical queues, and what they are told."""

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.cluster.leases import UNKNOWN_HOLDER, Claim, LeaseAnswer, LeaseRequest, QueueLease
from holdfast.wire.requests.moves import decode_body, encode_body


def test_a_request_is_small():
    """A broker names everything it leads every few seconds."""
    claims = {0: Claim(3), 1: Claim(4, "broker-b")}
    request = LeaseRequest(broker="broker-a", boot=7, number=2, lease_ms=30_000, topics={"orders": claims})

    data = encode_body(request)

    assert data == (
        b'{"broker":"broker-a","boot":7,"number":2,"lease_ms":30000,'
        b'"topics":{"orders":{"0":[3,""],"1":[4,"broker-b"]}}}'
    )
    assert decode_body(data, LeaseRequest) == request


def test_an_answer_says_who_holds_what_was_refused():
    """Or that nobody is known who does."""
    answer = LeaseAnswer(
        refused={"orders": {0: QueueLease("broker-b", 4), 1: UNKNOWN_HOLDER}},
        lapsed={"orders": {2: QueueLease("broker-c", 1)}},
    )

    assert decode_body(encode_body(answer), LeaseAnswer) == answer


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"broker":1}', b'{"refused":{"orders":{"x":["b",1]}}}', b"\xff", b"[" * 9999]
)
def test_what_is_none_is_refused(data: bytes):
    """A typed error, whatever comes."""
    with pytest.raises(RemoteProtocolError):
        decode_body(data, LeaseRequest)
