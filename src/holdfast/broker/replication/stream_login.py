"""The login on a connection of the replication port, before the stream of upstream begins.

    replica ─> 0xfe "HFLOGIN", then frames as on any other connection: 7060, 7061 ─> admitted ─> reports, as upstream
    without access control, or from a trusted address ─────────────────────────────> reports at once

A report is a position in the log, so its first byte is never 0xfe. Java replicas know no login and are admitted by
their address, which the operator lists in `trusted_brokers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.access.door import Door
from holdfast.access.login_server import LoginServer
from holdfast.access.sessions import ip_of
from holdfast.broker.flow.peer_login import LoginResult, LoginSettings, PeerLogin
from holdfast.machine.events import ChannelId
from holdfast.machine.request import Refusal, Request
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import IdentityKind
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.source_address import SourcePattern, parse_source
from holdfast.model.errors import ConfigError, RemoteProtocolError
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, encode_command, response
from holdfast.wire.frames.fields import BadField
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.requests.table import BROKER_REQUESTS

MAGIC: Final = b"\xfeHFLOGIN"
LOGIN_MAX_MS: Final = 10_000
"""How long a login may take before the connection is closed."""
FRAME_SIZE_MAX: Final = 4_096
_FRAMES_MAX: Final = 8
_CODES: Final = frozenset({RequestCode.LOGIN, RequestCode.LOGIN_PROOF})


class StreamLogin(msgspec.Struct):
    """The login of one replica, on the master's side.

    Attributes:
        received: What was received and not processed yet.
        has_begun: The replica logs in.
        frames: How many frames it has sent.
    """

    received: bytes = b""
    has_begun: bool = False
    frames: int = 0


class StreamGate:
    """Admits replicas to the log stream.

    Args:
        door: Knows who uses a channel.
        logins: Answers the requests of a login.
        is_required: Whether access control is on.
        trusted: Addresses that are admitted without a login.
        turn: The turn of the broker.
    """

    def __init__(
        self, door: Door, logins: LoginServer, trusted: Sequence[SourcePattern], turn: Turn, *, is_required: bool
    ) -> None:
        self._door = door
        self._logins = logins
        self._trusted = trusted
        self._turn = turn
        self._is_required = is_required

    def opened(self, channel: ChannelId, peer: str) -> None:
        """Register a connection."""
        self._door.channel_opened(channel, peer)

    def advance(self, login: StreamLogin, channel: ChannelId, peer: str, data: bytes | memoryview) -> bytes | None:
        """Process received data; return the bytes after the login, or None while it is not complete.

        Raises:
            RemoteProtocolError: the peer is not admitted.
        """
        login.received += bytes(data)
        if not login.has_begun:
            if len(login.received) < len(MAGIC) and MAGIC.startswith(login.received):
                return None
            if not login.received.startswith(MAGIC):
                return self._admit_unproven(login, channel, peer)
            login.received, login.has_begun = login.received[len(MAGIC) :], True
        frames, consumed = split_frames(memoryview(login.received), frame_size_max=FRAME_SIZE_MAX)
        commands = [decode_command(frame) for frame in frames]
        login.received = login.received[consumed:]
        for number, command in enumerate(commands, 1):
            login.frames += 1
            if command.code not in _CODES or login.frames > _FRAMES_MAX:
                raise RemoteProtocolError(
                    f"its login contains a request with code {command.code}, or too many requests"
                )
            self._answer(channel, peer, command)
            if self._door.identity_of(channel, command).kind is IdentityKind.CLUSTER:
                if number < len(commands):
                    raise RemoteProtocolError("a request follows its login")
                return login.received
        return None

    def _admit_unproven(self, login: StreamLogin, channel: ChannelId, peer: str) -> bytes:
        if self._is_required and not is_trusted(ip_of(peer), self._trusted):
            raise RemoteProtocolError(
                "it does not log in. A replica of Holdfast needs --cluster-secret; a Java replica has to be admitted by"
                f" its address: add {ip_of(peer)} to trusted_brokers"
            )
        self._door.note_proven(channel)
        return login.received

    def _answer(self, channel: ChannelId, peer: str, command: Command) -> None:
        spec = BROKER_REQUESTS[command.code]
        try:
            request = Request(command=command, header=spec.decode(command), channel=channel, peer=peer)
        except BadField as error:
            raise RemoteProtocolError(str(error)) from error
        begin_or_complete = self._logins.begin if command.code == RequestCode.LOGIN else self._logins.complete
        answer = begin_or_complete(request)
        if isinstance(answer, Refusal):
            answer = response(command, answer.code, answer.remark)
        assert answer is not None, "logins are answered at once"
        self._turn.send(channel, [encode_command(answer)])


class MasterLogin:
    """The login of this replica at its master's replication port.

    Args:
        settings: How this broker logs in.
        master: The address that was dialed.
    """

    def __init__(self, settings: LoginSettings, master: str) -> None:
        self._login = PeerLogin(settings, master)
        self._received = b""
        self._opaque = 0

    def begin(self) -> list[bytes]:
        """Return the first bytes to send."""
        return [MAGIC, self._encode(self._login.begin())]

    def advance(self, data: bytes | memoryview) -> tuple[list[bytes], bytes | None]:
        """Process received data; return the bytes to send, and those after the login: None until it ends.

        Raises:
            RemoteProtocolError: the master has not proven the cluster secret.
        """
        self._received += bytes(data)
        frames, consumed = split_frames(memoryview(self._received), frame_size_max=FRAME_SIZE_MAX)
        answers = [decode_command(frame) for frame in frames]
        self._received = self._received[consumed:]
        outgoing: list[bytes] = []
        for answer in answers:
            if not answer.is_response or answer.opaque != self._opaque:
                raise RemoteProtocolError("its answer to the login cannot be read")
            result = self._login.advance(answer)
            if isinstance(result, LoginResult):
                if not result.is_trusted:
                    raise RemoteProtocolError(result.problem or "it knows no login on this port")
                return outgoing, self._received
            outgoing.append(self._encode(result))
        return outgoing, None

    def _encode(self, command: Command) -> bytes:
        self._opaque += 1
        command.opaque = self._opaque
        return encode_command(command)


def parse_trusted(texts: Sequence[str]) -> tuple[SourcePattern, ...]:
    """Return the patterns of `trusted_brokers`.

    Raises:
        ConfigError: one of them is neither an IP address nor a CIDR block.
    """
    try:
        return tuple(parse_source(text) for text in texts)
    except DirectoryRefused as error:
        raise ConfigError(f"trusted_brokers: {error}") from error


def is_trusted(ip: str, trusted: Sequence[SourcePattern]) -> bool:
    """Return whether an address is one of those that need no login."""
    return any(pattern.matches(ip) for pattern in trusted)
