"""Users and rules for machines with access control, and the requests with which their clients prove who they are."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping, Sequence
from typing import Final

from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.machine import MachineHarness

from holdfast.access.directory_store import AccessStore
from holdfast.access.role_secrets import RoleSecrets
from holdfast.machine.events import ChannelClosed, ChannelId
from holdfast.model.access.credentials import Credentials
from holdfast.model.access.directory import Directory
from holdfast.model.access.rule import Effect, ResourcePattern, Rule, parse_actions
from holdfast.model.access.user import CLUSTER_USER, User, UserKind
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.wire.access.login import client_proof, encode_nonce
from holdfast.wire.access.signature import sign
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

SECRET: Final = "a-secret-of-a-user"
CLUSTER_SECRET: Final = "the-secret-of-all-servers"
CLIENT_NONCE: Final = encode_nonce(bytes(32))


def role_secrets() -> RoleSecrets:
    """Return those of a role that knows the cluster secret."""
    return RoleSecrets(random.Random(3).randbytes, (CLUSTER_SECRET,))


def guarded_broker(**options: object) -> BrokerHarness:
    """Return a broker with access control."""
    return BrokerHarness(auth=True, secrets=role_secrets(), **options)  # type: ignore[arg-type]


def guarded_name_server() -> MachineHarness:
    """Return a name server with access control."""
    return MachineHarness(NameServer(NameServerOptions(auth=True), random.Random(7), secrets=role_secrets()))


def store_of(server: MachineHarness) -> AccessStore:
    """Return the users and rules of a machine."""
    machine = server.machine
    return machine.access_store if isinstance(machine, NameServer) else server.components.access_store  # type: ignore[attr-defined, no-any-return]


def rule(text: str) -> Rule:
    """Return a rule: `Topic:t Pub,Sub` or `Deny Topic:t All`."""
    words = text.split()
    effect = Effect.DENY if words[0] == "Deny" else Effect.ALLOW
    resource, actions = words[-2:]
    return Rule(ResourcePattern.parse(resource), parse_actions(actions.split(",")), effect)


class Users:
    """Changes the users and rules of a machine, as another server of its domain does."""

    def __init__(self, server: MachineHarness) -> None:
        self._server = server
        self._store = store_of(server)
        self._directory = Directory(self._store.directory.records)
        self._now_ms = server.now_ms

    def add(self, name: str, *rules: str, is_super: bool = False, secrets: Sequence[str] = (SECRET,)) -> None:
        """Create a user with rules."""
        kind = UserKind.SUPER if is_super else UserKind.NORMAL
        self._directory.create_user(User(name, tuple(secrets), kind), self._tick())
        if rules:
            self._directory.put_rules(name, [rule(text) for text in rules], self._tick())
        self._adopt()

    def update(self, name: str, **changes: object) -> None:
        """Change a user."""
        self._directory.update_user(name, self._tick(), **changes)  # type: ignore[arg-type]
        self._adopt()

    def delete(self, name: str) -> None:
        """Delete a user."""
        self._directory.delete_user(name, self._tick())
        self._adopt()

    def grant(self, name: str, *rules: str) -> None:
        """Add rules of a user."""
        self._directory.put_rules(name, [rule(text) for text in rules], self._tick())
        self._adopt()

    def revoke(self, name: str) -> None:
        """Delete all rules of a user."""
        self._directory.delete_rules(name, self._tick())
        self._adopt()

    def _tick(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def _adopt(self) -> None:
        self._store.merge(self._directory.records)
        # Any event: what the change causes is done at its end.
        self._server.feed(ChannelClosed(ChannelId(999_999), self._server.now_ms))


def signed(command: Command, user: str, secret: str = SECRET) -> Command:
    """Return a request with the signature of a user."""
    command.fields = sign(command.fields, command.body, Credentials(user, secret))
    return command


def begin_login(server: MachineHarness, channel: int, user: str) -> Mapping[str, str]:
    """Begin a login; return the fields of the answer."""
    server.pop_answers(channel)
    fields = {"user": user, "clientNonce": CLIENT_NONCE}
    answer = server.request(RequestCode.LOGIN, fields, channel=channel)
    assert answer.code == 0, answer.remark
    assert len(base64.b64decode(answer.fields["serverNonce"])) == 32
    return answer.fields


def log_in(server: MachineHarness, channel: int, user: str, secret: str = SECRET, **fields: str) -> Command:
    """Log in, with further *fields* of the proof; return its answer."""
    nonce = begin_login(server, channel, user)["serverNonce"]
    proof = client_proof(secret, user, CLIENT_NONCE, nonce)
    return server.request(RequestCode.LOGIN_PROOF, {"user": user, "proof": proof, **fields}, channel=channel)


def log_in_as_server(server: MachineHarness, channel: int) -> None:
    """Let another server of the cluster log in."""
    answer = log_in(server, channel, CLUSTER_USER, CLUSTER_SECRET)
    assert answer.code == 0, answer.remark
