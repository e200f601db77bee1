"""Authenticates the connections of a client: each after its dial, and all again when the secret changes.

dialled ─> login ─┬─ proven ──────────────> offered to callers
├─ to be signed ────────> offered; it signs every request
└─ refused ─> LoginFailed, for a growing time without another dial

secret changed ─> login on every open connection, beside its requests ─┬─ proven
└─ refused: the earlier login stays; again later
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

import msgspec

from holdfast.client.access.credentials_options import AuthMode, CredentialsOptions
from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConfigError, ConnectionLost, LoginFailed, RequestTimeout
from holdfast.runtime.access.credentials_source import CredentialsSource
from holdfast.runtime.pool import Connection
from holdfast.wire.access.client_login import ClientLogin, Outcome
from holdfast.wire.access.login import NONCE_SIZE
from holdfast.wire.frames.command import Command

log = logging.getLogger("holdfast.client")

LOGIN_TIMEOUT_S: Final = 3.0
# How often to check whether the secret file has changed.
CHECK_INTERVAL_S: Final = 1.0
# How long not to dial a server that refused a login: the first time, and at most.
REFUSED_PAUSE_S: Final = 1.0
REFUSED_PAUSE_S_MAX: Final = 30.0


class _Refusal(msgspec.Struct, frozen=True):
    """A refused login.

    Attributes:
        credentials: The credentials that were refused; others may be tried at once.
        pause_s: How long not to try these again.
        until_s: When that ends.
    """

    error: LoginFailed
    credentials: Credentials
    pause_s: float
    until_s: float


class SecretWatch:
    """The credentials of a client, re-read when their file changes. A file that cannot be read is logged once.

    Args:
        options: The access key and the secret or its file.

    Raises:
        ConfigError: the secret file cannot be used.
    """

    def __init__(self, options: CredentialsOptions) -> None:
        self._source = CredentialsSource(options.credentials, options.secret_file)
        self._logged = ""
        self.mode: Final[AuthMode] = options.mode

    @property
    def is_fixed(self) -> bool:
        """Whether the credentials never change."""
        return self._source.is_fixed

    def credentials(self) -> Credentials:
        """Return the credentials that are valid now."""
        try:
            if self._source.refresh():
                log.info("the secret of user %s has changed", self._source.current.access_key)
        except ConfigError as error:
            if str(error) != self._logged:
                self._logged = str(error)
                log.warning("%s; the earlier secret stays in use", error)
        else:
            self._logged = ""
        return self._source.current


class Proven(msgspec.Struct, frozen=True):
    """What a server accepted on one connection.

    Attributes:
        credentials: The credentials that it was given.
        outcome: How the login ended.
    """

    credentials: Credentials
    outcome: Outcome

    def is_valid(self, credentials: Credentials) -> bool:
        """Return whether the connection can be used with *credentials* without another login."""
        return self.credentials == credentials or self.outcome is Outcome.OPEN


def log_in(credentials: Credentials, address: str, mode: AuthMode, exchange: Callable[[Command], Command]) -> Outcome:
    """Log in on a blocking connection, on which *exchange* sends a request and returns its answer.

    Raises:
        LoginFailed: the server refused us, or did not prove its identity.
        ConnectionLost: the server cannot handle a login now.
    """
    if mode == "sign":
        return Outcome.SIGNED
    login = _begin(credentials, address, mode)
    second = login.second_request(exchange(login.first_request()))
    if second is not None:
        login.finish(exchange(second))
    assert login.outcome is not None
    return login.outcome


def _begin(credentials: Credentials, address: str, mode: AuthMode) -> ClientLogin:
    return ClientLogin(credentials, address, nonce=secrets.token_bytes(NONCE_SIZE), is_strict=mode == "login")


class Authenticator:
    """Authenticates the connections of one pool.

    Args:
        options: The credentials.

    Raises:
        ConfigError: the secret file cannot be used.
    """

    def __init__(self, options: CredentialsOptions) -> None:
        self._watch = SecretWatch(options)
        self._refusals: dict[str, _Refusal] = {}
        self._proven: dict[Connection, Proven] = {}

    def check(self, address: str) -> None:
        """Check that *address* did not refuse a login with the same credentials a moment ago.

        Raises:
            LoginFailed: it did. A dial would only cost both sides time.
        """
        refusal = self._find_refusal(address, self._watch.credentials())
        if refusal is not None:
            error = refusal.error
            raise LoginFailed(error.code, error.remark, user=error.user, address=address)

    async def authenticate(self, connection: Connection) -> None:
        """Prove our identity on a new connection.

        Raises:
            LoginFailed: the server refused us, or did not prove its identity.
            ConnectionLost: the server did not answer.
        """
        credentials = self._watch.credentials()
        outcome = Outcome.SIGNED if self._watch.mode == "sign" else await self._log_in(connection, credentials)
        self._record(connection, Proven(credentials, outcome))
        connection.closed.add_done_callback(lambda _: self._proven.pop(connection, None))

    async def follow(self) -> None:
        """Log in again on the open connections whenever the secret has changed. Never returns for a secret file."""
        while not self._watch.is_fixed:
            await asyncio.sleep(CHECK_INTERVAL_S)
            credentials = self._watch.credentials()
            await asyncio.gather(*(self._renew(connection, credentials) for connection in self._outdated(credentials)))

    def _outdated(self, credentials: Credentials) -> Iterator[Connection]:
        for connection, proven in list(self._proven.items()):
            if not proven.is_valid(credentials) and self._find_refusal(connection.address, credentials) is None:
                yield connection

    async def _renew(self, connection: Connection, credentials: Credentials) -> None:
        """Replace the credentials of an open connection. If the server refuses the new ones, the old ones stay."""
        outcome = self._proven[connection].outcome
        try:
            if outcome is Outcome.LOGGED_IN:
                outcome = await self._log_in(connection, credentials)
        except LoginFailed as error:
            log.warning("%s; the connection stays logged in with the earlier secret", error)
        except ConnectionLost:
            pass  # The next request dials again.
        else:
            if connection.is_open:
                self._record(connection, Proven(credentials, outcome))

    def _record(self, connection: Connection, proven: Proven) -> None:
        self._proven[connection] = proven
        connection.signer = proven.credentials if proven.outcome is Outcome.SIGNED else None

    async def _log_in(self, connection: Connection, credentials: Credentials) -> Outcome:
        address = connection.address
        login = _begin(credentials, address, self._watch.mode)
        try:
            second = login.second_request(await connection.request(login.first_request(), LOGIN_TIMEOUT_S))
            if second is not None:
                login.finish(await connection.request(second, LOGIN_TIMEOUT_S))
        except LoginFailed as error:
            self._record_refusal(address, error, credentials)
            raise
        except RequestTimeout:
            raise ConnectionLost(f"{address} did not answer the login within {LOGIN_TIMEOUT_S:g} s") from None
        except ConnectionLost as error:
            raise ConnectionLost(f"no login at {address}: {error}") from None
        self._refusals.pop(address, None)
        assert login.outcome is not None
        return login.outcome

    # Refused logins.

    def _find_refusal(self, address: str, credentials: Credentials) -> _Refusal | None:
        refusal = self._refusals.get(address)
        if refusal is None or refusal.credentials != credentials or monotonic() >= refusal.until_s:
            return None
        return refusal

    def _record_refusal(self, address: str, error: LoginFailed, credentials: Credentials) -> None:
        before = self._refusals.get(address)
        is_same = before is not None and before.credentials == credentials
        pause_s = min(2 * before.pause_s, REFUSED_PAUSE_S_MAX) if before is not None and is_same else REFUSED_PAUSE_S
        if not is_same:
            log.warning("%s", error)
        self._refusals[address] = _Refusal(error, credentials, pause_s, monotonic() + pause_s)
