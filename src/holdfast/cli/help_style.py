"""The style of all help texts: `-h` as well as `--help`, and readable placeholders instead of Python's types.

--json                      a flag takes no value
--queues   N [x>=1]         instead of <int range> [x>=1]
--flush    sync|async       instead of <sync|async>
"""

from __future__ import annotations

from typing import Final

import typer
from typer.core import TyperGroup, TyperOption

HELP_NAMES: Final = ["--help", "-h"]
_PLACEHOLDERS: Final = {"str": "TEXT", "int": "N", "int range": "N", "float": "NUMBER", "float range": "NUMBER"}


def build_command(app: typer.Typer) -> TyperGroup:
    """Return the root command of *app*, with this help style applied to every command below it."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    commands = [command]
    while commands:
        each = commands.pop()
        _style(each)
        commands += getattr(each, "commands", {}).values()
    return command


def _style(command: TyperGroup) -> None:
    context = typer.Context(command, help_option_names=HELP_NAMES)
    for option in command.get_params(context):
        if not isinstance(option, TyperOption):
            continue
        if option.is_flag:
            option.metavar = ""
        elif option.metavar is None:
            kind = option.display_type(context).strip("<>")
            option.metavar = _PLACEHOLDERS.get(kind, kind)
