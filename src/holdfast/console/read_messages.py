"""Endpoints that read messages, without consuming them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from holdfast.admin.combined.message_view import (
    BodyForm,
    BodyStyle,
    MessagePage,
    find_messages,
    read_page,
)
from holdfast.admin.offsets import OffsetTarget
from holdfast.console.context import Context
from holdfast.console.endpoints import get
from holdfast.console.problems import BadParameter
from holdfast.model.topic import dead_letter_topic

BODY_MAX: Final = 1 << 20

Limit = Annotated[int, msgspec.Meta(ge=1, le=200)]
BodySize = Annotated[int, msgspec.Meta(ge=0, le=BODY_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class MessageQuery(msgspec.Struct, frozen=True):
    """Messages of a topic: those with a key or an id, from an offset or a time on, or else the newest ones.

    Attributes:
        topic: The topic.
        queue: Only queues with this number.
        broker: Only queues of this broker.
        offset: From this offset on; needs a queue.
        time_ms: Stored at this time or later, in milliseconds since 1970.
        key: With this key.
        id: With this id: the sender's or the broker's.
        limit: At most this many.
        form: How to show bodies; `auto` chooses.
        body_max: At most this many bytes of each body. A page has at most 4 MiB of bodies.
    """

    topic: str
    queue: Count | None = None
    broker: str | None = None
    offset: Count | None = None
    time_ms: Count | None = None
    key: str | None = None
    id: str | None = None
    limit: Limit = 20
    form: BodyForm = "auto"
    body_max: BodySize = 4096


class DeadLetterQuery(msgspec.Struct, frozen=True):
    """The newest dead letters of a group.

    Attributes:
        group: The group.
        limit: At most this many.
        form: How to show bodies; `auto` chooses.
        body_max: At most this many bytes of each body.
    """

    group: str
    limit: Limit = 20
    form: BodyForm = "auto"
    body_max: BodySize = 4096


@get("/topics/{topic}/messages", "messages")
async def read_messages(context: Context, query: MessageQuery) -> MessagePage:
    """Return messages of a topic. No group's offsets change.

    Give a key, an id, an offset with a queue, or a time; without any of them, the newest messages are returned.
    """
    style = BodyStyle(query.form, query.body_max)
    chosen = [name for name in ("offset", "time_ms", "key", "id") if getattr(query, name) is not None]
    if len(chosen) > 1:
        raise BadParameter(f"{' and '.join(chosen)} exclude each other: give one of them")
    if query.offset is not None and query.queue is None:
        raise BadParameter("an offset belongs to a queue: give `queue`, too")
    if query.key is not None or query.id is not None:
        if query.queue is not None or query.broker is not None:
            raise BadParameter("a key or an id is searched for in all queues: omit `queue` and `broker`")
        return await find_messages(
            context.admin, query.topic, style, key=query.key, message_id=query.id, count_max=query.limit
        )
    target = None
    if query.offset is not None:
        target = OffsetTarget("offset", query.offset)
    elif query.time_ms is not None:
        target = OffsetTarget("time", query.time_ms)
    return await read_page(
        context.admin,
        query.topic,
        target,
        style,
        count_max=query.limit,
        queue=query.queue,
        broker=query.broker,
    )


@get("/dead-letters/{group}", "messages")
async def read_dead_letters_of(context: Context, query: DeadLetterQuery) -> MessagePage:
    """Return the newest dead letters of a group, each with its original topic, queue and offset."""
    style = BodyStyle(query.form, query.body_max)
    return await read_page(context.admin, dead_letter_topic(query.group), None, style, count_max=query.limit)
