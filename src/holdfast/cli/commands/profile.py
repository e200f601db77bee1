"""`holdfast profile`: list the saved clusters."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from holdfast.admin import tables
from holdfast.cli.profiles import load_profiles, profiles_file

app = typer.Typer(no_args_is_help=True, help="Show saved clusters.")


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="profile")


@app.callback()
def _keep_verb() -> None:
    """Make Typer keep `list` as a verb although it is the only one."""


@app.command("list")
def list_profiles(*, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """List the profiles in the configuration file, with the default one marked.

    Example: holdfast profile list
    """
    saved = load_profiles(os.environ)
    file = profiles_file(os.environ)
    if as_json:
        tables.print_json({"file": str(file), "default": saved.default, "profiles": saved.profiles})
        return
    rows = [
        (name, profile.namesrv.replace(";", "; "), "default" if name == saved.default else None)
        for name, profile in sorted(saved.profiles.items())
    ]
    empty = f'none; write [profiles.NAME] with namesrv = "HOST:PORT" into {file}'
    tables.print_all([tables.Table(tables.left("PROFILE", "NAME SERVERS", ""), rows, empty=empty)])
