"""`holdfast up`: a name server and a few brokers, each in a separate process, kept running until Ctrl-C.

    holdfast-data/
      lock          locked while a cluster runs on this folder
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
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from holdfast.admin.cluster_start import ClusterPlan, plan_cluster, wait_until_registered
from holdfast.cli.commands.serve import ConfigOption, DebugOption, LevelOption, LogJsonOption, warn_of_variables
from holdfast.config import LogOptions, Sources, UpOptions, load
from holdfast.machine.effects import Log
from holdfast.runtime.address import is_loopback, split_address
from holdfast.runtime.folder_lock import lock_folder
from holdfast.runtime.logs import Emit, start_logging
from holdfast.runtime.supervisor import Supervisor


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
    }
    options = load("up", UpOptions, Sources(file=config, environment=os.environ, flags=flags))
    logs = load("log", LogOptions, Sources(file=config, environment=os.environ, flags={"json": log_json}))
    emit = start_logging(level=log_level or logs.level, json=logs.json)
    warn_of_variables(emit)
    # One log line per registration helps an operator, but only disturbs a user who tries Holdfast out.
    roles_level = log_level or (logs.level if logs.level != LogOptions().level else "warning")
    folder = Path(options.data).resolve()
    with lock_folder(folder), contextlib.ExitStack() as reserved_ports:
        plan = plan_cluster(options, folder, reserved_ports)
        extra = ["--log-level", roles_level, *(["--log-json"] if logs.json else [])]
        extra += ["--config", str(config)] if config is not None else []
        broker_extra = [word for pair in settings or () for word in ("--set", pair)]
        asyncio.run(_run(plan, extra, broker_extra, emit, as_json=as_json))


async def _run(plan: ClusterPlan, extra: list[str], broker_extra: list[str], emit: Emit, *, as_json: bool) -> None:
    supervisor = Supervisor(emit)
    stopping = asyncio.Event()
    _listen_to_signals(stopping, supervisor)
    try:
        ready = asyncio.create_task(_start(supervisor, plan, extra, broker_extra))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ready
            return
        await ready
        _warn(plan, emit)
        _announce(plan, as_json=as_json)
        await stopped
        emit(Log("info", "stopping", {}))
    finally:
        await supervisor.stop([broker.name for broker in plan.brokers if supervisor.has_child(broker.name)])
        await supervisor.stop()


async def _start(supervisor: Supervisor, plan: ClusterPlan, extra: list[str], broker_extra: list[str]) -> None:
    await supervisor.start([plan.name_server_spec(extra)])
    await supervisor.start([plan.broker_spec(broker, [*broker_extra, *extra]) for broker in plan.brokers])
    await wait_until_registered(plan)


def _listen_to_signals(stopping: asyncio.Event, supervisor: Supervisor) -> None:
    def stop() -> None:
        if stopping.is_set():
            supervisor.kill()  # a second signal: the user does not want to wait
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _warn(plan: ClusterPlan, emit: Emit) -> None:
    host, _ = split_address(plan.namesrv_listen)
    if not is_loopback(host):
        text = "listening beyond loopback without access control: anyone who reaches these ports can read and write"
        emit(Log("warning", text, {"host": host}))
    if plan.idle:
        emit(Log("warning", "brokers in the data folder that are not started", {"brokers": ", ".join(plan.idle)}))


def _announce(plan: ClusterPlan, *, as_json: bool) -> None:
    if as_json:
        listed = [{"name": broker.name, "address": broker.address} for broker in plan.brokers]
        text = msgspec.json.encode({"namesrv": plan.namesrv, "brokers": listed}).decode()
    else:
        text = _greeting(plan)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _greeting(plan: ClusterPlan) -> str:
    width = max(len("name server"), *(len(broker.name) for broker in plan.brokers))
    namesrv_option = "" if plan.namesrv == "127.0.0.1:9876" else f" --namesrv {plan.namesrv}"
    return "\n".join(
        [
            f"Holdfast is up. Messages are kept in {plan.folder}.",
            "",
            f"  {'name server':{width}}  {plan.namesrv}{_metrics_text(plan.metrics)}",
            *(f"  {broker.name:{width}}  {broker.address}{_metrics_text(broker.metrics)}" for broker in plan.brokers),
            "",
            "In another terminal:",
            f'  holdfast send hello "first message"{namesrv_option}',
            f"  holdfast tail hello --from earliest{namesrv_option}",
            "",
            "Stop with Ctrl-C; the same command starts it again with everything that was sent.",
        ]
    )


def _metrics_text(address: str | None) -> str:
    return "" if address is None else f"   http://{address}/metrics"
