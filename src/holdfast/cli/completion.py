"""Shell completion (TAB) of topics, groups and brokers, with names from the cluster that the command addresses.

A completion never fails: if no cluster answers quickly, it offers nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import typer

from holdfast.cli.credentials import credentials_of
from holdfast.cli.profiles import find_cluster
from holdfast.cli.shared_options import cluster_flags
from holdfast.client.access.credentials_options import CredentialsArguments
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.admin.operations import Admin

_TIMEOUT_S: Final = 1.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin with *incomplete*."""

    async def names(admin: Admin) -> list[str]:
        return [topic.name for topic in await admin.topics.summaries()]

    return _complete(context, names, incomplete)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups that begin with *incomplete*."""

    async def names(admin: Admin) -> list[str]:
        return list(await admin.groups.configs())

    return _complete(context, names, incomplete)


def complete_broker(context: typer.Context, incomplete: str) -> list[str]:
    """Return the brokers that begin with *incomplete*."""

    async def names(admin: Admin) -> list[str]:
        return sorted({broker.name for broker in await admin.access.brokers()})

    return _complete(context, names, incomplete)


def _complete(context: typer.Context, names: Callable[[Admin], Awaitable[list[str]]], incomplete: str) -> list[str]:
    from holdfast.admin.operations import Admin  # noqa: PLC0415 - servers, whose options it completes, need no admin

    async def query() -> list[str]:
        cluster = find_cluster(cluster_flags(context), os.environ)
        credentials = credentials_of(context)
        access: CredentialsArguments = {} if credentials is None else credentials.to_arguments()
        admin = Admin(cluster.namesrv, timeout_s=_TIMEOUT_S, tls=cluster.tls, **access)
        async with asyncio.timeout(_TIMEOUT_S), admin:
            return await names(admin)

    try:
        return [name for name in asyncio.run(query()) if name.startswith(incomplete)]
    except (HoldfastError, TimeoutError):
        return []
