"""Endpoints that read topics: settings, live maps, routes, sizes and offsets."""

from __future__ import annotations

import msgspec

from holdfast.admin.cluster_access import gather
from holdfast.admin.combined.route_view import RouteView, view_route
from holdfast.admin.combined.topic_view import TopicMap, read_topic, read_topic_map
from holdfast.admin.offsets import QueueRange, describe_down
from holdfast.admin.topics import TopicDescription, TopicStats, TopicSummary
from holdfast.console.context import Context
from holdfast.console.endpoints import get
from holdfast.model.scope import to_shown_broker


class TopicFilter(msgspec.Struct, frozen=True):
    """Which topics.

    Attributes:
        all: Include system, retry and dead-letter topics.
    """

    all: bool = False


class TopicName(msgspec.Struct, frozen=True):
    """A topic.

    Attributes:
        topic: Its name.
    """

    topic: str


class OffsetQuery(msgspec.Struct, frozen=True):
    """Offsets of a topic.

    Attributes:
        topic: Its name.
        group: Also the committed offsets of this group.
    """

    topic: str
    group: str | None = None


class TopicList(msgspec.Struct, frozen=True):
    """Topics, by name."""

    topics: list[TopicSummary]


class TopicAnswer(msgspec.Struct, frozen=True):
    """A topic.

    Attributes:
        description: Everything but its messages and its mapping.
        is_static: Whether it has logical queues; `/map` shows them.
    """

    description: TopicDescription
    is_static: bool


class OffsetRange(msgspec.Struct, frozen=True):
    """The range of one queue.

    Attributes:
        broker: Its broker name, as clients see it.
        start: The oldest readable offset.
        end: The offset of the next message.
        committed: The next offset that the group will consume; null without a group, or if it committed nothing.
    """

    broker: str
    queue: int
    start: int
    end: int
    committed: int | None


class OffsetAnswer(msgspec.Struct, frozen=True):
    """The queues of a topic.

    Attributes:
        faults: Queues that cannot be read now, and why.
    """

    topic: str
    group: str | None
    queues: list[OffsetRange]
    faults: list[str]


@get("/topics", "topics")
async def read_topics(context: Context, query: TopicFilter) -> TopicList:
    """Return the topics."""
    return TopicList(await context.admin.topics.summaries(with_system=query.all))


@get("/topics/{topic}", "topics")
async def read_one_topic(context: Context, query: TopicName) -> TopicAnswer:
    """Return the settings, physical queues and consumer groups of a topic."""
    found, view = await read_topic(context.admin, query.topic)
    return TopicAnswer(found if view is None else msgspec.structs.replace(found, kind="static"), view is not None)


@get("/topics/{topic}/map", "topics")
async def read_map(context: Context, query: TopicName) -> TopicMap:
    """Return every logical queue of a topic with its segments, and the positions of consumer groups.

    The queues of a normal topic have one segment each.
    """
    return await read_topic_map(context.admin, query.topic)


@get("/topics/{topic}/route", "topics")
async def read_route(context: Context, query: TopicName) -> RouteView:
    """Return the route of a topic that the name server returns to clients."""
    return view_route(query.topic, await context.admin.access.get_client_route(query.topic))


@get("/topics/{topic}/stats", "topics")
async def read_stats(context: Context, query: TopicName) -> TopicStats:
    """Return the size of a topic and its growth in the last minute."""
    return await context.admin.topics.stats(query.topic)


@get("/topics/{topic}/offsets", "topics")
async def read_offsets(context: Context, query: OffsetQuery) -> OffsetAnswer:
    """Return where the queues of a topic begin and end, and the committed offsets of a group."""
    readable = await context.admin.offsets.find_readable(query.topic)

    async def view(each: QueueRange) -> OffsetRange:
        committed = None if query.group is None else await context.admin.offsets.find_committed(query.group, each)
        return OffsetRange(
            to_shown_broker(each.queue.broker_name), each.queue.queue_id, each.start, each.end, committed
        )

    faults = [*([describe_down(query.topic, readable.down)] if readable.down else []), *readable.refused]
    return OffsetAnswer(query.topic, query.group, await gather(readable.ranges, view), faults)
