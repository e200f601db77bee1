"""The error of a refused change."""

from holdfast.model.access.refusal import INVALID, DirectoryRefused
from holdfast.wire.frames.codes import ResponseCode


def test_a_refusal_has_the_code_that_tools_of_rocketmq_expect():
    """Mostly NO_PERMISSION, whatever was refused."""
    assert DirectoryRefused("The user is existed").code == ResponseCode.NO_PERMISSION
    assert DirectoryRefused("The username is blank", INVALID).code == ResponseCode.INVALID_PARAMETER
    assert str(DirectoryRefused("The user is existed")) == "The user is existed"
