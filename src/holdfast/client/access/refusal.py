"""Distinguishes refusals of access control from others.

RocketMQ answers both "you may not" and "this topic is not writable here" with code 16. The second may succeed at
another broker, the first nowhere. Only the text distinguishes them. ACL 1.0 answers with code 1 and the name of an
exception.
"""

from __future__ import annotations

from typing import Final

from holdfast.model.errors import AccessDenied, BrokerRefused
from holdfast.wire.frames.codes import ResponseCode

# The beginnings of the texts with which servers refuse because of access control.
_NO_USER: Final = "username cannot be null"
_DENIALS: Final = ("User:", _NO_USER, "check signature failed", "The resource is null")
_ACL_1_EXCEPTION: Final = "AclException"


def refusal(code: int, remark: str | None, *, address: str | None = None) -> BrokerRefused:
    """Return the error for an answer with a failure code: `AccessDenied` if access control refused the request."""
    text = remark or ""
    is_denied = (code == ResponseCode.NO_PERMISSION and text.startswith(_DENIALS)) or (
        code == ResponseCode.SYSTEM_ERROR and _ACL_1_EXCEPTION in text
    )
    if not is_denied:
        return BrokerRefused(code, text, address=address)
    error = AccessDenied(code, text, address=address)
    if text.startswith(_NO_USER):
        error.add_advice("the server has access control: give the client an access key and its secret")
    return error
