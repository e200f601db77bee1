"""The security settings that every role has, with their defaults."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.model.access.client_tls import ClientTls, Verification
from holdfast.wire.frames.frame import FRAME_SIZE_MAX

TlsMode = Literal["disabled", "permissive", "enforcing"]
ClientCertificates = Literal["none", "optional", "required"]


class SecurityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a role that protect it. The options of each role include them."""

    # Access control: a request is accepted only from a user who is permitted to send it.
    auth: bool = False
    # A file with the secret that all servers of the cluster share: so they know each other.
    cluster_secret: str | None = None
    # Addresses (IP or CIDR) of Java brokers, whose replication connections cannot prove anything.
    trusted_brokers: tuple[str, ...] = ()
    # Java servers know no login: `refuse` to work with them, or `sign` each request with the inner credentials.
    java_peers: Literal["refuse", "sign"] = "refuse"
    inner_credentials: str | None = None  # a file with `accessKey:` and `secretKey:`
    acl_file: str | None = None  # plain_acl.yml of RocketMQ, or a folder of such files: followed, never written
    insecure: bool = False  # listen beyond loopback without access control
    metrics_token: str | None = None  # a file with the token of scrapers; `/metrics` is refused without it
    # A file to which changes by administrators, failed logins and refusals are appended as JSON lines.
    audit_file: str | None = None

    # Limits for clients. 0: no limit.
    connections_per_address_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    # With access control: connections without a proven identity. Above: the one that began first is closed.
    unproven_connections_max: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    unproven_timeout_ms: Annotated[int, msgspec.Meta(ge=100, le=600_000)] = 30_000
    # Of each user at this server, in each second. Above: its connections are read later.
    user_requests_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    user_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    request_size_max: Annotated[int, msgspec.Meta(ge=8 * 1024 * 1024, le=FRAME_SIZE_MAX)] = FRAME_SIZE_MAX
    header_size_max: Annotated[int, msgspec.Meta(ge=64 * 1024, le=FRAME_SIZE_MAX)] = 1024 * 1024

    # TLS on every port: `permissive` accepts TLS and plain connections on one port, `enforcing` only TLS.
    tls: TlsMode = "disabled"
    tls_cert: str | None = None  # PEM file: the certificate, then those of intermediate authorities
    tls_key: str | None = None  # PEM file: the private key, unencrypted
    tls_ca: str | None = None  # PEM file: the authorities that sign the certificates of peers; None: the system's
    tls_client_auth: ClientCertificates = "none"  # whether clients present a certificate that `tls_ca` signed
    # Connections that this role opens, to name servers, brokers and its master. None: TLS if `tls` is enforcing.
    tls_outgoing: bool | None = None
    tls_verify: Verification = "full"  # what to verify of the servers at their other end
    # A connection that has not finished its handshake in this time is closed. With TLS disabled there is none.
    handshake_timeout_ms: Annotated[int, msgspec.Meta(ge=100, le=600_000)] = 10_000
    handshakes_max: Annotated[int, msgspec.Meta(ge=1)] = 500  # above: the one that began first is closed

    @property
    def outgoing_tls(self) -> ClientTls | None:
        """How this role uses TLS on connections that it opens; None for plain connections."""
        is_used = self.tls == "enforcing" if self.tls_outgoing is None else self.tls_outgoing
        if not is_used:
            return None
        return ClientTls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key, verify=self.tls_verify)
