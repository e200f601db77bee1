"""`Session`, which every command that talks to a cluster gets: the cluster's address, output and confirmation.

    @cluster_command(app, "list")
    def list_topics(session: Session, *, everything: Annotated[bool, ...] = False) -> None: ...

The decorator gives the command `--namesrv`, `--profile`, `--access-key`, `--secret-file`, `--auth-mode`, `--timeout`,
`--unit`, `--json` and `--debug`, and passes the function a `Session` made from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

import typer

from holdfast.admin import tables
from holdfast.admin.cluster_access import NameServerUnreachable
from holdfast.admin.operations import Admin
from holdfast.cli.arguments import (
    CLUSTER_PANEL,
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
from holdfast.cli.credentials import credentials_of
from holdfast.cli.profiles import ChosenCluster, find_cluster
from holdfast.cli.shared_options import cluster_flags, command_with, is_flag_given
from holdfast.client.access.credentials_options import CredentialsArguments, CredentialsOptions
from holdfast.model.errors import AccessDenied, ConfigError, HoldfastError

DEFAULT_TIMEOUT_S: Final = 5.0

_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class NotConfirmed(HoldfastError):
    """The user was asked for confirmation and declined."""


class Session:
    """One run of a command.

    Attributes:
        namesrv: Addresses of name servers, `;` between them.
        access: The user to act as, as arguments of clients; empty for no user.
        as_json: Whether a program reads the output.
        tls: How to use TLS; None for plain connections.
        unit: The unit (a cluster) to which the command is limited; None for all units.
        is_unit_explicit: Whether the command line names the unit, and not the environment.
    """

    def __init__(
        self,
        *,
        cluster: ChosenCluster,
        timeout_s: float,
        as_json: bool,
        unit: str | None = None,
        is_unit_explicit: bool = False,
        credentials: CredentialsOptions | None = None,
    ) -> None:
        self.namesrv, self._namesrv_source, self.tls = cluster
        self.access: CredentialsArguments = {} if credentials is None else credentials.to_arguments()
        self.unit = unit
        self.is_unit_explicit = is_unit_explicit
        self._is_unit_verified = False
        self.timeout_s = timeout_s
        self.as_json = as_json

    def execute(self, work: Callable[[Admin], Awaitable[_Result]]) -> _Result:
        """Connect to the cluster, run *work* and return its result.

        Raises:
            NameServerUnreachable: no name server answers; the text names the addresses and the remedy.
        """

        async def run() -> _Result:
            async with Admin(
                self.namesrv, timeout_s=self.timeout_s, unit=self.unit, tls=self.tls, **self.access
            ) as admin:
                return await work(admin)

        return self.run(run())

    async def _run_in_known_unit(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run *work* after checking that the unit exists: a mistyped unit would look like an empty one."""
        with contextlib.closing(work):
            if self.unit is not None and not self._is_unit_verified:
                async with Admin(self.namesrv, timeout_s=self.timeout_s, tls=self.tls, **self.access) as admin:
                    await admin.units.require_unit(self.unit)
                self._is_unit_verified = True
            return await work

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run *work* to its end. If no name server answers, or it wants a user, raise an error with the remedy."""
        try:
            return asyncio.run(self._run_in_known_unit(work))
        except AccessDenied as error:
            if self.access:
                raise
            raise HoldfastError(
                f"{self.namesrv} ({self._namesrv_source}) has access control: say who you are with --access-key USER"
                " --secret-file FILE, or with a profile that names both"
            ) from error
        except NameServerUnreachable as error:
            hint = "; if it requires TLS, give its authority with --tls-ca FILE" if self.tls is None else ""
            raise NameServerUnreachable(
                f"no name server answers at {self.namesrv} ({self._namesrv_source}): {error}. "
                f"Start one with `holdfast up`, or give its address with --namesrv HOST:PORT{hint}"
            ) from error

    def show(self, value: object, *printed: tables.Printable) -> None:
        """Print *value* as one JSON document with `--json`, else *printed*."""
        if self.as_json:
            tables.print_json(value)
        else:
            tables.print_all(printed)

    def note(self, text: str) -> None:
        """Print a remark on standard error that is not part of the result; nothing with `--json`."""
        if not self.as_json:
            sys.stderr.write(text + "\n")

    @staticmethod
    def warn(text: str) -> None:
        """Warn on standard error, with `--json` too, that the result is incomplete."""
        sys.stderr.write(f"warning: {text}\n")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation before a destructive change, but only at a terminal: a script has decided already.

        Raises:
            NotConfirmed: the user declined.
        """
        if yes or not is_interactive():
            return
        if not typer.confirm(question, err=True):
            raise NotConfirmed("nothing was changed")


def cluster_command(app: typer.Typer, name: str, **settings: Any) -> Callable[[_Function], _Function]:
    """Register a function as command *name* of *app*. Its first parameter is a `Session`, the others its options."""
    return command_with(_common_options, app, name, **settings)


def _common_options(
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
    timeout: Annotated[
        float,
        typer.Option(
            envvar="HOLDFAST_TIMEOUT",
            metavar="SECONDS",
            help="Wait this long for an answer.",
            rich_help_panel=CLUSTER_PANEL,
        ),
    ] = DEFAULT_TIMEOUT_S,
    unit: Annotated[
        str | None,
        typer.Option(
            envvar="HOLDFAST_UNIT",
            metavar="CLUSTER",
            help="Limit the command to what clients of this unit see; with `dr`: the unit to open or close.",
            rich_help_panel=CLUSTER_PANEL,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=CLUSTER_PANEL)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a failure.", rich_help_panel=CLUSTER_PANEL)
    ] = False,
) -> Session:
    """Return the session for the common options. `main`, which catches failures, reads `--debug`."""
    # `cluster_flags` and `credentials_of` read them: a flag wins over all variables.
    del debug, namesrv, profile, tls_ca, tls_verify, tls_cert, tls_key, access_key, secret_file, auth_mode
    if timeout <= 0:
        raise ConfigError("--timeout must be more than 0")
    if unit == "":
        raise ConfigError("--unit is empty, which would mean all of them: name one, or omit the option")
    return Session(
        cluster=find_cluster(cluster_flags(context), os.environ),
        timeout_s=timeout,
        as_json=as_json,
        unit=unit,
        is_unit_explicit=is_flag_given(context, "unit"),
        credentials=credentials_of(context),
    )


def is_interactive() -> bool:
    """Return whether a user at a terminal can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]


def parse_pairs(texts: list[str], *, option: str) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a dict.

    Raises:
        ConfigError: one has no `=`.
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} {text!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs
