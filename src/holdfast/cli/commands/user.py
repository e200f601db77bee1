"""`holdfast user`: create, list, update, delete, init. Users of a cluster with access control."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec
import typer

from holdfast.admin.access_control import AccessChange, UserSummary
from holdfast.admin.tables import Table, left, print_json, right, whole
from holdfast.cli.secret_files import SaveToOption, SecretFromOption, new_secret, read_new_secret, saved_secret
from holdfast.cli.session import Session, YesOption, cluster_command
from holdfast.model.access.user import User, UserKind, check_user
from holdfast.model.errors import ConfigError, StoreError

app = typer.Typer(no_args_is_help=True, help="Users of a cluster with access control.")

FIRST_USER: Final = "admin"

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the user.")]


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="user")


@cluster_command(app, "create")
def create(
    session: Session,
    name: NameArgument,
    *,
    is_super: Annotated[bool, typer.Option("--super", help="An administrator, who may do everything.")] = False,
    secret_from: SecretFromOption = None,
    save_to: SaveToOption = None,
) -> None:
    """Create a user. It may do nothing until `holdfast acl grant` permits something, unless it is an administrator.

    Without --secret-from, a secret is generated, and printed once.

    Example: holdfast user create alice --save-to alice.secret
    """
    new = _NewSecret.choose(secret_from, save_to)
    user = User(name, (new.secret,), UserKind.SUPER if is_super else UserKind.NORMAL)
    check_user(user)
    with new.saved():
        change = session.execute(lambda admin: admin.access_control.create_user(user))
    report_change(session, change)
    text = f"created {'the administrator' if is_super else 'the user'} {name}"
    _show(session, change, name, text, new)
    if not is_super:
        session.note(f"{name} may do nothing yet: permit something, as by `holdfast acl grant {name} Topic:orders Pub`")


@cluster_command(app, "list")
def list_users(
    session: Session,
    part: Annotated[str, typer.Argument(metavar="[PART]", help="Only users whose names contain this.")] = "",
) -> None:
    """List the users.

    Example: holdfast user list
    """
    found = session.execute(lambda admin: admin.access_control.users(part))
    columns = [*whole("USER"), *left("KIND", "STATE"), *right("RULES")]
    session.show(found, Table(columns, [_row(user) for user in found], empty="no user"))


@cluster_command(app, "update")
def update(
    session: Session,
    name: NameArgument,
    *,
    secret_from: SecretFromOption = None,
    save_to: SaveToOption = None,
    generate: Annotated[bool, typer.Option("--generate", help="Generate a new secret, and print it once.")] = False,
    keeps_old: Annotated[
        bool | None,
        typer.Option(
            "--keep-old-secret/--drop-old-secret",
            help="With a new secret: the old one stays valid beside it. Later: end that.",
            show_default="drop",
        ),
    ] = None,
    is_enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Accept the user, or refuse it.", show_default=False)
    ] = None,
    is_super: Annotated[
        bool | None,
        typer.Option("--super/--normal", help="An administrator, or a user with rules.", show_default=False),
    ] = None,
) -> None:
    """Change a user: its secret, its kind, or whether it is accepted. It takes effect within a second.

    Example: holdfast user update alice --save-to alice.secret --keep-old-secret
    """
    has_new = generate or secret_from is not None or save_to is not None
    if keeps_old and not has_new:
        raise ConfigError(
            "--keep-old-secret is for a new secret: give --secret-from FILE, --save-to FILE or --generate"
        )
    if not has_new and keeps_old is None and is_enabled is None and is_super is None:
        raise ConfigError(f"nothing to change: see `holdfast user update --help` for what can be changed of {name}")
    new = _NewSecret.choose(secret_from, save_to) if has_new else None
    secret = None if new is None else new.secret
    kind = None if is_super is None else UserKind.SUPER if is_super else UserKind.NORMAL
    with contextlib.nullcontext() if new is None else new.saved(replaces=True):
        change = session.execute(
            lambda admin: admin.access_control.update_user(
                name, secret=secret, keeps_old=keeps_old, kind=kind, is_enabled=is_enabled
            )
        )
    report_change(session, change)
    _show(session, change, name, f"updated the user {name}", new)
    if keeps_old:
        session.note(f"both secrets are valid until `holdfast user update {name} --drop-old-secret`")


@cluster_command(app, "delete")
def delete(session: Session, name: NameArgument, *, yes: YesOption = False) -> None:
    """Delete a user with its rules. Its open connections are refused within a second.

    Example: holdfast user delete alice
    """
    user = session.execute(lambda admin: admin.access_control.get_user(name))
    session.confirm(f"Delete the user {name} and its {user.rules} rules?", yes=yes)
    change = session.execute(lambda admin: admin.access_control.delete_user(name))
    report_change(session, change)
    session.show(change, f"deleted the user {name}")


@app.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a name server or broker that is stopped.")
    ],
    *,
    name: Annotated[str, typer.Option(metavar="NAME", help="The name of the administrator.")] = FIRST_USER,
    secret_from: SecretFromOption = None,
    save_to: SaveToOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """Create the first administrator, in the folder of one role: --data of a name server, or --store of a broker.

    The other servers learn it when that role starts. Without --secret-from, a secret is generated, and printed once.

    Example: holdfast user init ns --save-to admin.secret
    """
    del debug
    from holdfast.runtime.access.first_administrator import create_first_administrator  # noqa: PLC0415 - servers run on Linux

    new = _NewSecret.choose(secret_from, save_to)
    user = User(name, (new.secret,), UserKind.SUPER)
    check_user(user)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot use {folder}: {error.strerror or error}") from None
    with new.saved():
        try:
            create_first_administrator(folder, user, time.time_ns() // 1_000_000)
        except StoreError as error:
            raise StoreError(
                f"{error}. While it runs, an administrator creates users with `holdfast user create`"
            ) from None
    if as_json:
        print_json({"user": name, "folder": str(folder), **new.fields()})
        return
    sys.stdout.write(f"created the administrator {name} in {folder}\n{new.text()}")
    sys.stdout.write("start the role on this folder with --auth --cluster-secret FILE\n")


def report_change(session: Session, change: AccessChange) -> None:
    """Warn about servers that did not receive a change, and say where users and rules live."""
    for address, fault in change.missed.items():
        later = "repeat the command when it is back" if change.is_on_brokers else "it catches up when it is back"
        session.warn(f"{address} did not receive the change ({fault}): {later}")
    if change.is_on_brokers:
        brokers = ", ".join(change.servers)
        session.note(f"the name servers know no users: each broker has its own, and was changed: {brokers}")


class _NewSecret(msgspec.Struct, frozen=True):
    """A new secret, and what the user learns of it. The text form hides it.

    Attributes:
        secret: The secret.
        is_generated: The user does not have it yet.
        save_to: The file to write it to; None: print it.
    """

    secret: str
    is_generated: bool
    save_to: Path | None

    def __repr__(self) -> str:
        return f"_NewSecret({str(self.save_to)!r})"

    @classmethod
    def choose(cls, secret_from: str | None, save_to: Path | None) -> Self:
        """Return the secret that the options ask for.

        Raises:
            ConfigError: they contradict each other, or a file has no secret.
        """
        if secret_from is None:
            return cls(new_secret(), is_generated=True, save_to=save_to)
        if save_to is not None:
            raise ConfigError("--save-to is for a generated secret, and --secret-from for one that you have: give one")
        return cls(read_new_secret(secret_from), is_generated=False, save_to=None)

    def saved(self, *, replaces: bool = False) -> contextlib.AbstractContextManager[None]:
        """Write the secret to its file, if there is one, and if the block succeeds."""
        if self.save_to is None:
            return contextlib.nullcontext()
        return saved_secret(self.save_to, self.secret, replaces=replaces)

    def fields(self) -> dict[str, str]:
        """Return what a program needs to know."""
        if self.save_to is not None:
            return {"secret_file": str(self.save_to)}
        return {"secret": self.secret} if self.is_generated else {}

    def text(self) -> str:
        """Return a line for people; empty if they have the secret."""
        if self.save_to is not None:
            return f"its secret is in {self.save_to}, which only you can read\n"
        return f"its secret, which is shown only now: {self.secret}\n" if self.is_generated else ""


def _show(session: Session, change: AccessChange, name: str, text: str, new: _NewSecret | None) -> None:
    """Print what was done, and a generated secret unless it is in a file."""
    if session.as_json:
        fields = {} if new is None else new.fields()
        print_json({"user": name, "servers": change.servers, "missed": change.missed, **fields})
        return
    sys.stdout.write(f"{text}\n{'' if new is None else new.text()}")


def _row(user: UserSummary) -> tuple[str, str, str, int | None]:
    is_super = user.kind is UserKind.SUPER
    state = "enabled" if user.is_enabled else "disabled"
    return (user.name, "administrator" if is_super else "normal", state, None if is_super else user.rules)
