"""The segments of logical queues, as the readers of one unit see them.

The mappings that brokers registered are merged once for each change of a route, because planning asks about every queue
of every batch.
"""

from __future__ import annotations

from holdfast.bulk.read_options import QueueKey
from holdfast.client.routes.route_table import RouteTable
from holdfast.model.mapping import LogicalQueue, Segment, merge
from holdfast.model.queue import LogicalOffset, LogicalQueueId
from holdfast.model.scope import covers


class QueueMappings:
    """The logical queues of all topics.

    Args:
        routes: The routes, which carry the mappings.
        unit: The unit whose queues are visible; None for all.
    """

    def __init__(self, routes: RouteTable, unit: str | None) -> None:
        self._routes = routes
        self._unit = unit
        self._merged: dict[
            str, tuple[int, dict[LogicalQueueId, LogicalQueue]]
        ] = {}  # by topic, of a generation of its route

    def find(self, name: QueueKey) -> LogicalQueue | None:
        """Return a logical queue; None if the route is unknown, or the queue is one of a normal topic."""
        topic, number = name
        route = self._routes.find(topic)
        if route is None or not route.route.mappings or "/" in number:
            return None
        known = self._merged.get(topic)
        if known is None or known[0] != route.generation:
            records = {
                broker: record
                for broker, record in route.route.mappings.items()
                if self._unit is None or covers(record.scope, self._unit)
            }
            known = self._merged[topic] = (route.generation, merge(records).queues if records else {})
        return known[1].get(LogicalQueueId(int(number)))

    def find_segment(self, name: QueueKey, offset: int, delta: int) -> Segment | None:
        """Return the segment that holds *offset*; None unless its logical offsets exceed the physical by *delta*."""
        queue = self.find(name)
        segment = None if queue is None else queue.locate(LogicalOffset(offset))
        return segment if segment is not None and segment.delta == delta else None
