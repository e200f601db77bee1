"""Requests that lay a static topic out: which broker is told what (513), at its creation and when it grows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model.leader_planning import Move
from holdfast.model.mapping import TopicMapping, first_home
from holdfast.wire.cluster import mapping
from holdfast.wire.cluster.mapping import to_detail
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.admin import CreateTopicFields


def layout_commands(
    topic: str,
    moves: Iterable[Move],
    records: Mapping[str, TopicMapping],
    hosted: Mapping[str, int],
    epoch: int,
    *,
    attributes: str = "",
) -> dict[str, Command]:
    """Return what each broker is told so that new queues get their first homes.

    Args:
        topic: Its name.
        moves: The new queues, and who leads them.
        records: Broker to what it records of the topic now; empty records for a topic that is new.
        hosted: Broker to how many physical queues of the topic it has.
        epoch: Of the change.
        attributes: What the topic is to be for a broker that has not heard of it.
    """
    counts = dict(hosted)
    added = list(moves)
    total = max([record.total for record in records.values()] + [move.queue + 1 for move in added])
    changed = {broker: record.decided() for broker, record in records.items()}
    for move in added:
        physical = counts[move.target]
        counts[move.target] += 1
        changed[move.target] = changed[move.target].put(first_home(move.queue, move.target, physical))
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
