"""Who wants to be told when the route of which topic changes.

    topic   -> Watched: who watches it, and what its route looked like
    channel -> the topics that it watches

Both ways, so that a change finds its watchers and a closed channel all that it watched. What nobody watches is not
here, and neither is a channel that watches nothing. A name is kept once, however many watch it: ten thousand clients
with ten topics each are some ten megabytes. Topics that do not exist can be watched like any other.

Does not know what a route is: a *sight* of it is any number that differs when the route does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from holdfast.machine.events import ChannelId
from holdfast.model.topic import RETRY_TOPIC_LENGTH_MAX

_NOBODY: Final[frozenset[ChannelId]] = frozenset()
_SEPARATOR: Final = ";"  # Between names in a notice: no name that holds it can be told.


class _Watched:
    """One topic that somebody watches."""

    __slots__ = ("channels", "sight", "topic")

    def __init__(self, topic: str, sight: int) -> None:
        self.topic = topic
        self.sight = sight
        self.channels: set[ChannelId] = set()


class Watches:
    """Channels and topics, in both directions.

    Args:
        look: Returns the sight of a topic's route as it is now.
        per_channel_max: How many topics one channel may watch.
        total_max: How many watches there may be, of all channels together.
    """

    def __init__(self, look: Callable[[str], int], *, per_channel_max: int, total_max: int) -> None:
        self._look = look
        self._per_channel_max = per_channel_max
        self._total_max = total_max
        self._by_topic: dict[str, _Watched] = {}
        # Invariant: topic in _by_channel[c] if and only if c in _by_topic[topic].channels. Nothing in here is empty.
        self._by_channel: dict[ChannelId, dict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many watches there are."""
        return self._count

    @property
    def channel_count(self) -> int:
        """How many channels watch something."""
        return len(self._by_channel)

    @property
    def topic_count(self) -> int:
        """How many topics somebody watches."""
        return len(self._by_topic)

    def topics(self) -> Iterator[str]:
        """Return every topic that somebody watches."""
        return iter(self._by_topic)

    def watchers(self, topic: str) -> Collection[ChannelId]:
        """Return who watches *topic*."""
        watched = self._by_topic.get(topic)
        return _NOBODY if watched is None else watched.channels

    # Who watches.

    def watch(self, channel: ChannelId, topic: str) -> bool:
        """Tell *channel* of changes of *topic* from now on; return False when that would be too much."""
        watched = self._by_topic.get(topic)
        if watched is not None and channel in watched.channels:
            return True
        mine = self._by_channel.get(channel, ())
        if len(mine) >= self._per_channel_max or self._count >= self._total_max:
            return False
        if watched is None:
            if not 0 < len(topic) <= RETRY_TOPIC_LENGTH_MAX or _SEPARATOR in topic:
                return False
            watched = self._by_topic[topic] = _Watched(topic, self._look(topic))
        watched.channels.add(channel)
        self._by_channel.setdefault(channel, {})[watched.topic] = None
        self._count += 1
        return True

    def unwatch(self, channel: ChannelId, topics: Iterable[str]) -> None:
        """Tell *channel* no more of *topics*; those that it does not watch do not matter."""
        mine = self._by_channel.get(channel, {})
        for topic in topics:
            if topic in mine:
                del mine[topic]
                self._leave(channel, topic)
        if not mine:
            self._by_channel.pop(channel, None)

    def closed(self, channel: ChannelId) -> None:
        """Forget *channel*."""
        for topic in self._by_channel.pop(channel, ()):
            self._leave(channel, topic)

    def _leave(self, channel: ChannelId, topic: str) -> None:
        watched = self._by_topic[topic]
        watched.channels.remove(channel)
        self._count -= 1
        if not watched.channels:
            del self._by_topic[topic]

    # What they see.

    def differing(self, topics: Iterable[str]) -> Iterator[tuple[str, Collection[ChannelId]]]:
        """Return those of *topics* that are watched and look different from before, each with its watchers."""
        for topic in topics:
            watched = self._by_topic.get(topic)
            if watched is None:
                continue
            sight = self._look(topic)
            if sight != watched.sight:
                watched.sight = sight
                yield watched.topic, watched.channels
