"""Publishes the changes of an event when it ends: static topics are saved, and the clients that watch are notified."""

from __future__ import annotations

from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.nameserver.notices import ChangeCause
from holdfast.nameserver.push.route_push import RoutePush
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes.route_answer_cache import RouteAnswerCache
from holdfast.nameserver.routes.static_topic_store import StaticTopicStore


class Publication(Component):
    """Acts on the changes that the other components made."""

    def __init__(
        self, changes: RouteChanges, static_store: StaticTopicStore, answer_cache: RouteAnswerCache, push: RoutePush
    ) -> None:
        self._changes = changes
        self._static_store = static_store
        self._answer_cache = answer_cache
        self._push = push

    def start(self) -> None:
        """Publish the topics that were restored."""
        self.publish()

    def channel_closed(self, channel: ChannelId) -> None:  # noqa: ARG002 - the protocol names the channel
        """Publish that the brokers on the channel left."""
        self.publish()

    def publish(self) -> None:
        """Drop the rendered answers that are out of date, and notify the clients that watch those topics."""
        self._static_store.save_if_changed()
        changes = self._changes
        if changes.are_all:
            self._answer_cache.drop_all()
            watched = list(self._push.watches.topics())
            self._push.routes_changed(watched, ChangeCause.TOPIC, is_urgent=changes.is_urgent)
        elif changes.topics:
            self._answer_cache.drop(changes.topics)
            self._push.routes_changed(changes.topics, changes.cause)
        changes.clear()
