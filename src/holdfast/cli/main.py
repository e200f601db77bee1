"""The command `holdfast`: finds the noun, runs its verb, and turns every failure into one line and an exit status.

    0 done      1 failed      2 wrong usage      130 interrupted

Only the requested noun is loaded, so that `holdfast serve broker` does not load consumers and tables. If the noun is
unknown (help, completion, a misspelling), all nouns are loaded.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from typer.exceptions import TyperException

from holdfast.cli.help_style import HELP_NAMES, build_command
from holdfast.model.errors import ConfigError, HoldfastError
from holdfast.model.spelling_hint import hint_suffix

PROGRAM: Final = "holdfast"
# In the order in which help shows them; each module has a `register(app)`.
NOUNS: Final = {
    "up": "holdfast.cli.commands.up",
    "serve": "holdfast.cli.commands.serve",
    "topic": "holdfast.cli.commands.topic",
    "queue": "holdfast.cli.commands.queue",
    "group": "holdfast.cli.commands.group",
    "broker": "holdfast.cli.commands.broker",
    "cluster": "holdfast.cli.commands.cluster",
    "move": "holdfast.cli.commands.move",
    "dr": "holdfast.cli.commands.dr",
    "send": "holdfast.cli.commands.send",
    "tail": "holdfast.cli.commands.tail",
    "message": "holdfast.cli.commands.message",
    "index": "holdfast.cli.commands.index",
    "pipeline": "holdfast.cli.commands.pipeline",
    "bench": "holdfast.cli.commands.bench",
    "profile": "holdfast.cli.commands.profile",
    "tls": "holdfast.cli.commands.tls",
    "user": "holdfast.cli.commands.user",
    "acl": "holdfast.cli.commands.acl",
}
# Command names from RocketMQ's proposal of logical queues, and the commands that they run here.
ALIASES: Final = {
    "updatelogicalqueuemapping": ("queue", "set"),
    "deletelogicalqueuemapping": ("queue", "unset"),
    "querylogicalqueuemapping": ("queue", "list"),
    "updatelogicalqueuenum": ("topic", "grow"),
    "migratelogicalqueue": ("queue", "migrate"),
}
INTERRUPTED: Final = 130
# `serve console` is a client of a cluster: roles start without what it needs.
_ROLES: Final = (["namesrv"], ["broker"])
_SERVE_CONSOLE: Final = "holdfast.cli.commands.console"
_LOGGING_NOUNS: Final = frozenset({"serve", "up"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0].lower() in ALIASES:
        words = [*ALIASES[words[0].lower()], *words[1:]]
    # The client logs failures that it recovers from; a command prints only its own result.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    _warn_of_variables(words[0] if words else "")
    try:
        command = build_command(build(words))
        status = command.main(words, prog_name=PROGRAM, standalone_mode=False)
    except BrokenPipeError:
        # The reader of the output has closed it. Without this, Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if "--debug" in words:
            raise
        return _report_error(error)
    return status if isinstance(status, int) else 0


def build(words: Sequence[str]) -> typer.Typer:
    """Return the tree of commands, limited to the nouns that *words* need."""
    app = typer.Typer(
        name=PROGRAM,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP_NAMES},
    )
    app.callback()(_root)
    first_word = words[0] if words else ""
    # In completion, *words* is empty: the shell passes the words in an environment variable.
    nouns = [first_word] if first_word in NOUNS and not _is_completion() else list(NOUNS)
    for noun in nouns:
        importlib.import_module(NOUNS[noun]).register(app)
    if "serve" in nouns and list(words[1:2]) not in _ROLES:
        importlib.import_module(_SERVE_CONSOLE)
    return app


def _is_completion() -> bool:
    return f"_{PROGRAM.upper()}_COMPLETE" in os.environ


def _warn_of_variables(noun: str) -> None:
    """Print one line with the HOLDFAST_ variables that have no effect; roles report them in their log."""
    if (
        _is_completion()
        or noun in _LOGGING_NOUNS
        or not any(variable.startswith("HOLDFAST_") for variable in os.environ)
    ):
        return
    from holdfast.config import variable_warnings  # noqa: PLC0415 - it loads the options of all roles

    if texts := variable_warnings(os.environ):
        sys.stderr.write(f"warning: {'; '.join(texts)}\n")


def _print_version(is_requested: bool) -> None:  # noqa: FBT001 - the library calls it so
    if is_requested:
        from importlib import metadata  # noqa: PLC0415 - it loads half of the standard library

        from holdfast.native import DESCRIPTION  # noqa: PLC0415 - it may load the extension

        sys.stdout.write(f"{PROGRAM} {metadata.version(PROGRAM)}, {DESCRIPTION}\n")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """A RocketMQ-compatible message system: brokers, name server, client and tools in one command.

    Start with [bold]holdfast up[/bold], then [bold]holdfast send hello "first message"[/bold] and
    [bold]holdfast tail hello --from earliest[/bold].
    """
    del version


def _report_error(error: Exception) -> int:
    """Print one line with the error and the remedy; return the exit status."""
    if isinstance(error, TyperException):
        return _report_usage_error(error)
    if isinstance(error, ConfigError):
        _print_error(str(error))
        return 2
    if isinstance(error, HoldfastError):
        _print_error(str(error))
        return 1
    if isinstance(error, OSError):
        _print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return 1
    _print_error(f"internal error, {type(error).__name__}: {error} (run again with --debug for the traceback)")
    return 1


def _report_usage_error(error: TyperException) -> int:
    message = error.format_message()
    possible = getattr(error, "possibilities", None)
    if possible:
        name = str(getattr(error, "option_name", ""))
        message = f"no such option: {name}{hint_suffix(name, possible)}"
    context = getattr(error, "ctx", None)
    if message and context is not None:
        message = f"{message.rstrip('.')} (see `{context.command_path} --help`)"
    if message:  # without one, the help has been printed already
        _print_error(message)
    return error.exit_code


def _print_error(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {' '.join(text.split())}\n")
