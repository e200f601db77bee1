"""Which queues a query reads, and where it begins and ends in them.

Asks a `ClusterSession`; what is not there is refused by name: a topic or a queue that does not exist, offsets for a
queue that is not read, a time behind everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.bulk.cluster_session import ClusterSession, all_queues
from holdfast.bulk.read_options import EARLIEST, LATEST, Bound, QueueKey, QueueOffsets, ReadOptions, flatten_offsets
from holdfast.model.errors import ConfigError
from holdfast.model.queue import MessageQueue

QueuesByKey = dict[QueueKey, MessageQueue]


def find_queues(session: ClusterSession, options: ReadOptions) -> QueuesByKey:
    """Return the queues that the options speak of, as they are now.

    Raises:
        ConfigError: a topic or a queue does not exist.
    """
    if options.pattern is not None:
        return all_queues(session, session.topics(options.pattern))
    if options.assigned is None:
        return all_queues(session, options.topics)
    available = all_queues(session, options.assigned)
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
    """Return the offset that *bound* means in each queue now.

    Raises:
        ConfigError: it says nothing of a queue, or something of one that is not read.
    """
    bounds = session.bounds(queues)
    if bound.kind == "earliest":
        return {name: low for name, (low, _) in bounds.items()}
    if bound.kind == "latest":
        return {name: high for name, (_, high) in bounds.items()}
    if bound.kind == "offsets":
        assert bound.offsets is not None
        said = _match_queues(queues, bound.offsets, f"{side}Offsets")
        ends = {EARLIEST: 0, LATEST: 1}
        return {name: bounds[name][ends[offset]] if offset in ends else offset for name, offset in said.items()}
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
    found = session.offsets_at_times(queues, times)
    for name, offset in found.items():
        low, high = bounds[name]
        if is_strict and offset >= high:
            raise ConfigError(
                f"topic {name[0]!r} has nothing in queue {name[1]} at {times[name]} ms or later; with "
                "startingOffsetsByTimestampStrategy=latest the queue is read from its end"
            )
        found[name] = min(max(offset, low), high)
    return found


def _match_queues(queues: QueuesByKey, offsets: QueueOffsets, option: str) -> dict[QueueKey, int]:
    by_queue = dict(flatten_offsets(offsets))
    for name in by_queue:
        if name not in queues:
            raise ConfigError(f"option {option!r} speaks of {name[0]}/{name[1]}, which is not read")
    for name in queues:
        if name not in by_queue:
            raise ConfigError(f"option {option!r} says nothing of {name[0]}/{name[1]}; -2 is earliest, -1 latest")
    return by_queue


def _list_queues(queues: QueuesByKey, topic: str) -> str:
    return "it has " + ", ".join(sorted(queue for name, queue in queues if name == topic))
