"""TLS contexts from certificate files, which are rebuilt when the files change.

    file changed ─> build a context ─┬─> it is valid: new connections use it, open ones keep theirs
                                     └─> it is not (a certificate without its key, half a file): the old one stays

All cryptography is OpenSSL's, by the `ssl` module of Python. TLS 1.2 is the oldest accepted version.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from holdfast.machine.effects import Log
from holdfast.machine.security_options import SecurityOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError

TLS_FIRST_BYTE: Final = b"\x16"  # of a handshake; a frame that began with it would have 369 MB

Emit = Callable[[Log], None]
Build = Callable[[], ssl.SSLContext]

# A key must be safe from other users: no right for them, and no right to write for the group.
_UNSAFE_KEY_MODE: Final = stat.S_IWGRP | stat.S_IRWXO
_CERTIFICATE_REQUESTS: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class WatchedContext:
    """A TLS context that follows its files.

    Args:
        files: The paths of the files.
        build: Builds the context from the files.
        emit: Writes one log line.

    Attributes:
        current: The context for new connections.

    Raises:
        ConfigError: the files cannot be used.
    """

    def __init__(self, files: Iterable[str | None], build: Build, emit: Emit) -> None:
        self._files = [file for file in files if file is not None]
        self._build = build
        self._emit = emit
        self._state = self._read_state()
        self._refused: list[object] | None = None  # the state of the files that could not be used
        self._is_reported = False
        self.current = build()

    def refresh(self) -> ssl.SSLContext:
        """Use files that have changed, if they are valid, and return the context to use.

        A state that stays invalid is reported at the second call: certificate and key do not change at one moment.
        """
        state = self._read_state()
        if state != self._state:
            self._replace(state)
        return self.current

    def _replace(self, state: list[object]) -> None:
        try:
            context = self._build()
        except ConfigError as error:
            if state != self._refused:
                self._refused, self._is_reported = state, False
            elif not self._is_reported:
                self._is_reported = True
                fields: dict[str, object] = {"reason": str(error), "files": ", ".join(self._files)}
                self._emit(Log("error", "changed TLS files refused, the old ones stay in use", fields))
            return
        self.current, self._state, self._refused = context, state, None
        self._emit(Log("info", "changed TLS files in use", {"files": ", ".join(self._files)}))

    def _read_state(self) -> list[object]:
        return [_file_state(file) for file in self._files]


class RoleTls:
    """How one role uses TLS.

    Args:
        options: The options of the role.
        emit: Writes one log line.

    Attributes:
        certificate: The context for accepted connections; None if TLS is disabled.
        is_enforcing: Whether plain connections are refused.
        outgoing: The context for connections that the role opens; None for plain ones.
        handshake_timeout_s: How long a connection may take until its handshake has ended.
        handshakes_max: The maximum number of connections that have not finished their handshake.

    Raises:
        ConfigError: the options contradict each other, or a file cannot be used.
    """

    def __init__(self, options: SecurityOptions, emit: Emit) -> None:
        self.certificate = None if options.tls == "disabled" else server_context(options, emit)
        self.is_enforcing = options.tls == "enforcing"
        outgoing = options.outgoing_tls
        self.outgoing = None if outgoing is None else client_context(outgoing, emit)
        self.handshake_timeout_s = options.handshake_timeout_ms / 1000
        self.handshakes_max = options.handshakes_max
        self._emit = emit

    def report_plain(self, peer: str) -> None:
        """Log that a plain connection of *peer* was closed."""
        hint = "the client does not use TLS, which this port requires (tls = enforcing)"
        self._emit(Log("warning", "plain connection refused", {"peer": peer, "reason": hint}))


def server_context(options: SecurityOptions, emit: Emit) -> WatchedContext:
    """Return the context for connections that a role accepts.

    Raises:
        ConfigError: a file is missing or cannot be used; the text says which and why.
    """
    cert, key, ca = options.tls_cert, options.tls_key, options.tls_ca
    if cert is None or key is None:
        raise ConfigError(
            f"tls is {options.tls} and needs tls_cert and tls_key, PEM files with the certificate and its key "
            "(`holdfast tls init DIR` makes both, for development)"
        )
    if options.tls_client_auth != "none" and ca is None:
        raise ConfigError(
            f"tls_client_auth is {options.tls_client_auth} and needs tls_ca, a PEM file with the authorities that sign "
            "the certificates of clients"
        )

    def build() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        _load_certificate(context, cert, key)
        if options.tls_client_auth != "none" and ca is not None:
            _load_authorities(context, ca)
        context.verify_mode = _CERTIFICATE_REQUESTS[options.tls_client_auth]
        return context

    return WatchedContext((cert, key, ca), build, emit)


def client_context(tls: ClientTls, emit: Emit) -> WatchedContext:
    """Return the context for connections that a client opens.

    Raises:
        ConfigError: a file is missing or cannot be used; the text says which and why.
    """

    def build() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = tls.verify == "full"
        if tls.verify == "none":
            context.verify_mode = ssl.CERT_NONE
        elif tls.ca is None:
            context.load_default_certs()
        if tls.ca is not None:
            _load_authorities(context, tls.ca)
        if tls.cert is not None and tls.key is not None:
            _load_certificate(context, tls.cert, tls.key)
        return context

    return WatchedContext((tls.cert, tls.key, tls.ca), build, emit)


def describe_tls_error(error: Exception) -> str:
    """Return why a connection failed that was dialled or accepted, and for the usual mistakes what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate was not accepted: {error.verify_message.rstrip('.')}. Name the authority that signed it "
            "(tls ca), and dial a host that it names; or verify less (tls verify: full, chain or none)"
        )
    if isinstance(error, ssl.SSLError):
        reason = (getattr(error, "reason", None) or error.strerror or str(error)).replace("_", " ").lower()
        return f"the TLS handshake failed: {reason}"
    if isinstance(error, ConnectionResetError):
        return "the peer closed the connection"
    return str(error) or type(error).__name__


def _file_state(file: str) -> object:
    """Return what changes with the content of a file; None if there is no such file."""
    try:
        found = os.stat(file)  # noqa: PTH116 - in every second, or for every dial
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Load a certificate and its key.

    Raises:
        ConfigError: a file is unreadable, the key is not safe or encrypted, or the two do not match.
    """
    _require_readable("tls_cert", cert)
    mode = _require_readable("tls_key", key)
    if mode & _UNSAFE_KEY_MODE:
        raise ConfigError(
            f"tls_key: other users can read or change {key} (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {key}"
        )

    def refuse_password() -> NoReturn:
        raise ConfigError(f"tls_key: {key} is encrypted; give an unencrypted key that only its owner can read")

    try:
        context.load_cert_chain(cert, key, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls_key: {key} is not the key of the certificate in {cert}") from error
        raise ConfigError(f"tls_cert, tls_key: no certificate and key in PEM form in {cert} and {key}") from error
    except OSError as error:
        raise ConfigError(f"tls_cert, tls_key: {cert} and {key}: {error.strerror or error}") from error


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    _require_readable("tls_ca", ca)
    try:
        context.load_verify_locations(ca)
    except OSError as error:  # includes SSLError
        raise ConfigError(f"tls_ca: no certificates in PEM form in {ca}") from error


def _require_readable(option: str, file: str) -> int:
    """Return the mode of *file*.

    Raises:
        ConfigError: it is not a file that can be read.
    """
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 - a path from an option, as text
            return os.fstat(opened.fileno()).st_mode
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {file}: {error.strerror or error}") from error
