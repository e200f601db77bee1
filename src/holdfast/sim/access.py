"""Access control in the simulated world: one cluster secret, and one user who may do everything by a rule."""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.access.directory_store import PATH
from holdfast.access.role_secrets import RoleSecrets
from holdfast.model.access.credentials import Credentials
from holdfast.model.access.directory import Directory
from holdfast.model.access.resource import Action
from holdfast.model.access.rule import Effect, ResourcePattern, Rule
from holdfast.model.access.user import User
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.access.records import encode_records

CREDENTIALS: Final = Credentials("clients", "the-secret-of-all-clients")
_CLUSTER_SECRET: Final = "the-secret-of-all-servers"  # noqa: S105 - of a simulation


def role_secrets(rng: Random) -> RoleSecrets:
    """Return the secrets of a server, whose nonces come from the seed of the run."""
    return RoleSecrets(rng.randbytes, (_CLUSTER_SECRET,))


def save_users(disk: SimDisk) -> None:
    """Write the directory of a server that starts for the first time."""
    directory = Directory()
    directory.create_user(User(CREDENTIALS.access_key, (CREDENTIALS.secret_key,)), now_ms=1)
    rule = Rule(ResourcePattern.parse("*"), frozenset(Action), Effect.ALLOW)
    directory.put_rules(CREDENTIALS.access_key, [rule], now_ms=2)
    disk.replace(PATH, encode_records(directory.records), is_private=True)
