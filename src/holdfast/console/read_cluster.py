"""Endpoints that read the cluster: brokers, moves, units, users and rules."""

from __future__ import annotations

from importlib import metadata

import msgspec

from holdfast.admin.access_control import UserRules, UserSummary
from holdfast.admin.cluster import BrokerDescription, ClusterDescription
from holdfast.admin.combined.broker_list import BrokerList, list_brokers
from holdfast.admin.draining import RemovalBlocker, blocker_text
from holdfast.admin.units import DisasterStatus
from holdfast.console.context import Context
from holdfast.console.endpoints import NoParameters, get
from holdfast.wire.requests.moves import Move


class ConsoleFacts(msgspec.Struct, frozen=True):
    """This console.

    Attributes:
        version: The version of Holdfast.
        name_servers: The name servers that it asks.
        is_read_only: Whether it refuses every change.
        listeners: How many pages listen to it.
    """

    version: str
    name_servers: list[str]
    is_read_only: bool
    listeners: int


class BrokerName(msgspec.Struct, frozen=True):
    """A broker.

    Attributes:
        broker: Its name.
    """

    broker: str


class BrokerDescriptions(msgspec.Struct, frozen=True):
    """The master of a broker name and its replicas, by id."""

    brokers: list[BrokerDescription]


class BlockerView(msgspec.Struct, frozen=True):
    """A reason why a broker is still needed.

    Attributes:
        text: The reason in words.
        blocker: The reason as values.
    """

    text: str
    blocker: RemovalBlocker


class Blockers(msgspec.Struct, frozen=True):
    """What keeps a broker from being removed.

    Attributes:
        is_removable: Whether nothing does.
    """

    broker: str
    is_removable: bool
    blockers: list[BlockerView]


class MoveFilter(msgspec.Struct, frozen=True):
    """Which moves.

    Attributes:
        all: Also those that ended.
    """

    all: bool = False


class MoveAnswer(msgspec.Struct, frozen=True):
    """Moves, the oldest first."""

    moves: list[Move]


class Users(msgspec.Struct, frozen=True):
    """The users of a cluster with access control, without their secrets."""

    users: list[UserSummary]


class Rules(msgspec.Struct, frozen=True):
    """The rules of every user that has some."""

    rules: list[UserRules]


@get("/console", "cluster")
async def read_console(context: Context, query: NoParameters) -> ConsoleFacts:
    """Return facts about this console."""
    del query
    return ConsoleFacts(
        metadata.version("holdfast"),
        list(context.admin.access.name_servers),
        context.is_read_only,
        context.poller.listeners,
    )


@get("/cluster", "cluster")
async def read_cluster(context: Context, query: NoParameters) -> ClusterDescription:
    """Return name servers, clusters, brokers and their totals."""
    del query
    return await context.admin.cluster.describe()


@get("/brokers", "brokers")
async def read_brokers(context: Context, query: NoParameters) -> BrokerList:
    """Return every broker with its load, and those that are down and still have segments."""
    del query
    return await list_brokers(context.admin)


@get("/brokers/{broker}", "brokers")
async def read_broker(context: Context, query: BrokerName) -> BrokerDescriptions:
    """Return everything that a broker and its replicas report about themselves."""
    return BrokerDescriptions(await context.admin.cluster.describe_broker(query.broker))


@get("/brokers/{broker}/blockers", "brokers")
async def read_blockers(context: Context, query: BrokerName) -> Blockers:
    """Return what keeps a broker from being removed."""
    found = await context.admin.draining.find_blockers(query.broker)
    return Blockers(query.broker, not found, [BlockerView(blocker_text(each), each) for each in found])


@get("/moves", "moves")
async def read_moves(context: Context, query: MoveFilter) -> MoveAnswer:
    """Return the moves of logical queues that are in progress, and those that failed."""
    found = await context.admin.moves.list()
    return MoveAnswer([move for move in found if query.all or move.state not in {"done", "cancelled"}])


@get("/units", "units")
async def read_units(context: Context, query: NoParameters) -> DisasterStatus:
    """Return the units, which of them the DR switch has opened, and what is left to read there."""
    del query
    return await context.admin.units.status()


@get("/users", "access")
async def read_users(context: Context, query: NoParameters) -> Users:
    """Return the users of a cluster with access control."""
    del query
    return Users(await context.admin.access_control.users())


@get("/rules", "access")
async def read_rules(context: Context, query: NoParameters) -> Rules:
    """Return the rules of users: what they may do."""
    del query
    return Rules(await context.admin.access_control.rules())
