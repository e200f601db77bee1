"""The entry point of the admin library, which the command line uses.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.topics.summaries()
        await admin.groups.lag("billing")
        await admin.messages.by_key("orders", "order-17")
        (await admin.static_topics.read()).leaders

All results are frozen values that encode directly as JSON. The caller decides about printing, confirmation and retries.
"""

from __future__ import annotations

import time
from typing import Final, Self, Unpack

from holdfast.admin.access_control import AccessControl
from holdfast.admin.cluster import Cluster
from holdfast.admin.cluster_access import ClusterAccess
from holdfast.admin.draining import Draining
from holdfast.admin.forced_moves import ForcedMoveOperations
from holdfast.admin.groups import Groups
from holdfast.admin.messages import Messages
from holdfast.admin.moves import Moves
from holdfast.admin.offsets import Offsets
from holdfast.admin.static_changes import StaticChanges
from holdfast.admin.static_topics import StaticTopics
from holdfast.admin.topics import Topics
from holdfast.admin.units import Units
from holdfast.client.access.credentials_options import CredentialsArguments, credentials_options
from holdfast.model.access.client_tls import ClientTls

DEFAULT_TIMEOUT_S: Final = 5.0


def now_ms() -> int:
    """Return the local time."""
    return time.time_ns() // 1_000_000


class Admin:
    """Operations on one cluster, by noun. Use it as a context manager.

    Args:
        namesrv: Addresses of name servers, `;` between them, or the URL of an address server.
        timeout_s: How long one answer may take.
        unit: The unit (a cluster) to which operations are limited; None for all units.
        tls: Use TLS on every connection; None for plain connections.
        **access: Who the operator is, see `CredentialsArguments`.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        unit: str | None = None,
        tls: ClientTls | None = None,
        **access: Unpack[CredentialsArguments],
    ) -> None:
        credentials = credentials_options(**access)
        self.access = ClusterAccess(namesrv, timeout_s=timeout_s, unit=unit, tls=tls, credentials=credentials)
        self.access_control = AccessControl(self.access)
        self.topics = Topics(self.access)
        self.groups = Groups(self.access)
        self.cluster = Cluster(self.access)
        self.offsets = Offsets(self.access)
        self.messages = Messages(self.access)
        self.static_topics = StaticTopics(self.access)
        self.static_changes = StaticChanges(self.access)
        self.moves = Moves(self.access, self.static_topics)
        self.forced_moves = ForcedMoveOperations(self.access, self.static_topics, now_ms)
        self.draining = Draining(self.access, self.static_topics, self.topics)
        self.units = Units(self.access, now_ms)

    async def __aenter__(self) -> Self:
        await self.access.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.access.__aexit__(*error)

    async def set_name_servers(self, namesrv: str) -> None:
        """Use other name servers from now on: `host:port;host:port`, or the URL of an address server.

        Raises:
            ConfigError: *namesrv* is not valid.
            ConnectionLost: the address server does not return a list. The current name servers stay in use.
        """
        await self.access.set_name_servers(namesrv)
