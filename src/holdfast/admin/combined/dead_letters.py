"""The dead letters of every group: how many, and since when. Their messages are read like those of any topic."""

from __future__ import annotations

import msgspec

from holdfast.admin.cluster_access import gather
from holdfast.admin.operations import Admin
from holdfast.model.errors import HoldfastError
from holdfast.model.topic import DEAD_LETTER_PREFIX


class DeadLetters(msgspec.Struct, frozen=True):
    """The dead letters of one group.

    Attributes:
        messages: How many are stored; null if a broker does not answer, as `fault` says.
        last_stored_ms: When the newest one was stored.
    """

    group: str
    topic: str
    messages: int | None
    last_stored_ms: int | None = None
    fault: str | None = None


async def list_dead_letters(admin: Admin) -> list[DeadLetters]:
    """Return the groups that have a topic of dead letters."""
    topics = [name for name in await admin.topics.names() if name.startswith(DEAD_LETTER_PREFIX)]
    return await gather(topics, lambda topic: _count(admin, topic))


async def _count(admin: Admin, topic: str) -> DeadLetters:
    group = topic.removeprefix(DEAD_LETTER_PREFIX)
    try:
        states = (await admin.topics.stats(topic)).queues
    except HoldfastError as error:
        return DeadLetters(group, topic, None, fault=str(error))
    times = [state.last_stored_ms for state in states if state.last_stored_ms is not None]
    return DeadLetters(group, topic, sum(state.messages for state in states), max(times, default=None))
