"""Keeps the users and rules of this broker and of its name servers the same (7062).

    a change here ──────────────────────────> every name server, at once ──> every other broker
    a name server's push ──> adopted here ──> the other name servers
    the answer to a registration, with another digest ──> all records, both ways

Name servers do not call each other: each broker passes changes on. A server that was down learns the changes that it
missed when it registers, or when brokers register with it. Nothing is sent to a name server that has not proven the
cluster secret: the records contain the users' secrets.

There is one procedure per name server, which runs while the digests differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.access.directory_store import ACCESS_TIMER, AccessStore
from holdfast.broker.flow.awaitables import Pause, PeerCall
from holdfast.broker.flow.request import Timers
from holdfast.broker.flow.rpc import Rpc
from holdfast.broker.naming.registration import PURPOSE
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.access.directory import Record
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.wire.access.records import SyncAccessFields, decode_records, encode_records
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields

RETRY_MS: Final = 1_000
BUSY_MS: Final = 100


class _NameServer(msgspec.Struct):
    """What is known of a name server.

    Attributes:
        digest: The digest of its users and rules, as it last reported; None: not registered there, or it has none.
        sent: It was sent all changes up to this version of our store; 0: none.
        is_running: Its procedure runs.
        is_failing: Its failure has been logged: once, not in every round.
    """

    address: str
    digest: str | None = None
    sent: int = 0
    is_running: bool = False
    is_failing: bool = False


class AccessSync(Component):
    """Exchanges users and rules with the name servers."""

    def __init__(self, namesrv: tuple[str, ...], store: AccessStore, rpc: Rpc, turn: Turn) -> None:
        self._store = store
        self._rpc = rpc
        self._turn = turn
        self._servers = {address: _NameServer(address) for address in namesrv}

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {ACCESS_TIMER: self._start_all}

    def metrics(self) -> Iterator[Sample]:
        """Yield how many name servers have other users and rules."""
        digest = self._store.directory.digest
        count = sum(server.digest not in {None, digest} for server in self._servers.values())
        yield Sample("broker_access_unsynced", "gauge", "Name servers with other users and rules.", count)

    def note_digest(self, address: str, digest: str | None) -> None:
        """Record the digest that a name server has reported; None if this broker is not registered there."""
        server = self._servers[address]
        server.digest = digest
        if digest is None:
            server.sent = 0  # It may be another process next time.
        self._start(server)

    def note_push(self, channel: ChannelId, digest: str) -> None:
        """Record the digest that came with a push."""
        address = self._rpc.address_of(channel)
        if address in self._servers:
            self.note_digest(address, digest)

    def _start_all(self) -> None:
        for server in self._servers.values():
            self._start(server)

    def _start(self, server: _NameServer) -> None:
        if not server.is_running and self._differs(server):
            server.is_running = True
            self._turn.spawn(self._exchange(server))

    def _differs(self, server: _NameServer) -> bool:
        return server.digest is not None and server.digest != self._store.directory.digest

    async def _exchange(self, server: _NameServer) -> None:
        """Send changes to *server* until both have the same records. If changes are not enough, send all records."""
        needs_all = False
        try:
            while self._differs(server):
                # Checked before each request, with no wait until it is sent: see the docstring of the module.
                if not self._rpc.is_trusted(server.address, PURPOSE):
                    server.digest = None
                    return
                version = self._store.version
                changed = [] if needs_all or not server.sent else self._store.changed_since(server.sent)
                needs_all = not changed
                command = self._to_request(changed or self._store.directory.records)
                try:
                    self._handle_answer(server, await PeerCall(server.address, command, purpose=PURPOSE))
                except (PeerFailed, BadField, RemoteProtocolError) as error:
                    self._fail(server, str(error))
                    await Pause(RETRY_MS)
                    continue
                server.sent, server.is_failing = version, False
                if needs_all and self._differs(server):  # Something changed there or here meanwhile.
                    await Pause(BUSY_MS)
                needs_all = True
        finally:
            server.is_running = False

    def _to_request(self, records: list[Record]) -> Command:
        fields = SyncAccessFields(digest=self._store.directory.digest)
        return Command(code=RequestCode.SYNC_ACCESS, fields=to_fields(fields), body=encode_records(records))

    def _handle_answer(self, server: _NameServer, answer: Command) -> None:
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteProtocolError(f"refused with code {answer.code}: {answer.remark}")
        missing = decode_records(answer.body) if answer.body else []
        server.digest = from_fields(SyncAccessFields, answer.fields).digest
        self._store.merge(missing)

    def _fail(self, server: _NameServer, reason: str) -> None:
        if not server.is_failing:
            server.is_failing = True
            self._turn.log("warning", "users and rules not exchanged", namesrv=server.address, reason=reason)
