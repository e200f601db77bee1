"""`holdfast serve namesrv|broker|console`: run one server in this process until SIGTERM or Ctrl-C.

With `--json`, one line on standard output reports that the role serves, and its address; logs go to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, TypeVar

import msgspec
import typer

from holdfast.cli.shared_options import command_with
from holdfast.config import LogOptions, Sources, load, variable_warnings
from holdfast.machine.effects import Log
from holdfast.model.errors import ConfigError
from holdfast.runtime.address import split_address
from holdfast.runtime.logs import Emit, start_logging
from holdfast.runtime.process.descriptors import raise_limit
from holdfast.runtime.process.libc import keep_freed_memory
from holdfast.runtime.process.own_host import find_own_host

app = typer.Typer(no_args_is_help=True, help="Run one server in this process.")

_Options = TypeVar("_Options", bound=msgspec.Struct)

_COLLECT_THRESHOLD: Final = 20_000  # objects created and not freed since the last collection

_START_OPTIONS: Final = frozenset({"config", "settings", "log_level", "log_json", "as_json", "with_parent", "debug"})
"""The shared options that say how to start; all others are settings of the role."""

_REQUIRED_CALLS: Final = ("fdatasync", "posix_fallocate")

LogLevel = Literal["debug", "info", "warning", "error"]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", envvar="HOLDFAST_CONFIG", metavar="FILE", help="TOML file with settings.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="Set any other option; can be repeated.")
]
MetricsOption = Annotated[
    str | None, typer.Option("--metrics-listen", metavar="HOST:PORT", help="Serve /metrics and /health here.")
]
TlsOption = Annotated[
    Literal["disabled", "permissive", "enforcing"] | None,
    typer.Option(help="Accept plain connections only, plain and TLS, or only TLS.", show_default="disabled"),
]
TlsCertOption = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate to present, in a PEM file.")
]
TlsKeyOption = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="The private key of the certificate, in a PEM file.")
]
TlsCaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca", metavar="FILE", help="The authorities that sign the certificates of peers, in a PEM file."
    ),
]
AuthOption = Annotated[
    bool | None,
    typer.Option("--auth/--no-auth", help="Serve only users who are permitted to do what they ask.", show_default="no"),
]
ClusterSecretOption = Annotated[
    str | None,
    typer.Option("--cluster-secret", metavar="FILE", help="The secret that all servers of a cluster share."),
]
AclFileOption = Annotated[
    str | None,
    typer.Option("--acl-file", metavar="PATH", help="Follow RocketMQ's plain_acl.yml, or a folder of such files."),
]
InsecureOption = Annotated[
    bool | None,
    typer.Option(
        "--insecure/--no-insecure",
        help="Listen beyond loopback without access control: anyone may do everything.",
        show_default="no",
    ),
]
AuditFileOption = Annotated[
    str | None,
    typer.Option("--audit-file", metavar="FILE", help="Append changes, failed logins and refusals as JSON lines."),
]
MetricsTokenOption = Annotated[
    str | None,
    typer.Option("--metrics-token", metavar="FILE", help="The token with which scrapers may read /metrics."),
]
LevelOption = Annotated[
    LogLevel | None,
    typer.Option("--log-level", metavar="LEVEL", help="Log this level and above: debug, info, warning, error."),
]
LogJsonOption = Annotated[bool | None, typer.Option("--log-json/--log-text", help="Log JSON lines instead of text.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON line when ready.")]
ParentOption = Annotated[bool, typer.Option("--with-parent", hidden=True, help="Stop when standard input ends.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]


class Service(Protocol):
    """The shell of a role."""

    address: str

    async def start(self) -> None:
        """Start to serve; return once it serves."""
        ...

    async def stop(self) -> None:
        """Shut down in order."""
        ...


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="serve")


class RoleStart(msgspec.Struct, frozen=True, kw_only=True):
    """The options that all roles share: how to start, and the settings that every role has."""

    file: Path | None
    pairs: list[str]
    log_level: str | None
    log_json: bool | None
    as_json: bool
    with_parent: bool
    settings: dict[str, object]

    def load(self, section: str, kind: type[_Options], flags: Mapping[str, object]) -> _Options:
        """Return the options of a role, merged from file, environment and flags.

        Args:
            section: Its section of the file.
            kind: The type of its options.
            flags: The arguments of its command; `start` is ignored.
        """
        flags = {name: value for name, value in flags.items() if name != "start"} | self.settings
        return load(section, kind, Sources(file=self.file, environment=os.environ, pairs=self.pairs, flags=flags))

    def start_logging(self, **bound: object) -> Emit:
        """Start logging; return a function that writes log lines, each with the fields *bound*."""
        flags = {"level": self.log_level, "json": self.log_json}
        options = load("log", LogOptions, Sources(file=self.file, environment=os.environ, flags=flags))
        emit = start_logging(level=options.level, json=options.json, bound_fields=bound or None)
        if not self.with_parent:  # a parent has the same environment and has already warned
            warn_of_variables(emit)
        return emit

    def run(self, service: Service, announced: dict[str, str]) -> None:
        """Run *service* until it is asked to stop; with `--json`, print *announced* once it serves."""
        run_service(service, announced, as_json=self.as_json, with_parent=self.with_parent)


def warn_of_variables(emit: Emit) -> None:
    """Log environment variables that look like settings but are not."""
    for text in variable_warnings(os.environ):
        emit(Log("warning", text, {}))


def _require_linux() -> None:
    """Check that this system has the system calls that durable storage needs.

    Raises:
        ConfigError: it lacks one.
    """
    missing = [name for name in _REQUIRED_CALLS if not hasattr(os, name)]
    if missing:
        raise ConfigError(
            f"servers run on Linux: this system has no {' and no '.join(missing)}, which they need to keep data safe."
            " The client library and the other commands work here"
        )


def _role_options(
    *,
    config: ConfigOption = None,
    settings: SetOption = None,
    log_level: LevelOption = None,
    log_json: LogJsonOption = None,
    as_json: JsonOption = False,
    with_parent: ParentOption = False,
    metrics_listen: MetricsOption = None,
    tls: TlsOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    auth: AuthOption = None,
    cluster_secret: ClusterSecretOption = None,
    acl_file: AclFileOption = None,
    insecure: InsecureOption = None,
    audit_file: AuditFileOption = None,
    metrics_token: MetricsTokenOption = None,
    debug: DebugOption = False,
) -> RoleStart:
    """Return the options that all roles share. `main`, which catches failures, reads `--debug`."""
    role_settings = {name: value for name, value in locals().items() if name not in _START_OPTIONS}
    del debug
    _require_linux()
    return RoleStart(
        file=config,
        pairs=settings or [],
        log_level=log_level,
        log_json=log_json,
        as_json=as_json,
        with_parent=with_parent,
        settings=role_settings,
    )


@command_with(_role_options, app, "namesrv")
def serve_namesrv(
    start: RoleStart,
    *,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen.", show_default="127.0.0.1:9876")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Keep the key-value table here.")] = None,
) -> None:
    """Run a name server: it tracks which brokers serve which topics."""
    flags = dict(locals())
    from holdfast.nameserver.options import NameServerOptions  # noqa: PLC0415 - a broker does not load a name server
    from holdfast.nameserver.service import NameServerService  # noqa: PLC0415

    options = start.load("namesrv", NameServerOptions, flags)
    start.run(NameServerService(options, start.start_logging()), {"role": "namesrv"})


@command_with(_role_options, app, "broker")
def serve_broker(
    start: RoleStart,
    *,
    name: Annotated[str | None, typer.Option(help="The broker's name.", show_default="broker-a")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The cluster it belongs to.", show_default="DefaultCluster")
    ] = None,
    zone: Annotated[
        str | None, typer.Option(help="Its zone: clients in zone mode see only the brokers of their zone.")
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Name servers, separated by ';'.", show_default="127.0.0.1:9876"),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen.", show_default="127.0.0.1:10911")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address clients dial, if not the listening address.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where messages are kept.", show_default="store")
    ] = None,
    flush: Annotated[
        Literal["sync", "async"] | None,
        typer.Option(help="Acknowledge a message after it is on disk, or before.", show_default="sync"),
    ] = None,
    replica_of: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Be a replica of this broker: copy its log, accept no messages."),
    ] = None,
    replica_unit: Annotated[
        str | None,
        typer.Option(metavar="UNIT", help="The unit in which this replica runs: its consumers read from it."),
    ] = None,
) -> None:
    """Run a broker: it accepts, stores and delivers messages."""
    flags = dict(locals())
    from holdfast.broker.options import BrokerOptions  # noqa: PLC0415 - a name server does not load a broker
    from holdfast.broker.service import BrokerService  # noqa: PLC0415

    options = start.load("broker", BrokerOptions, flags)
    _check_replica(name, options.replica_of, options.ha_master)
    if options.replica_unit is not None and not options.is_replica:
        raise ConfigError(
            f"replica_unit {options.replica_unit} is the unit of a replica, and this broker is not a replica: "
            "name its master with --replica-of, or omit replica_unit"
        )
    if options.advertise is None:
        options = msgspec.structs.replace(options, advertise=_advertised(options.listen))
    name = options.replica_of or options.name
    announced = {"role": "broker", "name": name, "advertise": options.address}
    start.run(BrokerService(options, start.start_logging(broker=name)), announced)


def _check_replica(name: str | None, master: str | None, ha_master: str | None) -> None:
    """Check that the options of a replica do not contradict each other.

    Raises:
        ConfigError: they do; the text says which option is wrong, and what to do.
    """
    if name is not None and master not in {None, name}:
        raise ConfigError(
            f"a replica of {master} has its master's name: omit --name {name}. Replicas of one master differ in"
            " replica_id"
        )
    if ha_master is not None:
        try:
            split_address(ha_master)
        except ConfigError as error:
            raise ConfigError(f"ha_master: {error}") from error


def _advertised(listen: str) -> str | None:
    """Return the address to advertise when the broker listens on all addresses; None if it listens on one."""
    host, port = split_address(listen)
    if host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return None
    if port == 0:
        raise ConfigError("a broker that listens on port 0 of every address needs --advertise HOST:PORT")
    return f"{find_own_host()}:{port}"


def run_service(service: Service, announced: dict[str, str], *, as_json: bool, with_parent: bool) -> None:
    """Run *service* until it is asked to stop; with *as_json*, print *announced* and its address once it serves."""
    work = _serve(service, announced, as_json=as_json, with_parent=with_parent)
    keep_freed_memory()
    raise_limit()
    try:
        import uvloop  # noqa: PLC0415 - where it cannot be built, the standard loop is used
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def _serve(service: Service, announced: dict[str, str], *, as_json: bool, with_parent: bool) -> None:
    """Run *service* until a signal, or the end of the parent, stops it."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if with_parent:
        _watch_parent(loop, stopping)
    try:
        await service.start()
        # Objects that live now live to the end, so freeze them: the collector need not scan them repeatedly. It also
        # need not scan the objects of one turn: a pull of 1 MiB creates a view for every record, and took 7 % longer.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_COLLECT_THRESHOLD)
        if as_json:
            line = msgspec.json.encode({**announced, "address": service.address}).decode()
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        await stopping.wait()
    finally:
        await service.stop()


def _watch_parent(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Set *stopping* when standard input ends. The parent has its other end, so this also works if it is killed."""

    def on_input() -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(sys.stdin.fileno(), 1024):
                loop.remove_reader(sys.stdin.fileno())
                stopping.set()

    os.set_blocking(sys.stdin.fileno(), False)
    with contextlib.suppress(PermissionError):  # standard input is a file, not a pipe from a parent
        loop.add_reader(sys.stdin.fileno(), on_input)
