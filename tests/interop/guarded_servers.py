"""Clusters with access control: ours, and the real RocketMQ 5.5.0 beside it; their users are made in the same way.

The administrator and the users of a Java cluster live on each of its brokers; those of ours on all of its servers.
"""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.servers import CLUSTER, HOLDFAST_SETTINGS, JAVA_SETTINGS
from tests.support.child import Child
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import (
    Answer,
    Signer,
    make_topic,
    raw_request,
    wait_until,
    wait_until_registered,
)
from tests.support.java_peer import JavaPeer

from holdfast.model.access.user import User, UserKind
from holdfast.runtime.access.first_administrator import create_first_administrator

ADMIN = Signer("administrator", "secret-of-the-administrator")
_CREATE_USER, _UPDATE_USER, _DELETE_USER, _GET_USER = 3001, 3002, 3003, 3004
_CREATE_RULES, _DELETE_RULES, _GET_RULES = 3006, 3008, 3009
_PROVIDERS = "org.apache.rocketmq.auth"


@dataclass(frozen=True, slots=True)
class GuardedServers:
    """A running cluster with access control. `kind` is "holdfast" or "java"."""

    kind: str
    name_server: str
    brokers: dict[str, str]

    @property
    def first_broker(self) -> str:
        """The address of the first broker by name."""
        return self.brokers[min(self.brokers)]

    @property
    def _authorities(self) -> list[str]:
        """Who knows the users."""
        return [*self.brokers.values(), *([self.name_server] if self.kind == "holdfast" else [])]

    @property
    def _written(self) -> list[str]:
        """Whom a change is sent to."""
        return [self.first_broker] if self.kind == "holdfast" else self._authorities

    def make_topic(self, topic: str, *, queues: int = 2, brokers: Sequence[str] = ()) -> None:
        """Make a topic on the named brokers, or on all."""
        addresses = [self.brokers[name] for name in brokers or self.brokers]
        make_topic(self.name_server, addresses, topic, queues=queues, signer=ADMIN)

    def add_user(self, user: Signer, *rules: str, kind: str = "Normal") -> None:
        """Create a user with rules such as `Topic:orders Pub,Sub`; return once all servers have them."""
        body = {"username": user.user, "password": user.secret, "userType": kind, "userStatus": "enable"}
        self._change(_CREATE_USER, {"username": user.user}, body)
        self._wait(_GET_USER, {"username": user.user}, user.user)
        if rules:
            self.grant(user, *rules)

    def grant(self, user: Signer, *rules: str) -> None:
        """Add rules of a user; return once all servers have them."""
        entries = []
        for resource, actions in map(str.split, rules):
            entries.append({"resource": resource, "actions": actions.split(","), "decision": "Allow"})
        subject = f"User:{user.user}"
        body = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
        self._change(_CREATE_RULES, {"subject": subject}, body)
        self._wait(_GET_RULES, {"subject": subject}, entries[-1]["resource"])

    def revoke(self, user: Signer) -> None:
        """Delete all rules of a user; return once no server has them."""
        subject = f"User:{user.user}"
        self._change(_DELETE_RULES, {"subject": subject})
        self._wait(_GET_RULES, {"subject": subject}, None)

    def _change(self, code: int, fields: Mapping[str, str], body: object = None) -> None:
        encoded = b"" if body is None else json.dumps(body).encode()
        for address in self._written:
            answer = raw_request(address, code, fields, encoded, signer=ADMIN)
            assert answer.code == 0, answer

    def _wait(self, code: int, fields: Mapping[str, str], text: str | None) -> None:
        """Return once all answers contain *text*; None: once they are empty."""
        for address in self._authorities:
            ask = functools.partial(raw_request, address, code, fields, signer=ADMIN)
            wait_until(functools.partial(_says, ask, text), lambda ask=ask: str(ask()))


def _says(ask: Callable[[], Answer], text: str | None) -> bool:
    found = ask().text
    return not found if text is None else text in found


def private_file(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path


@contextlib.contextmanager
def guarded_cluster(
    folder: Path, *brokers: str, name_servers: int = 1, settings: Mapping[str, object] | None = None
) -> Iterator[ProcessCluster]:
    """Run a name server of ours with the administrator, and brokers, all with access control.

    Args:
        folder: For files.
        brokers: Names of brokers.
        name_servers: None or one.
        settings: Of name servers and brokers.
    """
    secret = private_file(folder / "cluster.secret", "a long random secret of the cluster\n")
    common = {"auth": "true", "cluster_secret": secret, **(settings or {})}
    environment = {f"HOLDFAST_NAMESRV_{name.upper()}": str(value) for name, value in common.items()}
    cluster = ProcessCluster(
        folder,
        name_servers=0,
        cluster=CLUSTER,
        settings={**HOLDFAST_SETTINGS, **common},
        name_server_environment=environment,
        signer=ADMIN,
    )
    administrator = User(ADMIN.user, (ADMIN.secret,), UserKind.SUPER)
    with cluster:
        if name_servers:
            port = free_port()
            create_first_administrator(folder / f"namesrv-{port}", administrator, time.time_ns() // 1_000_000)
            cluster.start_name_server(port=port)
        for name in brokers:
            cluster.start(name)
        yield cluster


@contextlib.contextmanager
def guarded_holdfast_servers(folder: Path) -> Iterator[GuardedServers]:
    """Run a name server and two brokers of ours."""
    with guarded_cluster(folder, "broker-a", "broker-b") as cluster:
        addresses = {name: broker.address for name, broker in cluster.brokers.items()}
        yield GuardedServers("holdfast", cluster.namesrv, addresses)


def java_access_settings() -> dict[str, str]:
    """Return the settings of a Java broker that switch access control on; the administrator is its own user, too."""
    local = {
        f"{kind}MetadataProvider": f"{_PROVIDERS}.{kind}.provider.Local{kind.title()}MetadataProvider"
        for kind in ("authentication", "authorization")
    }
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        **local,
        "initAuthenticationUser": json.dumps({"username": ADMIN.user, "password": ADMIN.secret}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": ADMIN.user, "secretKey": ADMIN.secret}),
    }


@contextlib.contextmanager
def guarded_java_servers(peer: JavaPeer, folder: Path) -> Iterator[GuardedServers]:
    """Run a name server and one broker of RocketMQ 5.5.0."""
    children: list[Child] = []
    try:
        port = free_port()
        name_server = f"127.0.0.1:{port}"
        children.append(peer.start_name_server(port=port, home=folder / "namesrv"))
        port = free_port()
        children.append(
            peer.start_broker(
                name="broker-a",
                cluster=CLUSTER,
                port=port,
                name_server=name_server,
                store=folder / "broker-a",
                settings={**JAVA_SETTINGS, **java_access_settings()},
            )
        )
        wait_until_registered(name_server, ["broker-a"])
        yield GuardedServers("java", name_server, {"broker-a": f"127.0.0.1:{port}"})
    finally:
        for child in reversed(children):
            child.kill()
