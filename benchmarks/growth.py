"""How the rate of sends grows with connections, queues and message size: one axis at a time, the others fixed."""

from __future__ import annotations

from typing import Final

import msgspec
from benchmarks.cells import Cell
from benchmarks.load import Load

CONNECTIONS: Final = (1, 16, 256, 2000)
QUEUES: Final = (1, 100, 10_000)
SIZES: Final = {"100 B": 100, "1 KiB": 1 << 10, "10 KiB": 10 << 10, "1 MiB": 1 << 20}
TOPIC: Final = "Growth"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A value on an axis, its label, and its cell."""

    value: int
    label: str
    cell: Cell


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity that grows."""

    name: str
    points: tuple[Point, ...]


def axes(seconds: float) -> list[Axis]:
    """Return the three axes."""
    send = Load(mode="send", topic=topic_of(4), connections=16, in_flight=16, seconds=seconds)
    by_connections = [
        (count, f"{count:,}", msgspec.structs.replace(send, connections=count, in_flight=1)) for count in CONNECTIONS
    ]
    by_queues = [
        (count, f"{count:,}", msgspec.structs.replace(send, topic=topic_of(count), queues=count)) for count in QUEUES
    ]
    by_size = [
        # Sixteen times sixteen messages of 1 MiB would be a test of memory, not of sending.
        (size, label, msgspec.structs.replace(send, size=size, connections=4 if size >= 1 << 20 else 16,
                                              in_flight=4 if size >= 1 << 20 else 16))
        for label, size in SIZES.items()
    ]  # fmt: skip
    return [
        Axis(name=name, points=tuple(_point(name, value, label, load) for value, label, load in points))
        for name, points in (("connections", by_connections), ("queues", by_queues), ("message size", by_size))
    ]


def topic_of(queues: int) -> str:
    """Return the name of the topic with *queues* queues."""
    return f"{TOPIC}-{queues}"


def topics() -> dict[str, int]:
    """Return all topics of the axes, with their number of queues."""
    return {topic_of(count): count for count in (4, *QUEUES)}


def _point(axis: str, value: int, label: str, load: Load) -> Point:
    cell = Cell(group=f"send by {axis}: {label}", role="async", load=load, unit="messages/s", writes=True)
    return Point(value=value, label=label, cell=cell)
