"""What follows from the changes of an event, when it ends."""

from random import Random

from holdfast.machine.effects import Effect, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.machine.readings import Readings
from holdfast.machine.turn import Turn
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.push.publication import Publication
from holdfast.nameserver.push.route_push import COALESCE_MS, TIMER, RoutePush
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes.route_answer_cache import RouteAnswerCache
from holdfast.nameserver.routes.static_topic_store import StaticTopicStore
from holdfast.nameserver.routes.static_topics import StaticTopics
from holdfast.nameserver.routes.unit_visibility import DEFAULT_VIEWER, Viewer

NOTICE = SetTimer(TIMER, 1_000 + COALESCE_MS)


class Published:
    """A publication whose two topics are rendered, and watched; a route is a number."""

    def __init__(self) -> None:
        self.turn = Turn(1_000)
        self.changes = RouteChanges()
        self.routes = {"orders": 1, "bills": 1}
        self.answers = RouteAnswerCache(1 << 20)
        self.push = RoutePush(self.turn, NameServerOptions(), Random(7), Readings(), self.route_digest)
        store = StaticTopicStore(self.turn, None, StaticTopics(self.turn, (), self.changes))
        self.publication = Publication(self.changes, store, self.answers, self.push)
        for topic in self.routes:
            self.answers.keep(topic, b"{}", is_bare=False)
            assert self.push.watch(ChannelId(1), topic, DEFAULT_VIEWER)

    def route_digest(self, topic: str, _viewer: Viewer) -> int:
        return self.routes[topic]

    def publish(self) -> list[Effect]:
        self.publication.publish()
        return self.turn.drain_effects()

    def rendered(self) -> list[str]:
        return [topic for topic in self.routes if self.answers.find(topic, is_bare=False)]


def test_the_answers_of_changed_routes_are_dropped_and_their_watchers_notified():
    """The others stay; what is published is not published again."""
    published = Published()
    published.routes["orders"] = 2
    published.changes.add(["orders"])

    assert published.publish() == [NOTICE]
    assert published.rendered() == ["bills"]
    assert published.changes.topics == set()
    assert published.publish() == []


def test_when_every_route_may_have_changed_all_are_compared():
    """Also those that no component named."""
    published = Published()
    published.routes["bills"] = 2
    published.changes.add_all()

    assert published.publish() == [NOTICE]
    assert published.rendered() == []


def test_a_route_that_only_may_have_changed_is_no_notice():
    """Its answer is rendered anew, and nobody is disturbed."""
    published = Published()
    published.changes.add(["orders"])

    assert published.publish() == []
    assert published.rendered() == ["bills"]
