"""What a connection pool does between a dial and the first request: it has the connection authenticated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.model.errors import ConnectionLost

if TYPE_CHECKING:
    from holdfast.runtime.pool import Connection


class Authenticator(Protocol):
    """Proves the identity of a client on new connections."""

    def check(self, address: str) -> None:
        """Raise `LoginFailed` if a dial would be useless, because the server has just refused a login."""
        ...

    async def authenticate(self, connection: Connection) -> None:
        """Log in, or set the `signer` of *connection*. Raise `LoginFailed` or `ConnectionLost` if that fails."""
        ...


async def authenticate(connection: Connection, authenticator: Authenticator | None) -> None:
    """Authenticate a new connection, or close it. Without an authenticator there is nothing to prove.

    Raises:
        LoginFailed, ConnectionLost: it could not be authenticated.
    """
    if authenticator is None:
        return
    try:
        await authenticator.authenticate(connection)
    except BaseException:
        connection.abort("not authenticated")
        raise
    if not connection.is_open:
        raise ConnectionLost(f"the connection to {connection.address} was lost after the login; nothing was sent")
