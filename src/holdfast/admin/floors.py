"""The lowest offset at which a logical queue without a leader may begin: above every offset that it ever used.

    every broker of the scope ──7017─> its records, and the offsets that groups committed ──┐
    name server ──105────────────────> the last reports of dead brokers ────────────────────┴─> floor, silent brokers

Brokers enforce the floor themselves (`broker/failover/offset_floors.py`). This module computes it for a plan, before
any broker is asked to open a queue.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.admin.cluster_access import ClusterAccess, body_of, gather
from holdfast.admin.static_topics import BrokerMappings, ClusterMappings, StaticTopic
from holdfast.admin.topic_plans import KnownStart, members_of
from holdfast.model.errors import BrokerRefused, ConnectionLost, RequestTimeout
from holdfast.model.floor import floor_of, highest_floor
from holdfast.model.queue import LogicalQueueId
from holdfast.wire.cluster.mapping import from_floor
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import FloorQuery, QueueFloors, encode_body


async def find_starts(
    access: ClusterAccess, view: ClusterMappings, topic: StaticTopic, queues: Collection[LogicalQueueId]
) -> dict[LogicalQueueId, KnownStart]:
    """Return where each of *queues* may begin, from the knowledge of all brokers of the topic's scope."""
    if not queues:
        return {}
    question = FloorQuery(topic=topic.name, queues=sorted(queues))

    async def query(mappings: BrokerMappings) -> tuple[str, QueueFloors | None]:
        try:
            answer = await access.invoke(mappings.address, RequestCode.FIND_FLOORS, body=encode_body(question))
        except (ConnectionLost, RequestTimeout):
            return mappings.name, None
        except BrokerRefused as refusal:
            is_unsupported = refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return mappings.name, QueueFloors() if is_unsupported else None
        return mappings.name, body_of(answer, QueueFloors)

    members = members_of(view, topic.merged.scope)
    alive = [mappings for mappings in members.values() if mappings.fault is None]
    answers = {name: answer for name, answer in await gather(alive, query) if answer is not None}
    return {number: _find_start(topic, number, answers, members) for number in queues}


def _find_start(
    topic: StaticTopic, number: LogicalQueueId, answers: dict[str, QueueFloors], members: Collection[str]
) -> KnownStart:
    floors = [from_floor(each.floor) for answer in answers.values() for each in answer.queues if each.queue == number]
    floors += [record.floors[number] for record in topic.records.values() if number in record.floors]
    floors += [floor_of(record.queues[number]) for record in topic.records.values() if number in record.queues]
    floor = highest_floor(floors)
    silent = {*members, *topic.records, *floor.brokers} - answers.keys()
    return KnownStart(floor=floor, silent=sorted(silent))
