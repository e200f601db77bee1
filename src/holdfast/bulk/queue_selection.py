"""Which queues a query reads, and where it begins and ends in them.

Asks a `Link`; what is not there is refused by name: a topic or a queue that does not exist, offsets for a queue that is
not read, a time behind everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.bulk.cluster_session import Link, all_queues
from holdfast.bulk.read_options import EARLIEST, LATEST, Bound, Queue, QueueOffsets, ReadOptions, flat
from holdfast.model.errors import ConfigError
from holdfast.model.queue import MessageQueue

Queues = dict[Queue, MessageQueue]


def find_queues(link: Link, options: ReadOptions) -> Queues:
    """Return the queues that the options speak of, as they are now.

    Raises:
        ConfigError: a topic or a queue does not exist.
    """
    if options.pattern is not None:
        return all_queues(link, link.topics(options.pattern))
    if options.assigned is None:
        return all_queues(link, options.topics)
    every = all_queues(link, options.assigned)
    wanted = [(topic, queue) for topic, queues in options.assigned.items() for queue in queues]
    for name in wanted:
        if name not in every:
            raise ConfigError(f"option 'assign': topic {name[0]!r} has no queue {name[1]!r}; {_known(every, name[0])}")
    return {name: every[name] for name in wanted}


def resolve(link: Link, queues: Queues, bound: Bound, *, which: str, is_strict_time: bool) -> dict[Queue, int]:
    """Return the offset that *bound* means in each queue now.

    Raises:
        ConfigError: it says nothing of a queue, or something of one that is not read.
    """
    bounds = link.bounds(queues)
    if bound.kind == "earliest":
        return {name: low for name, (low, _) in bounds.items()}
    if bound.kind == "latest":
        return {name: high for name, (_, high) in bounds.items()}
    if bound.kind == "offsets":
        assert bound.offsets is not None
        said = _said_of(queues, bound.offsets, f"{which}Offsets")
        ends = {EARLIEST: 0, LATEST: 1}
        return {name: bounds[name][ends[offset]] if offset in ends else offset for name, offset in said.items()}
    if bound.offsets is None:
        times = dict.fromkeys(queues, bound.time_ms)
    else:
        times = _said_of(queues, bound.offsets, f"{which}OffsetsByTimestamp")
    return _at_times(link, queues, times, bounds, is_strict=is_strict_time and which == "starting")


def _at_times(
    link: Link, queues: Queues, times: Mapping[Queue, int], bounds: Mapping[Queue, tuple[int, int]], *, is_strict: bool
) -> dict[Queue, int]:
    found = link.at_times(queues, times)
    for name, offset in found.items():
        low, high = bounds[name]
        if is_strict and offset >= high:
            raise ConfigError(
                f"topic {name[0]!r} has nothing in queue {name[1]} at {times[name]} ms or later; with "
                "startingOffsetsByTimestampStrategy=latest the queue is read from its end"
            )
        found[name] = min(max(offset, low), high)
    return found


def _said_of(queues: Queues, offsets: QueueOffsets, option: str) -> dict[Queue, int]:
    said = dict(flat(offsets))
    for name in said:
        if name not in queues:
            raise ConfigError(f"option {option!r} speaks of {name[0]}/{name[1]}, which is not read")
    for name in queues:
        if name not in said:
            raise ConfigError(f"option {option!r} says nothing of {name[0]}/{name[1]}; -2 is earliest, -1 latest")
    return said


def _known(queues: Queues, topic: str) -> str:
    return "it has " + ", ".join(sorted(queue for name, queue in queues if name == topic))
