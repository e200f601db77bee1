"""Reads what changes in a cluster: once for all listeners, and only while there are any.

    cluster  ─┐ every second, or less often if a pass takes long
    moves     ├─ pass ─> snapshots by name ─> each listener gets those that are newer than what it has
    topic/T  ─┘           (one for each name)

A listener that reads slowly gets the newest snapshot of each name and misses those before it, so it costs no memory. A
pass takes at most a fifth of the time, however slow the cluster is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.admin.combined.broker_list import BrokerList, find_broker_problems, list_brokers
from holdfast.admin.combined.topic_view import TopicMap, read_topic_map
from holdfast.admin.moves import FINISHED
from holdfast.admin.operations import Admin
from holdfast.admin.static_topics import ClusterMappings
from holdfast.admin.topics import kind_of
from holdfast.console.problems import Problem, TooManyListeners, to_problem
from holdfast.machine.effects import Log
from holdfast.model.errors import HoldfastError
from holdfast.model.leader_planning import count_led_queues
from holdfast.runtime.logs import Emit
from holdfast.wire.requests.moves import Move

PAUSE_S: Final = 1.0
LISTENERS_MAX: Final = 100
MAPS_MAX: Final = 16
"""How many topics are watched at the same time; each costs every broker several requests in a pass."""
_SHARE: Final = 5
_ENDED_MOVES_MAX: Final = 20


class ClusterState(msgspec.Struct, frozen=True):
    """What a page shows of the cluster as a whole.

    Attributes:
        leads: Broker to the number of logical queues that it leads.
        topics: The names of all topics, without system topics.
        problems: What needs attention, in words.
    """

    brokers: BrokerList
    leads: dict[str, int]
    topics: list[str]
    problems: list[str]


class MovesState(msgspec.Struct, frozen=True):
    """The moves in progress and those that failed, and the last ones that ended."""

    moves: list[Move]
    ended: list[Move]


class TopicState(msgspec.Struct, frozen=True):
    """The live map of a watched topic, or why there is none."""

    topic: str
    map: TopicMap | None
    error: Problem | None = None


class Connection(msgspec.Struct, frozen=True):
    """Whether the last pass reached the cluster; `error` says why it did not."""

    is_connected: bool
    error: Problem | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The newest value of one name.

    Attributes:
        name: `cluster`, `moves`, `connection`, or `topic/` and a topic.
        version: Rises with every change.
        data: The value as JSON.
    """

    name: str
    version: int
    data: bytes


class Listener:
    """One reader of snapshots.

    Attributes:
        topics: The topics that it watches.
    """

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._changed = asyncio.Event()
        self._seen: dict[str, int] = {}

    def wants(self, name: str) -> bool:
        """Return whether it reads the snapshots of a name."""
        kind, slash, topic = name.partition("/")
        return not slash or (kind == "topic" and topic in self.topics)

    def wake(self) -> None:
        """Let it check for newer snapshots."""
        self._changed.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be newer snapshots, or after *timeout_s*."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    def select_new(self, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
        """Return the snapshots that it has not seen yet, and count them as seen."""
        found = [each for each in snapshots if self.wants(each.name) and self._seen.get(each.name, 0) < each.version]
        self._seen |= {each.name: each.version for each in found}
        return found


