"""`holdfast up`: a name server, a few brokers and a console, each in a separate process, kept running until Ctrl-C.

    holdfast-data/
      lock          locked while a cluster runs on this folder
      admin.secret  with --auth: the secret of the administrator, and that of the servers in cluster.secret
      namesrv/      the name server's table
      broker-a/     the store of each broker
      broker-b/

The same command on the same folder starts the same cluster with its messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import typer

from holdfast.admin.cluster_start import ClusterPlan, plan_cluster, wait_until_registered
from holdfast.cli.commands.serve import (
    AuthOption,
    ConfigOption,
    DebugOption,
    InsecureOption,
    LevelOption,
    LogJsonOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TlsOption,
    warn_of_variables,
)
from holdfast.cli.local_access import PROFILE, LocalAccess, prepare_access, write_profile
from holdfast.cli.local_console import NAME as CONSOLE
from holdfast.cli.local_console import ConsolePlan, plan_console
from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.config import LogOptions, Sources, UpOptions, load
from holdfast.machine.effects import Log
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.access.user import CLUSTER_USER
from holdfast.model.errors import ConfigError
from holdfast.nameserver.options import NameServerOptions
from holdfast.runtime.access.role_secrets_reader import read_role_secrets
from holdfast.runtime.address import check_listening, split_address
from holdfast.runtime.folder_lock import lock_folder
from holdfast.runtime.logs import Emit, start_logging
from holdfast.runtime.supervisor import ChildFailed, Supervisor


def register(root: typer.Typer) -> None:
    """Add this command to the tree."""
    root.command("up")(up)


def up(
    *,
    brokers: Annotated[
        int | None, typer.Option(min=1, help="How many brokers.", show_default="those in the data folder, or 2")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Store all data here.", show_default="holdfast-data")
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the name server listens.", show_default="127.0.0.1:9876"),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(help="Port of the first broker; 0 picks free ports for everything.", show_default="10911"),
    ] = None,
    flush: Annotated[
        Literal["sync", "async"] | None,
        typer.Option(help="Acknowledge a message after it is on disk, or before.", show_default="sync"),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve /metrics and /health: name server on this port, brokers on the next ones."),
    ] = None,
    console: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|off", help="Where the console listens.", show_default="127.0.0.1:9880"),
    ] = None,
    tls: TlsOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    auth: AuthOption = None,
    insecure: InsecureOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready.")] = False,
    config: ConfigOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="Set any other option of the brokers; can be repeated."),
    ] = None,
    log_level: LevelOption = None,
    log_json: LogJsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Start a whole cluster: a name server and brokers. They are restarted if they die, and stopped with Ctrl-C."""
    del debug
    flags = {
        "brokers": brokers,
        "data": data,
        "namesrv": namesrv,
        "base_port": base_port,
        "flush": flush,
        "metrics_port": metrics_port,
        "console": console,
        "tls": tls,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
        "auth": auth,
        "insecure": insecure,
    }
    options = load("up", UpOptions, Sources(file=config, environment=os.environ, flags=flags))
    logs = load("log", LogOptions, Sources(file=config, environment=os.environ, flags={"json": log_json}))
    emit = start_logging(level=log_level or logs.level, json=logs.json)
    warn_of_variables(emit)
    # One log line per registration helps an operator, but only disturbs a user who tries Holdfast out.
    roles_level = log_level or (logs.level if logs.level != LogOptions().level else "warning")
    log_words = ["--log-level", roles_level, *(["--log-json"] if logs.json else [])]
    broker_extra = [word for pair in settings or () for word in ("--set", pair)]
    _launch(options, config, log_words, broker_extra, emit, as_json=as_json)


