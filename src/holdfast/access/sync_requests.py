"""Answers servers that send users and rules (7062): merges their records, and returns those that they lack.

records, and the digest of all that the sender has ─> merged ─┬─ now both have the same ──> no records
                                                              └─ otherwise ──> ours that were not among them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdfast.access.directory_store import AccessStore
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.request import Answer, Refusal, Request
from holdfast.model.access.identity import Identity, IdentityKind
from holdfast.wire.access.records import SyncAccessFields, decode_records, encode_records
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields

NOT_A_SERVER: Final = "only a server that has proven the cluster secret may send users and rules"

Identify = Callable[[ChannelId, Command], Identity]
"""Returns who sends a request. It does so with access control off, too."""


class SyncRequests(Component):
    """Answers 7062.

    Args:
        store: The users and rules of this role.
        identify: Returns who sends a request.
        note_push: Called with the channel and the digest of a one-way request.
    """

    def __init__(
        self,
        store: AccessStore,
        identify: Identify,
        note_push: Callable[[ChannelId, str], None] = lambda _channel, _digest: None,
    ) -> None:
        self._store = store
        self._identify = identify
        self._note_push = note_push

    def handlers(self) -> Mapping[int, Callable[[Request], Answer]]:
        """Return the handlers of this component, by request code."""
        return {RequestCode.SYNC_ACCESS: self._sync}

    def _sync(self, request: Request) -> Answer:
        # Also with access control off: otherwise anyone could plant users for the time when it is on, and read all
        # secrets.
        if self._identify(request.channel, request.command).kind is not IdentityKind.CLUSTER:
            return Refusal(ResponseCode.NO_PERMISSION, NOT_A_SERVER)
        records = decode_records(request.command.body)
        self._store.merge(records)
        digest, own_digest = request.header_as(SyncAccessFields).digest, self._store.directory.digest
        if request.command.is_one_way:
            self._note_push(request.channel, digest)
            return None
        missing = [] if digest == own_digest else self._store.directory.find_missing(records)
        body = encode_records(missing) if missing else b""
        return request.answer(fields=to_fields(SyncAccessFields(digest=own_digest)), body=body)