class Poller:
    """Reads the cluster for all listeners.

    Args:
        admin: The cluster.
        emit: Writes log lines.
        pause_s: How long to pause between two passes at least.
        clock: Measures how long a pass takes.

    Attributes:
        passes: How often it has read the cluster.
    """

    def __init__(
        self, admin: Admin, emit: Emit, *, pause_s: float = PAUSE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.passes = 0
        self._admin = admin
        self._emit = emit
        self._pause_s = pause_s
        self._clock = clock
        self._listeners: set[Listener] = set()
        self._snapshots: dict[str, Snapshot] = {}
        self._version = 0
        self._is_wanted = asyncio.Event()
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read as soon as there is a listener."""
        self._task = asyncio.create_task(self._poll_forever())

    async def stop(self) -> None:
        """End all listeners, and stop reading."""
        self._is_stopped = True
        self._wake_all()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def listeners(self) -> int:
        """How many listeners there are."""
        return len(self._listeners)

    def require_space(self, topics: frozenset[str]) -> None:
        """Check that there is space for one more listener.

        Raises:
            TooManyListeners: there are too many listeners, or too many topics are watched.
        """
        if len(self._listeners) >= LISTENERS_MAX:
            raise TooManyListeners(f"{LISTENERS_MAX} pages are open already")
        if len(self._watched_topics() | topics) > MAPS_MAX:
            raise TooManyListeners(f"open pages show {MAPS_MAX} different topics already")

    @contextlib.contextmanager
    def listen(self, topics: frozenset[str]) -> Iterator[Listener]:
        """Add a listener for the time of the block.

        Raises:
            TooManyListeners: there are too many listeners, or too many topics are watched.
        """
        self.require_space(topics)
        listener = Listener(topics)
        self._listeners.add(listener)
        self._is_wanted.set()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._is_wanted.clear()
                self._snapshots.clear()  # they would be old when the next listener comes
            for name in [name for name in self._snapshots if not any(each.wants(name) for each in self._listeners)]:
                del self._snapshots[name]

    async def changes(self, listener: Listener, *, quiet_s: float) -> AsyncIterator[list[Snapshot]]:
        """Yield the new snapshots of a listener until the poller stops; an empty list after *quiet_s* without any."""
        while not self._is_stopped:
            found = listener.select_new(list(self._snapshots.values()))
            if not found:
                await listener.wait(quiet_s)
                found = listener.select_new(list(self._snapshots.values()))
            if not self._is_stopped:
                yield found

    async def _poll_forever(self) -> None:
        while True:
            await self._is_wanted.wait()
            started = self._clock()
            try:
                await self._read()
            except HoldfastError as error:
                self._publish("connection", Connection(is_connected=False, error=to_problem(error)[1]))
            except Exception as error:  # noqa: BLE001 - an error of ours must not leave all pages without news
                self._emit(
                    Log(
                        "error",
                        "a pass of the poller failed",
                        {"exception": "".join(traceback.format_exception(error))},
                    )
                )
                self._publish("connection", Connection(is_connected=False, error=to_problem(error)[1]))
            self.passes += 1
            await asyncio.sleep(max(self._pause_s, (_SHARE - 1) * (self._clock() - started)))

    async def _read(self) -> None:
        view = await self._admin.static_topics.read()
        brokers = await list_brokers(self._admin, view)
        own_names = {name for each in brokers.brokers for name in (each.name, each.cluster)}
        topics = [name for name in await self._admin.topics.names() if kind_of(name, own_names) == "normal"]
        leads = count_led_queues(view.leaders)
        self._publish("connection", Connection(is_connected=True))
        self._publish(
            "cluster", ClusterState(brokers, dict(sorted(leads.items())), topics, find_broker_problems(brokers))
        )
        self._publish("moves", _to_moves(view))
        for topic in sorted(self._watched_topics()):
            self._publish(f"topic/{topic}", await self._read_map(topic))

    async def _read_map(self, topic: str) -> TopicState:
        try:
            return TopicState(topic, await read_topic_map(self._admin, topic))
        except HoldfastError as error:
            return TopicState(topic, None, to_problem(error)[1])

    def _watched_topics(self) -> set[str]:
        return set().union(*(listener.topics for listener in self._listeners))

    def _publish(self, name: str, value: object) -> None:
        """Make *value* the newest one of its name, unless nothing has changed or no listener reads it."""
        data = msgspec.json.encode(value)
        known = self._snapshots.get(name)
        if (known is not None and known.data == data) or not any(each.wants(name) for each in self._listeners):
            return
        self._version += 1
        self._snapshots[name] = Snapshot(name, self._version, data)
        self._wake_all()

    def _wake_all(self) -> None:
        for listener in self._listeners:
            listener.wake()


def _to_moves(view: ClusterMappings) -> MovesState:
    ended = [move for move in view.moves if move.state in FINISHED - {"failed"}]
    newest = sorted(ended, key=lambda move: move.changed_ms)[-_ENDED_MOVES_MAX:]
    return MovesState([move for move in view.moves if move not in ended], newest[::-1])