def _launch(
    options: UpOptions, config: Path | None, log_words: list[str], broker_extra: list[str], emit: Emit, *, as_json: bool
) -> None:
    """Start the cluster on its folder, with *log_words* for every child, and run it until it is stopped."""
    folder = Path(options.data).resolve()
    with lock_folder(folder), contextlib.ExitStack() as reserved_ports:
        plan = plan_cluster(options, folder, reserved_ports)
        access = prepare_access(folder, time.time_ns() // 1_000_000) if options.auth else None
        flags = options.security_flags
        flags |= {} if access is None else {"cluster_secret": str(access.cluster_secret)}
        own_options = load("namesrv", NameServerOptions, Sources(file=config, environment=os.environ, flags=flags))
        _check_listening(plan, own_options)
        credentials = _own_credentials(own_options)
        console = plan_console(options, has_auth=own_options.auth, reserved_ports=reserved_ports)
        extra = [*log_words, *(["--config", str(config)] if config is not None else []), *_to_words(flags)]
        start = _Start(plan, console, own_options.outgoing_tls, credentials, log_words, extra, broker_extra)
        asyncio.run(_run(start, access, emit, as_json=as_json))


class _Start(NamedTuple):
    """What starts a cluster.

    Attributes:
        plan: The roles.
        console: The console.
        tls: How `up` asks the name server whether they have registered; None for a plain connection.
        credentials: The server as which it asks; None without access control.
        log_words: How each child logs.
        extra: Further arguments of every role.
        broker_extra: Further arguments of every broker.
    """

    plan: ClusterPlan
    console: ConsolePlan
    tls: ClientTls | None
    credentials: CredentialsOptions | None
    log_words: list[str]
    extra: list[str]
    broker_extra: list[str]


def _check_listening(plan: ClusterPlan, options: NameServerOptions) -> None:
    """Refuse at once what every role would refuse. What it only warns of, the roles log."""
    host, _ = split_address(plan.namesrv_listen)
    check_listening(host, has_auth=options.auth, has_tls=options.tls != "disabled", is_insecure=options.insecure)


def _own_credentials(options: NameServerOptions) -> CredentialsOptions | None:
    """Return the credentials of a server: `up` knows the secret of the cluster, but perhaps of no user."""
    cluster = read_role_secrets(options).cluster
    return CredentialsOptions(access_key=CLUSTER_USER, secret_key=cluster[0]) if options.auth else None


def _to_words(flags: Mapping[str, str | bool | None]) -> list[str]:
    """Return the arguments of `serve` for *flags*; None is no argument."""
    words = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", value]
    return words


async def _run(start: _Start, access: LocalAccess | None, emit: Emit, *, as_json: bool) -> None:
    plan = start.plan
    supervisor = Supervisor(emit)
    stopping = asyncio.Event()
    _listen_to_signals(stopping, supervisor)
    try:
        ready = asyncio.create_task(_start(supervisor, start, emit))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ready
            return
        console = await ready
        _warn(plan, emit)
        profile = None if access is None else _save_profile(start, access, emit)
        _announce(plan, console, access, profile, as_json=as_json)
        await stopped
        emit(Log("info", "stopping", {}))
    finally:
        await supervisor.stop([CONSOLE] if supervisor.has_child(CONSOLE) else [])
        await supervisor.stop([broker.name for broker in plan.brokers if supervisor.has_child(broker.name)])
        await supervisor.stop()


async def _start(supervisor: Supervisor, start: _Start, emit: Emit) -> str | None:
    """Start all children; return the URL of the console, None without one."""
    plan = start.plan
    await supervisor.start([plan.name_server_spec(start.extra)])
    brokers = [plan.broker_spec(broker, [*start.broker_extra, *start.extra]) for broker in plan.brokers]
    console = asyncio.create_task(_start_console(supervisor, start, emit))
    try:
        await supervisor.start(brokers)
        await wait_until_registered(plan, start.tls, start.credentials)
        return await console
    finally:
        console.cancel()
        await asyncio.gather(console, return_exceptions=True)


async def _start_console(supervisor: Supervisor, start: _Start, emit: Emit) -> str | None:
    """Start the console; return its URL. Without one, log why, unless the user switched it off."""
    console = start.console
    if console.listen is None:
        if console.reason is not None:
            emit(Log("warning", "no console", {"reason": console.reason}))
        return None
    try:
        (ready_line,) = await supervisor.start([console.spec(start.plan.namesrv, start.tls, start.log_words)])
    except ChildFailed as error:
        if console.is_required:
            raise
        emit(Log("warning", "no console", {"reason": str(error)}))
        return None
    return f"http://{ready_line['address']}"


def _listen_to_signals(stopping: asyncio.Event, supervisor: Supervisor) -> None:
    def stop() -> None:
        if stopping.is_set():
            supervisor.kill()  # a second signal: the user does not want to wait
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _warn(plan: ClusterPlan, emit: Emit) -> None:
    if plan.idle:
        emit(Log("warning", "brokers in the data folder that are not started", {"brokers": ", ".join(plan.idle)}))


def _save_profile(start: _Start, access: LocalAccess, emit: Emit) -> str:
    """Write the profile; return the options that commands need to act as the administrator, perhaps none."""
    try:
        is_default = write_profile(os.environ, access, start.plan.namesrv, start.tls)
    except ConfigError as error:
        emit(Log("warning", "no profile written", {"reason": str(error)}))
        return f" --namesrv {start.plan.namesrv} --access-key {access.access_key} --secret-file {access.secret_file}"
    return "" if is_default and not os.environ.get("HOLDFAST_NAMESRV") else f" --profile {PROFILE}"


def _announce(
    plan: ClusterPlan, console: str | None, access: LocalAccess | None, profile: str | None, *, as_json: bool
) -> None:
    if as_json:
        listed = [{"name": broker.name, "address": broker.address} for broker in plan.brokers]
        ready: dict[str, object] = {"namesrv": plan.namesrv, "brokers": listed, "console": console}
        if access is not None:
            ready["auth"] = {"access_key": access.access_key, "secret_file": str(access.secret_file)}
        text = msgspec.json.encode(ready).decode()
    else:
        text = _greeting(plan, console, access, profile)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _greeting(plan: ClusterPlan, console: str | None, access: LocalAccess | None, profile: str | None) -> str:
    width = max(len("name server"), *(len(broker.name) for broker in plan.brokers))
    options = "" if plan.namesrv == "127.0.0.1:9876" else f" --namesrv {plan.namesrv}"
    options = options if profile is None else profile
    return "\n".join(
        [
            f"Holdfast is up. Messages are kept in {plan.folder}.",
            "",
            f"  {'name server':{width}}  {plan.namesrv}{_metrics_text(plan.metrics)}",
            *(f"  {broker.name:{width}}  {broker.address}{_metrics_text(broker.metrics)}" for broker in plan.brokers),
            *([] if console is None else [f"  {CONSOLE:{width}}  {console}"]),
            "",
            *([] if access is None else _access_lines(access, profile)),
            "In another terminal:",
            f'  holdfast send hello "first message"{options}',
            f"  holdfast tail hello --from earliest{options}",
            *([] if access is None else [f"  holdfast user create alice --save-to alice.secret{options}"]),
            "",
            "Stop with Ctrl-C; the same command starts it again with everything that was sent.",
        ]
    )


def _access_lines(access: LocalAccess, profile: str | None) -> list[str]:
    uses = f"Commands act as {access.access_key} by the profile {PROFILE}" if profile == "" else "Commands need options"
    return [
        "Every request needs a user with a permission for it. The administrator:",
        f"  name         {access.access_key}",
        f"  secret file  {access.secret_file}",
        f"{uses}: see `holdfast profile list`." if profile == "" else f"{uses} to act as it:{profile}",
        "",
    ]


def _metrics_text(address: str | None) -> str:
    return "" if address is None else f"   http://{address}/metrics"
