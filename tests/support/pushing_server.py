"""A name server by script that tells of changes, as far as a test needs it.

server.serve_topic("t")          the route of t; every other topic is unknown
server.notify("t", "u")          these changed, to every client
server.asked("t")                the route queries for t so far
server.unwatched()               the topics of each 329 so far
"""

from collections.abc import Callable

from tests.support.scripted_server import ScriptedServer

from holdfast.wire.cluster.watch import (
    ROUTES_CHANGED,
    TOPICS_FIELD,
    UNWATCH,
    WATCH_FIELD,
    WATCHING_FIELD,
    join_topics,
    split_topics,
)
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


class ScriptedNameServer(ScriptedServer):
    """Says that it watches what it is asked to watch.

    Args:
        pushes: Whether it does; a name server of old does not.
    """

    def __init__(self, *, pushes: bool = True) -> None:
        super().__init__()
        self.pushes = pushes
        self.refuse(ROUTE, 17)
        self.on(UNWATCH)

    def forget_topics(self) -> None:
        """Know no topic any more."""
        self.refuse(ROUTE, 17)

    def notify(self, *topics: str) -> None:
        """Tell every client that *topics* changed."""
        for text in join_topics(topics):
            self.push(Command(code=ROUTES_CHANGED, flag=ONE_WAY, fields={TOPICS_FIELD: text}))

    def route_queries(self, topic: str) -> list[Command]:
        """Return the route queries for *topic* so far."""
        return [command for command in self.requests_of(ROUTE) if command.fields["topic"] == topic]

    def unwatched(self) -> list[set[str]]:
        """Return what each 329 named so far."""
        return [set(split_topics(command.fields[TOPICS_FIELD])) for command in self.requests_of(UNWATCH)]

    async def wait_for_unwatches(self, count: int = 1) -> list[set[str]]:
        """Return the same once there are *count*."""
        await self.wait_for_requests(UNWATCH, count)
        return self.unwatched()

    async def wait_for_queries(self, topic: str, count: int) -> None:
        """Return once *topic* was asked for *count* times."""
        await self.wait_until(lambda: len(self.route_queries(topic)) >= count)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once *condition* holds; it is looked at after every request."""
        async with self._changed:
            await self._changed.wait_for(condition)

    def answer(self, command: Command) -> Command | None:
        """Answer as scripted, and say that the topic is watched if that was wanted."""
        answer = super().answer(command)
        if answer is not None and self.pushes and command.fields.get(WATCH_FIELD) == "true":
            answer.fields = {**answer.fields, WATCHING_FIELD: "true"}
        return answer
