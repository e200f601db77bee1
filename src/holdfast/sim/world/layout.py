"""The requests (513) that create or grow a static topic on each of its brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model.leader_planning import PlannedMove
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.queue import LogicalQueueId, PhysicalQueueId
from holdfast.wire.cluster import mapping
from holdfast.wire.cluster.mapping import to_detail
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.admin import CreateTopicFields


def static_topic_commands(
    topic: str,
    moves: Iterable[PlannedMove],
    records: Mapping[str, TopicMapping],
    queue_counts: Mapping[str, int],
    epoch: int,
    *,
    attributes: str = "",
) -> dict[str, Command]:
    """Return the request for each broker that gives new queues their first segments.

    Args:
        topic: The name of the topic.
        moves: The new queues, each with its leader.
        records: By broker, its current record of the topic; empty records for a new topic.
        queue_counts: By broker, its number of physical queues of the topic.
        epoch: The epoch of the change.
        attributes: The attributes of the topic, for a broker that does not have it yet.
    """
    counts = dict(queue_counts)
    added = list(moves)
    total = max([record.total for record in records.values()] + [move.queue + 1 for move in added])
    changed = {broker: record.without_prepared() for broker, record in records.items()}
    for move in added:
        physical_queue = counts[move.target]
        counts[move.target] += 1
        changed[move.target] = changed[move.target].with_queues(
            new_logical_queue(LogicalQueueId(move.queue), move.target, PhysicalQueueId(physical_queue))
        )
    return {
        broker: _command(
            msgspec.structs.replace(record, topic=topic, epoch=epoch, total=total), counts[broker], attributes
        )
        for broker, record in changed.items()
    }


def _command(record: TopicMapping, queues: int, attributes: str) -> Command:
    fields = CreateTopicFields(
        topic=record.topic, read_queue_nums=queues, write_queue_nums=queues, attributes=attributes
    )
    return Command(
        code=RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        fields=to_fields(fields) | {"force": "false"},
        body=mapping.encode(to_detail(record)),
    )
