"""A scripted server with access control: it speaks the login, and verifies signatures.

async with LoginServer({"ann": ["secret"]}) as server:
server.on(...)                        answered to users who logged in or signed; others get code 16
server.own_secret = "other"           the server proves itself with another secret than the user's
server.kind = "java"                  it knows no login: code 3, in JAVA, to requests that are signed correctly
server.kind = "open"                  it has no access control
server.logins                         who logged in, in order, each with the secret
"""

import asyncio
import os
from typing import Literal

from tests.support.scripted_server import ScriptedServer

from holdfast.wire.access.login import (
    Challenge,
    LoginFields,
    LoginProofFields,
    encode_nonce,
    server_proof,
)
from holdfast.wire.access.signature import verify
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.frames.fields import from_fields

UNKNOWN = "User:{} is not found."


class LoginServer(ScriptedServer):
    """Listens on a free port of loopback while the block lasts."""

    def __init__(self, users: dict[str, list[str]]) -> None:
        super().__init__()
        self.users = users
        self.own_secret: str | None = None
        self.kind: Literal["holdfast", "java", "open"] = "holdfast"
        self.logins: list[tuple[str, str]] = []
        self.connections = 0
        self.refused: list[Command] = []
        self._challenges: dict[asyncio.StreamWriter, Challenge] = {}
        self._identities: dict[asyncio.StreamWriter, str] = {}
        self._writer: asyncio.StreamWriter | None = None

    async def wait_for_logins(self, count: int) -> None:
        """Return once there were *count* logins."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.logins) >= count)

    async def wait_for_login_attempts(self, count: int) -> None:
        """Return once *count* logins have begun."""
        await self.wait_for_requests(RequestCode.LOGIN, count)

    def answer(self, command: Command) -> Command | None:
        """Admit or refuse *command*, and answer as the script says."""
        if self.kind == "open":
            if command.code == RequestCode.LOGIN:
                return response(command, fields={"required": "false"})
            return super().answer(command)
        if self.kind == "java":
            return self._answer_as_java(command)
        if command.code == RequestCode.LOGIN:
            return self._challenge(command)
        if command.code == RequestCode.LOGIN_PROOF:
            return self._log_in(command)
        assert self._writer is not None
        if self._writer not in self._identities and not self._is_signed(command):
            self.refused.append(command)
            return response(command, ResponseCode.NO_PERMISSION, "check signature failed.")
        return super().answer(command)

    def _answer_as_java(self, command: Command) -> Command | None:
        """Answer as a broker 5.5.0 with authentication: its hooks run before it looks whether it knows the code."""
        if self._is_signed(command):
            answer = super().answer(command)
        else:
            self.refused.append(command)
            text = "check signature failed." if "AccessKey" in command.fields else "username cannot be null."
            answer = response(command, ResponseCode.NO_PERMISSION, text)
        if answer is not None:
            answer.language = "JAVA"
        return answer

    def _is_signed(self, command: Command) -> bool:
        secrets = self.users.get(command.fields.get("AccessKey", ""), [])
        return verify(command, [secret.encode() for secret in secrets])

    def _challenge(self, command: Command) -> Command:
        assert self._writer is not None
        fields = from_fields(LoginFields, command.fields)
        nonce = encode_nonce(os.urandom(32))
        self._challenges[self._writer] = Challenge(fields.user, fields.client_nonce, nonce, 10_000)
        return response(command, fields={"serverNonce": nonce, "server": self.address, "method": "HMAC-SHA256"})

    def _log_in(self, command: Command) -> Command:
        assert self._writer is not None
        challenge = self._challenges.pop(self._writer)
        secrets = self.users.get(challenge.user, [])
        secret = challenge.find_secret(from_fields(LoginProofFields, command.fields), secrets, 0)
        if secret is None:
            return response(command, ResponseCode.NO_PERMISSION, UNKNOWN.format(challenge.user))
        self.logins.append((challenge.user, secret))
        self._identities[self._writer] = challenge.user
        proof = server_proof(self.own_secret or secret, challenge.user, challenge.client_nonce, challenge.server_nonce)
        return response(command, fields={"proof": proof})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await super()._serve(reader, writer)

    async def _handle(self, command: Command, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        await super()._handle(command, writer)
