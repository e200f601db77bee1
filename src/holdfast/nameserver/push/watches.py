"""Records which channel watches which topic.

    topic   -> its channels, and the last digest of its route; one for each kind of viewer
    channel -> the topics that it watches, each with its viewer

The index has both directions, so that a change finds its watchers and a closed channel finds its watches. It has no
empty entries. A topic name is kept once, however many channels watch it: ten thousand clients with ten topics each take
some ten megabytes. Topics that do not exist can be watched, too.

Does not know routes: a *digest* is any number that changes when the route does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from holdfast.machine.events import ChannelId
from holdfast.model.topic import RETRY_TOPIC_LENGTH_MAX
from holdfast.nameserver.routes.unit_visibility import DEFAULT_VIEWER, Viewer

_SEPARATOR: Final = ";"  # Between names in a notice, so a name that contains it cannot be watched.


class _WatchedTopic:
    """One watched topic, as seen by one kind of viewer."""

    __slots__ = ("channels", "digest", "topic", "viewer")

    def __init__(self, topic: str, viewer: Viewer, digest: int) -> None:
        self.topic = topic
        self.viewer = viewer
        self.digest = digest
        self.channels: set[ChannelId] = set()


class Watches:
    """Channels and topics, in both directions.

    Args:
        route_digest: Returns the current digest of a topic's route for a viewer.
        per_channel_max: How many topics one channel may watch.
        total_max: How many watches all channels together may have.
    """

    def __init__(self, route_digest: Callable[[str, Viewer], int], *, per_channel_max: int, total_max: int) -> None:
        self._route_digest = route_digest
        self._per_channel_max = per_channel_max
        self._total_max = total_max
        self._by_topic: dict[str, dict[Viewer, _WatchedTopic]] = {}
        # Invariant: _by_channel[c][topic] is _by_topic[topic][viewer] if and only if c is among its channels, and a
        # channel watches a topic as one viewer only. No inner collection is empty.
        self._by_channel: dict[ChannelId, dict[str, _WatchedTopic]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of watches."""
        return self._count

    @property
    def channel_count(self) -> int:
        """How many channels watch a topic."""
        return len(self._by_channel)

    @property
    def topic_count(self) -> int:
        """How many topics are watched."""
        return len(self._by_topic)

    def topics(self) -> Iterator[str]:
        """Yield every watched topic."""
        return iter(self._by_topic)

    def watchers(self, topic: str) -> Collection[ChannelId]:
        """Return the channels that watch *topic*."""
        return {channel for watched in self._by_topic.get(topic, {}).values() for channel in watched.channels}

    # Watching.

    def watch(self, channel: ChannelId, topic: str, viewer: Viewer = DEFAULT_VIEWER) -> bool:
        """Add a watch of *topic* for *channel*; return False if a limit forbids it."""
        channel_watches = self._by_channel.get(channel, {})
        before = channel_watches.get(topic)
        if before is not None and before.viewer == viewer:
            return True
        if before is not None:
            self.unwatch(channel, [topic])  # Its unit, group or zone changed.
            channel_watches = self._by_channel.get(channel, {})
        if len(channel_watches) >= self._per_channel_max or self._count >= self._total_max:
            return False
        watched = self._by_topic.get(topic, {}).get(viewer)
        if watched is None:
            if not 0 < len(topic) <= RETRY_TOPIC_LENGTH_MAX or _SEPARATOR in topic:
                return False
            watched = _WatchedTopic(topic, viewer, self._route_digest(topic, viewer))
            self._by_topic.setdefault(topic, {})[viewer] = watched
        watched.channels.add(channel)
        self._by_channel.setdefault(channel, {})[watched.topic] = watched
        self._count += 1
        return True

    def unwatch(self, channel: ChannelId, topics: Iterable[str]) -> None:
        """Remove the watches of *topics* for *channel*; ignore topics that it does not watch."""
        channel_watches = self._by_channel.get(channel, {})
        for topic in topics:
            if topic in channel_watches:
                self._remove_channel(channel, channel_watches.pop(topic))
        if not channel_watches:
            self._by_channel.pop(channel, None)

    def channel_closed(self, channel: ChannelId) -> None:
        """Remove all watches of a closed channel."""
        for watched in self._by_channel.pop(channel, {}).values():
            self._remove_channel(channel, watched)

    def _remove_channel(self, channel: ChannelId, watched: _WatchedTopic) -> None:
        watched.channels.remove(channel)
        self._count -= 1
        if not watched.channels:
            viewers = self._by_topic[watched.topic]
            del viewers[watched.viewer]
            if not viewers:
                del self._by_topic[watched.topic]

    # Changes.

    def find_changed(self, topics: Iterable[str]) -> Iterator[tuple[str, Collection[ChannelId]]]:
        """Yield those of *topics* whose digest changed, with the channels that watch them; record the new digest."""
        for topic in topics:
            for watched in self._by_topic.get(topic, {}).values():
                digest = self._route_digest(topic, watched.viewer)
                if digest != watched.digest:
                    watched.digest = digest
                    yield watched.topic, watched.channels
