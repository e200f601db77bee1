"""Shell completion (TAB) of topics, groups and brokers, with names from the cluster that the command addresses.

A completion never fails: if no cluster answers quickly, it offers nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final

import typer

from holdfast.admin.operations import Admin
from holdfast.cli.profiles import find_namesrv
from holdfast.cli.shared_options import flag_of
from holdfast.model.errors import HoldfastError

_PATIENCE_S: Final = 1.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin with *incomplete*."""

    async def names(admin: Admin) -> list[str]:
        return [topic.name for topic in await admin.topics.summaries()]

    return _offer(context, names, incomplete)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups that begin with *incomplete*."""

    async def names(admin: Admin) -> list[str]:
        return list(await admin.groups.configs())

    return _offer(context, names, incomplete)


def complete_broker(context: typer.Context, incomplete: str) -> list[str]:
    """Return the brokers that begin with *incomplete*."""

    async def names(admin: Admin) -> list[str]:
        return sorted({broker.name for broker in await admin.reach.brokers()})

    return _offer(context, names, incomplete)


def _offer(context: typer.Context, names: Callable[[Admin], Awaitable[list[str]]], incomplete: str) -> list[str]:
    async def ask() -> list[str]:
        namesrv, _ = find_namesrv(flag_of(context, "namesrv"), flag_of(context, "profile"), os.environ)
        async with asyncio.timeout(_PATIENCE_S), Admin(namesrv, timeout_s=_PATIENCE_S) as admin:
            return await names(admin)

    try:
        return [name for name in asyncio.run(ask()) if name.startswith(incomplete)]
    except (HoldfastError, TimeoutError):
        return []
