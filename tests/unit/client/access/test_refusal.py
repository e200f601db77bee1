"""Refusals of access control, and others with the same code."""

import pytest

from holdfast.client.access.refusal import refusal
from holdfast.client.cluster.send_plan import is_retryable, is_route_stale
from holdfast.model.errors import AccessDenied, BrokerRefused


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (16, "User:ann has no permission to access Topic:t from 10.0.0.1, no matched policies."),
        (16, "User:ann is not found."),
        (16, "check signature failed."),
        (16, "username cannot be null."),
        (1, "org.apache.rocketmq.acl.common.AclException: No default permission for topic:t, org.apache..."),
    ],
)
def test_a_refusal_of_access_control_is_not_repeated(code: int, remark: str):
    """It has the text and the code of the server, and the route is not to blame."""
    error = refusal(code, remark, address="host:1")

    assert isinstance(error, AccessDenied)
    assert (error.code, error.remark, error.address) == (code, remark, "host:1")
    assert remark in str(error)
    assert not is_retryable(error)
    assert not is_route_stale(error)


def test_a_client_without_credentials_learns_what_to_give():
    """The text of the server is for those who know RocketMQ."""
    error = refusal(16, "username cannot be null.")

    assert error.remark == "username cannot be null."
    assert "username cannot be null. (the server has access control: give the client an access key" in str(error)


@pytest.mark.parametrize(
    ("code", "remark"),
    [(16, "the broker[a] sending message is forbidden"), (1, "disk error"), (2, "User:ann is busy"), (17, None)],
)
def test_other_refusals_stay_what_they_are(code: int, remark: str | None):
    """A topic that is not writable here may be writable at another broker."""
    error = refusal(code, remark)

    assert type(error) is BrokerRefused
    assert is_retryable(error)
