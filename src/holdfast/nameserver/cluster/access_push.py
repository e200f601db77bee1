"""Sends users and rules to the brokers at once when they change (7062, one-way).

    a change by an administrator, or a broker ─> every broker that has registered here ─> the other name servers

Name servers do not call each other: brokers pass changes on. A broker that misses a push learns it from the digest in
the answer to its next registration. The records contain the users' secrets: nothing is sent to a broker that has not
proven the cluster secret, and it does not learn the digest either.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.access.directory_store import ACCESS_TIMER, AccessStore
from holdfast.access.sync_requests import Identify
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import IdentityKind
from holdfast.nameserver.cluster.broker_liveness import BrokerLiveness
from holdfast.wire.access.records import SyncAccessFields, encode_records
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command
from holdfast.wire.frames.fields import to_fields

_NOTHING = Command(code=RequestCode.SYNC_ACCESS)


class AccessPush(Component):
    """Sends changed records to the brokers.

    Args:
        store: The users and rules of this name server.
        liveness: The brokers that have registered.
        identify: Returns who uses a channel.
        turn: The turn of the name server.
    """

    def __init__(self, store: AccessStore, liveness: BrokerLiveness, identify: Identify, turn: Turn) -> None:
        self._store = store
        self._liveness = liveness
        self._identify = identify
        self._turn = turn
        self._sent = store.version

    def timers(self) -> dict[str, Callable[[], None]]:
        """Return the timers of this component, by name."""
        return {ACCESS_TIMER: self._push}

    def digest_for(self, channel: ChannelId) -> str | None:
        """Return the digest of users and rules for a broker; None if it has not proven to be one of the cluster."""
        return self._store.directory.digest if self._is_server(channel) else None

    def _push(self) -> None:
        changed, self._sent = self._store.changed_since(self._sent), self._store.version
        channels = [channel for channel in self._liveness.channels if self._is_server(channel)]
        if not changed or not channels:
            return
        fields = to_fields(SyncAccessFields(digest=self._store.directory.digest))
        command = Command(code=RequestCode.SYNC_ACCESS, flag=ONE_WAY, fields=fields, body=encode_records(changed))
        frame = encode_command(command)
        for channel in channels:
            self._turn.send(channel, [frame])

    def _is_server(self, channel: ChannelId) -> bool:
        return self._identify(channel, _NOTHING).kind is IdentityKind.CLUSTER
