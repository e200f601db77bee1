"""Options that several commands share, declared once.

    def common(*, a: Annotated[...] = ..., b: ...) -> Thing      the shared options, and the value made from them
    def command(thing: Thing, *, own: Annotated[...]) -> None    a command with these and more options

Typer reads a command's options from its signature, so this module joins the two signatures.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import typer

_Function = TypeVar("_Function", bound=Callable[..., Any])


def command_with(
    common: Callable[..., Any], app: typer.Typer, name: str, **settings: Any
) -> Callable[[_Function], _Function]:
    """Register a function as command *name* of *app*. Its first parameter receives the return value of *common*."""

    def register(function: _Function) -> _Function:
        hints = typing.get_type_hints(function, include_extras=True)
        own_parameters = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in list(inspect.signature(function).parameters.values())[1:]
        ]
        shared_parameters = list(inspect.signature(common, eval_str=True).parameters.values())

        def command(**values: Any) -> None:
            shared_value = common(**{parameter.name: values.pop(parameter.name) for parameter in shared_parameters})
            function(shared_value, **values)

        command.__signature__ = inspect.Signature(own_parameters + shared_parameters)  # type: ignore[attr-defined]
        command.__doc__ = function.__doc__
        app.command(name, **settings)(command)
        return function

    return register


def is_flag_given(context: typer.Context, name: str) -> bool:
    """Return whether the command line gives the option *name*, and not the environment or a default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def cluster_flags(context: typer.Context) -> dict[str, str | None]:
    """Return the options of the command line that say which cluster, and how to reach it."""
    names = ("namesrv", "profile", "tls_ca", "tls_verify", "tls_cert", "tls_key")
    return {name: flag_of(context, name) for name in names if name in context.params}


def flag_of(context: typer.Context, name: str) -> Any:
    """Return the value of the option *name* from the command line, or None; ignore the environment and defaults."""
    return context.params[name] if is_flag_given(context, name) else None
