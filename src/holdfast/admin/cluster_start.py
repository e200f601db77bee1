"""The plan of a cluster on this machine: its roles, ports, folders and commands.

    name server   127.0.0.1:9876
    broker-a      127.0.0.1:10911     each broker also answers on port - 2, and port + 1 is kept free for replication
    broker-b      127.0.0.1:10921

Ports are checked before any process starts, so that the error names the occupied port, instead of a process that dies.
Ports that are picked here are held as long as the cluster runs: a broker that starts later, or again, finds its port
free.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.admin.cluster_access import ClusterAccess
from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.config import UpOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError, HoldfastError, RequestTimeout
from holdfast.runtime.address import split_address
from holdfast.runtime.process.own_host import find_own_host
from holdfast.runtime.supervisor import ChildSpec

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
DEFAULT_BROKERS: Final = 2
PORT_STEP: Final = 10
# Below the range from which the kernel assigns ports for outgoing connections, and apart from those of our tests.
_FREE_PORTS: Final = range(15_000, 20_000, PORT_STEP)
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_REGISTERED_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.01


class BrokerPlan(msgspec.Struct, frozen=True):
    """One broker: where it listens, and the address that clients dial."""

    name: str
    listen: str
    address: str
    store: str
    metrics: str | None


class ClusterPlan(msgspec.Struct, frozen=True):
    """A whole cluster.

    Attributes:
        namesrv: The address that clients dial.
        namesrv_listen: The address that the name server listens on.
        idle: Brokers that have data in the folder and are not started.
    """

    folder: str
    namesrv: str
    namesrv_listen: str
    brokers: list[BrokerPlan]
    flush: str | None
    idle: list[str]
    metrics: str | None

    def name_server_spec(self, extra: Sequence[str]) -> ChildSpec:
        """Return how to start the name server."""
        data = str(Path(self.folder, "namesrv"))
        words = ["namesrv", "--listen", self.namesrv_listen, "--data", data]
        # Topics created with --order keep their queues while a broker is away; other topics are not affected.
        words += ["--set", "order_message_enable=true"]
        words += ["--metrics-listen", self.metrics] if self.metrics is not None else []
        return child_spec("namesrv", [*words, *extra])

    def broker_spec(self, broker: BrokerPlan, extra: Sequence[str]) -> ChildSpec:
        """Return how to start one of the brokers."""
        words = ["broker", "--name", broker.name, "--namesrv", self.namesrv, "--listen", broker.listen]
        words += ["--advertise", broker.address, "--store", broker.store]
        words += ["--flush", self.flush] if self.flush is not None else []
        words += ["--metrics-listen", broker.metrics] if broker.metrics is not None else []
        return child_spec(broker.name, [*words, *extra])


def plan_cluster(options: UpOptions, folder: Path, reserved_ports: contextlib.ExitStack) -> ClusterPlan:
    """Return the cluster that `holdfast up` with *options* starts.

    Args:
        options: How many brokers, and where they listen.
        folder: The data folder.
        reserved_ports: Holds the ports that are picked here until it is closed.

    Raises:
        ConfigError: a port is taken; the text says which and what to do.
    """
    existing = sorted(path.name for path in folder.glob("broker-*") if path.is_dir())
    count = options.brokers or len(existing) or DEFAULT_BROKERS
    names = broker_names(count)
    default = "127.0.0.1:0" if options.base_port == 0 else DEFAULT_NAMESRV
    host, port = split_address(options.namesrv or default)
    ports = _choose_ports(host, options.base_port, count, reserved_ports)
    if port == 0:
        port = find_free_ports(host, 1, reserved_ports)[0]
    elif not is_free(host, port):
        raise ConfigError(
            f"port {port} is taken: is a cluster running already? If not, choose another with --namesrv HOST:PORT"
        )
    dialled_host = _dialled_host(host)
    metrics_of_namesrv, *metrics_of_brokers = _metrics_addresses(host, options.metrics_port, 1 + count)
    return ClusterPlan(
        folder=str(folder),
        namesrv=_join(dialled_host, port),
        namesrv_listen=_join(host, port),
        brokers=[
            BrokerPlan(name, _join(host, port), _join(dialled_host, port), str(folder / name), metrics)
            for name, port, metrics in zip(names, ports, metrics_of_brokers, strict=True)
        ],
        metrics=metrics_of_namesrv,
        flush=options.flush,
        idle=[name for name in existing if name not in names],
    )


def broker_names(count: int) -> list[str]:
    """Return broker-a, broker-b, ... broker-z, broker-27, ..."""
    letters = string.ascii_lowercase
    return [f"broker-{letters[number]}" if number < len(letters) else f"broker-{number + 1}" for number in range(count)]


async def wait_until_registered(
    plan: ClusterPlan, tls: ClientTls | None = None, credentials: CredentialsOptions | None = None
) -> None:
    """Return once the name server lists every broker.

    Args:
        plan: The cluster.
        tls: How to use TLS to ask it; None for a plain connection.
        credentials: What proves who asks; None without access control.

    Raises:
        RequestTimeout: one of them does not appear.
    """
    expected = {broker.name for broker in plan.brokers}
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _REGISTERED_TIMEOUT_S
    async with ClusterAccess(plan.namesrv, timeout_s=_REGISTERED_TIMEOUT_S, tls=tls, credentials=credentials) as access:
        while True:
            registered: set[str] = set()
            with contextlib.suppress(HoldfastError):
                registered = {broker.name for broker in await access.brokers()}
            if expected <= registered:
                return
            if loop.time() > deadline_s:
                raise RequestTimeout(f"{min(expected - registered)} runs but has not registered with {plan.namesrv}")
            await asyncio.sleep(_PAUSE_S)  # a name server does not report new brokers: poll


def child_spec(name: str, words: Sequence[str]) -> ChildSpec:
    """Return how to start `holdfast serve` with *words*, as a child that reports when it is ready."""
    return ChildSpec(name, (sys.executable, "-m", "holdfast", "serve", *words, "--json", "--with-parent"))


def _choose_ports(host: str, base_port: int, count: int, reserved_ports: contextlib.ExitStack) -> list[int]:
    if base_port == 0:
        return find_free_ports(host, count, reserved_ports)
    ports = [base_port + PORT_STEP * number for number in range(count)]
    for name, port in zip(broker_names(count), ports, strict=True):
        if not all(is_free(host, each) for each in _bound_ports(port)):
            raise ConfigError(
                f"port {port} (or {port - 2}) of {name} is taken: stop the process that uses it, or choose another"
                " with --base-port N (0 picks free ones)"
            )
    return ports


def _metrics_addresses(host: str, first_port: int | None, count: int) -> list[str | None]:
    if first_port is None:
        return [None] * count
    for port in range(first_port, first_port + count):
        if not is_free(host, port):
            raise ConfigError(f"port {port} is taken: choose others for metrics with --metrics-port N")
    return [_join(host, port) for port in range(first_port, first_port + count)]


def _bound_ports(port: int) -> tuple[int, ...]:
    """Return the ports that a broker on *port* binds."""
    return (port - 2, port)


def find_free_ports(host: str, count: int, reserved_ports: contextlib.ExitStack) -> list[int]:
    """Return *count* ports that are free together with their neighbours; *reserved_ports* holds all of them."""
    start = random.randrange(len(_FREE_PORTS))
    found: list[int] = []
    for base in (*_FREE_PORTS[start:], *_FREE_PORTS[:start]):
        port = base + 4
        with contextlib.suppress(OSError), contextlib.ExitStack() as reservations:
            for each in (*_bound_ports(port), port + 1):
                reservations.enter_context(_reserve_port(host, each))
            reserved_ports.enter_context(reservations.pop_all())
            found.append(port)
            if len(found) == count:
                return found
    raise ConfigError(f"no {count} free ports between {_FREE_PORTS.start} and {_FREE_PORTS.stop}")


def _reserve_port(host: str, port: int) -> socket.socket:
    """Return a socket that occupies *port*, but leaves it to a server that binds it with SO_REUSEADDR, as ours do.

    Raises:
        OSError: the port is taken or held.
    """
    reservation = socket.socket(_family(host))
    try:
        reservation.bind((host, port))
    except OSError:
        reservation.close()
        raise
    # Only after the bind: with the option, that would succeed on a port that another process holds.
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on a port.

    Raises:
        ConfigError: the port does not exist, or we may not listen on it.
    """
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError:
            raise ConfigError(f"port {port} does not exist; ports are 1 to 65535") from None
        except OSError as error:
            if error.errno is not None and isinstance(error, PermissionError):
                raise ConfigError(f"not allowed to listen on port {port}; choose one above 1023") from error
            return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _dialled_host(host: str) -> str:
    """Return the host that other machines dial when a server listens on *host*."""
    return find_own_host() if host in _WILDCARDS else host


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
