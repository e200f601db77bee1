"""The options that all clients have: how to reach a cluster, and what to see of it.

A producer or consumer builds them once from the arguments of its constructor; every part of the client reads them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.client.messages.arguments import check_kind, check_name, check_seconds, check_text
from holdfast.client.messages.namespace import with_namespace
from holdfast.model.access.client_tls import ClientTls

REQUEST_TIMEOUT_S: Final = 3.0


class ClientOptions(msgspec.Struct, frozen=True):
    """The options of one client.

    Attributes:
        namesrv: `host:port;host:port`, or the URL of an address server that returns such a list.
        namespace: The prefix of the names of topics and groups.
        timeout_s: The default timeout of a request.
        name_server_refresh_s: How often to re-resolve the name server list; None for every 30 s if it has host names,
            and every 120 s with an address server.
        topic_expiry_s: After how long without a send a topic is forgotten; None for never.
        remembers_missing: Whether a route to send to may be refused from memory, because the topic does not exist.
        unit: The unit, a cluster, whose queues are visible; None for all.
        reader_group: The consumer group that reads by the routes, as the wire knows it; None if no group does.
        tls: Use TLS on every connection; None for plain connections.
        credentials: What proves the identity of the client to servers; None for no access control.
    """

    namesrv: str
    namespace: str | None = None
    timeout_s: float = REQUEST_TIMEOUT_S
    name_server_refresh_s: float | None = None
    topic_expiry_s: float | None = None
    remembers_missing: bool = False
    unit: str | None = None
    reader_group: str | None = None
    tls: ClientTls | None = None
    credentials: CredentialsOptions | None = None

    def __post_init__(self) -> None:
        check_text("namesrv", self.namesrv)
        if self.namespace:
            check_name("namespace", self.namespace)
        check_seconds("timeout_s", self.timeout_s)
        check_seconds("name_server_refresh_s", self.name_server_refresh_s, optional=True)
        check_seconds("topic_expiry_s", self.topic_expiry_s, optional=True)
        check_text("unit", self.unit, optional=True)
        check_kind("tls", self.tls, ClientTls, optional=True)

    def wire_name(self, name: str) -> str:
        """Return the name of a topic or a group as the wire knows it."""
        return with_namespace(self.namespace, name)
