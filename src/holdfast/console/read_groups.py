"""Endpoints that read consumer groups: members, lag and dead letters."""

from __future__ import annotations

import msgspec

from holdfast.admin.combined.dead_letters import DeadLetters, list_dead_letters
from holdfast.admin.groups import GroupDescription, GroupLag, GroupSummary
from holdfast.console.context import Context
from holdfast.console.endpoints import NoParameters, get


class GroupFilter(msgspec.Struct, frozen=True):
    """Which groups.

    Attributes:
        all: Include system groups.
    """

    all: bool = False


class GroupName(msgspec.Struct, frozen=True):
    """A group.

    Attributes:
        group: Its name.
    """

    group: str


class LagQuery(msgspec.Struct, frozen=True):
    """The lag of a group.

    Attributes:
        group: Its name.
        topic: In this topic only.
    """

    group: str
    topic: str | None = None


class GroupList(msgspec.Struct, frozen=True):
    """Groups, by name."""

    groups: list[GroupSummary]


class DeadLetterList(msgspec.Struct, frozen=True):
    """The groups that have dead letters."""

    groups: list[DeadLetters]


@get("/groups", "groups")
async def read_groups(context: Context, query: GroupFilter) -> GroupList:
    """Return the consumer groups and how many members are online."""
    return GroupList(await context.admin.groups.summaries(with_system=query.all))


@get("/groups/{group}", "groups")
async def read_group(context: Context, query: GroupName) -> GroupDescription:
    """Return the settings, members, subscriptions and total lag of a group."""
    return await context.admin.groups.describe(query.group)


@get("/groups/{group}/lag", "groups")
async def read_lag(context: Context, query: LagQuery) -> GroupLag:
    """Return the lag of a group by queue."""
    return (await context.admin.groups.lag(query.group, query.topic)).with_shown_brokers()


@get("/dead-letters", "groups")
async def read_dead_letters(context: Context, query: NoParameters) -> DeadLetterList:
    """Return which groups have dead letters, and how many. Read them as messages of their topic."""
    del query
    return DeadLetterList(await list_dead_letters(context.admin))
