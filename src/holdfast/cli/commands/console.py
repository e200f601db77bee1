"""`holdfast serve console`: the HTTP API and the pages of a cluster, until SIGTERM or Ctrl-C.

Unlike a role, it is a client of the cluster: it takes the options of commands, not those of servers. Loading this
module adds the command to `holdfast serve`.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from holdfast.cli.arguments import (
    AccessKeyOption,
    AuthModeOption,
    NamesrvOption,
    ProfileOption,
    SecretFileOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TlsVerifyOption,
)
from holdfast.cli.commands.serve import (
    DebugOption,
    JsonOption,
    LevelOption,
    LogJsonOption,
    ParentOption,
    app,
    run_service,
    warn_of_variables,
)
from holdfast.cli.credentials import credentials_of
from holdfast.cli.profiles import find_cluster
from holdfast.cli.shared_options import cluster_flags, command_with
from holdfast.config import LogOptions, Sources, load
from holdfast.console.options import DEFAULT_LISTEN, ConsoleOptions, check_console_address, find_missing_package
from holdfast.model.errors import ConfigError
from holdfast.runtime.logs import start_logging


def _options(
    *,
    context: typer.Context,
    namesrv: NamesrvOption = None,
    profile: ProfileOption = None,
    tls_ca: TlsCaOption = None,
    tls_verify: TlsVerifyOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    access_key: AccessKeyOption = None,
    secret_file: SecretFileOption = None,
    auth_mode: AuthModeOption = None,
) -> ConsoleOptions:
    """Return the cluster to show, and the user to be there."""
    # `cluster_flags` and `credentials_of` read them: a flag wins over all variables.
    del namesrv, profile, tls_ca, tls_verify, tls_cert, tls_key, access_key, secret_file, auth_mode
    cluster = find_cluster(cluster_flags(context), os.environ)
    return ConsoleOptions(namesrv=cluster.namesrv, tls=cluster.tls, credentials=credentials_of(context))


@command_with(_options, app, "console")
def serve_console(
    options: ConsoleOptions,
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where browsers reach it: an address of this machine only.")
    ] = DEFAULT_LISTEN,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    log_level: LevelOption = None,
    log_json: LogJsonOption = None,
    as_json: JsonOption = False,
    with_parent: ParentOption = False,
    debug: DebugOption = False,
) -> None:
    """Run the console: pages that show a cluster live, and an HTTP API.

    Example: holdfast serve console --namesrv 127.0.0.1:9876 --listen 127.0.0.1:9880
    """
    del debug
    check_console_address(listen)
    if missing := find_missing_package():
        raise ConfigError(missing)
    from holdfast.console.service import ConsoleService  # noqa: PLC0415 - its packages are an extra

    flags = {"level": log_level, "json": log_json}
    logs = load("log", LogOptions, Sources(environment=os.environ, flags=flags))
    emit = start_logging(level=logs.level, json=logs.json)
    if not with_parent:  # a parent has the same environment and has already warned
        warn_of_variables(emit)
    own_options = ConsoleOptions(
        namesrv=options.namesrv,
        listen=listen,
        is_read_only=read_only,
        tls=options.tls,
        credentials=options.credentials,
    )
    run_service(ConsoleService(own_options, emit), {"role": "console"}, as_json=as_json, with_parent=with_parent)
