"""Resolves options to the queues that a query reads and to its start and end offsets in them.

The cluster is queried by a `ClusterSession`. Errors name the part of the options that does not fit: a topic or a queue
that does not exist, an offset for a queue that is not read, a starting time after the last message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.bulk.cluster_session import ClusterSession
from holdfast.bulk.read_options import EARLIEST, LATEST, Bound, QueueKey, QueueOffsets, ReadOptions, flatten_offsets
from holdfast.model.errors import ConfigError
from holdfast.model.queue import MessageQueue

QueuesByKey = dict[QueueKey, MessageQueue]


def find_queues(session: ClusterSession, options: ReadOptions) -> QueuesByKey:
    """Return the queues that the options select now.

    Raises:
        ConfigError: a topic or a queue does not exist.
    """
    if options.pattern is not None:
        return _all_queues(session, session.directory.topics(options.pattern))
    if options.assigned is None:
        return _all_queues(session, options.topics)
    available = _all_queues(session, options.assigned)
    names = [(topic, queue) for topic, queues in options.assigned.items() for queue in queues]
    for name in names:
        if name not in available:
            raise ConfigError(
                f"option 'assign': topic {name[0]!r} has no queue {name[1]!r}; {_list_queues(available, name[0])}"
            )
    return {name: available[name] for name in names}


def resolve(
    session: ClusterSession, queues: QueuesByKey, bound: Bound, *, side: str, is_strict_time: bool
) -> dict[QueueKey, int]:
    """Return the offset of *bound* in each queue now.

    Raises:
        ConfigError: the bound lacks a queue, names a queue that is not read, or is a time after the last message.
    """
    bounds = session.offsets.bounds(queues)
    if bound.kind == "earliest":
        return {name: low for name, (low, _) in bounds.items()}
    if bound.kind == "latest":
        return {name: high for name, (_, high) in bounds.items()}
    if bound.kind == "offsets":
        assert bound.offsets is not None
        offsets = _match_queues(queues, bound.offsets, f"{side}Offsets")
        ends = {EARLIEST: 0, LATEST: 1}
        return {name: bounds[name][ends[offset]] if offset in ends else offset for name, offset in offsets.items()}
    if bound.offsets is None:
        times = dict.fromkeys(queues, bound.time_ms)
    else:
        times = _match_queues(queues, bound.offsets, f"{side}OffsetsByTimestamp")
    return _resolve_times(session, queues, times, bounds, is_strict=is_strict_time and side == "starting")


def _resolve_times(
    session: ClusterSession,
    queues: QueuesByKey,
    times: Mapping[QueueKey, int],
    bounds: Mapping[QueueKey, tuple[int, int]],
    *,
    is_strict: bool,
) -> dict[QueueKey, int]:
    found = session.offsets.at_times(queues, times)
    for name, offset in found.items():
        low, high = bounds[name]
        if is_strict and offset >= high:
            raise ConfigError(
                f"topic {name[0]!r} has nothing in queue {name[1]} at {times[name]} ms or later; with "
                "startingOffsetsByTimestampStrategy=latest the query starts at the end of such a queue"
            )
        found[name] = min(max(offset, low), high)
    return found


def _all_queues(session: ClusterSession, topics: Iterable[str]) -> QueuesByKey:
    return {name: queue for topic in topics for name, queue in session.directory.queues(topic).items()}


def _match_queues(queues: QueuesByKey, offsets: QueueOffsets, option: str) -> dict[QueueKey, int]:
    by_queue = dict(flatten_offsets(offsets))
    for name in by_queue:
        if name not in queues:
            raise ConfigError(f"option {option!r} names {name[0]}/{name[1]}, which this query does not read")
    for name in queues:
        if name not in by_queue:
            raise ConfigError(f"option {option!r} lacks {name[0]}/{name[1]}; use -2 for earliest, -1 for latest")
    return by_queue


def _list_queues(queues: QueuesByKey, topic: str) -> str:
    return "it has " + ", ".join(sorted(queue for name, queue in queues if name == topic))
