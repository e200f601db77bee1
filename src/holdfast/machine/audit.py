"""Audit lines for requests that change something: who, from where, what, and the result.

The table of requests says which ones these are: they need a permission to create, update or delete. Sends and commits
do not. What servers send to each other all the time is recorded only if a user sends it.

Bodies are recorded only of requests whose bodies have no secrets, by their row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.machine.turn import Turn
from holdfast.model.access.identity import Identity, IdentityKind
from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.table import RequestSpec

if TYPE_CHECKING:
    from holdfast.machine.request import Refusal, Request

CHANGED: Final = "change requested"
"""The event of the audit line for each change that was executed or refused by its handler."""
BODY_MAX: Final = 600
_VALUE_MAX: Final = 200
_TARGETS_MAX: Final = 20


def is_recorded(spec: RequestSpec, sender: Identity) -> bool:
    """Return whether requests of a row are changes that the audit log contains, if *sender* sends them."""
    return spec.rule.is_change and (not spec.by_servers or sender.kind is IdentityKind.USER)


def describe_change(spec: RequestSpec, header: msgspec.Struct, body: bytes) -> dict[str, object]:
    """Return the fields of the audit line that say what a request changes."""
    try:
        needed = spec.permissions_of(header, body)
    except RemoteProtocolError:
        needed = ()
    targets = [str(permission.resource) for permission in needed[:_TARGETS_MAX] if permission.resource.name]
    what: dict[str, object] = {"code": int(spec.code), "what": spec.meaning}
    if targets:
        what["target"] = _cut(", ".join(targets), BODY_MAX)
    if given := _describe_fields(header):
        what["fields"] = given
    if body and spec.shows_body:
        what["body"] = _cut(body[: 4 * BODY_MAX].decode(errors="replace"), BODY_MAX)
    return what


def record_change(turn: Turn, request: Request, answer: Command | Refusal) -> None:
    """Write the audit line of a request that was executed with this result; nothing for other requests."""
    if request.change is None:
        return
    is_done = answer.code == ResponseCode.SUCCESS
    result = "done" if is_done else f"refused with {int(answer.code)}: {_cut(answer.remark or '', BODY_MAX)}"
    sender = request.sender
    turn.audit("change", CHANGED, user=sender.user, peer=sender.address, **request.change, result=result)


def _describe_fields(header: msgspec.Struct) -> str:
    """Return those fields of a header that were given, in one line."""
    known: dict[str, Any] = {
        field.encode_name: getattr(header, field.name)
        for field in msgspec.structs.fields(header)
        if getattr(header, field.name) != field.default
    }
    return _cut(" ".join(f"{name}={_cut(str(value), _VALUE_MAX)}" for name, value in known.items()), BODY_MAX)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[:size]}..."
