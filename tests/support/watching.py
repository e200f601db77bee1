"""A cluster, clients that watch its routes at a name server, and the passing of its ticks."""

from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import a_name_server, a_registration, register

from holdfast.machine.effects import SetTimer
from holdfast.machine.events import ChannelId, TimerFired
from holdfast.nameserver.push.route_push import TIMER
from holdfast.wire.cluster.watch import ROUTES_CHANGED, TOPICS_FIELD, UNWATCH, WATCH_FIELD, WATCHING_FIELD, split_topics
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

BROKER_CHANNEL = ChannelId(1)


def a_cluster(**options: object) -> MachineHarness:
    """Return a name server where broker a, on the first channel, serves orders and bills, and b serves bills."""
    server = a_name_server(**options)
    assert server.connect() == BROKER_CHANNEL
    register(server, "a", body=a_registration("orders", "bills"), channel=BROKER_CHANNEL)
    register(server, "b", "10.0.0.2:10911", body=a_registration("bills", "others"), channel=server.connect())
    return server


def delete_topic(server: MachineHarness) -> None:
    """Change the one route that all of these tests know."""
    server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})


def create_topic(server: MachineHarness) -> None:
    register(server, "a", body=a_registration("missing", counter=2), channel=BROKER_CHANNEL)


def wipe(server: MachineHarness) -> None:
    server.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})


def unwipe(server: MachineHarness) -> None:
    server.request(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "a"})


def watch(server: MachineHarness, *topics: str, channel: ChannelId | None = None) -> ChannelId:
    """Let a client, a new one unless a channel is given, watch *topics*; return its channel."""
    channel = server.connect() if channel is None else channel
    for topic in topics:
        assert request_watch(server, topic, channel).fields == {WATCHING_FIELD: "true"}
    return channel


def request_watch(server: MachineHarness, topic: str, channel: ChannelId, **how: int) -> Command:
    """Ask for a route and to be told of its changes; return the answer."""
    fields = {"topic": topic, WATCH_FIELD: "true"}
    return server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, channel=channel, **how)


def unwatch(server: MachineHarness, channel: ChannelId, *topics: str) -> Command:
    """Let a client watch *topics* no more; return the answer."""
    return server.request(UNWATCH, {TOPICS_FIELD: ";".join(topics)}, channel=channel)


def next_tick_ms(server: MachineHarness) -> int | None:
    """Return when the name server wants to tell clients something; None when it does not."""
    timers = [effect for effect in server.effects if isinstance(effect, SetTimer) and effect.name == TIMER]
    return timers[-1].at_ms if timers else None


def tick(server: MachineHarness) -> bool:
    """Let the next tick come, with all its slices; return False when none was wanted."""
    at_ms = next_tick_ms(server)
    if at_ms is None:
        return False
    assert at_ms > server.now_ms
    server.now_ms = at_ms
    while next_tick_ms(server) == server.now_ms:
        _forget_timers(server)
        server.feed(TimerFired(TIMER, server.now_ms))
    return True


def _forget_timers(server: MachineHarness) -> None:
    server.effects = [
        effect for effect in server.effects if not (isinstance(effect, SetTimer) and effect.name == TIMER)
    ]


def pop_notices(server: MachineHarness, channel: ChannelId) -> list[list[str]]:
    """Take the notices that a client got since the last time: the topics of each."""
    notices = server.pop_answers(channel)
    assert all(notice.code == ROUTES_CHANGED and notice.is_one_way and not notice.body for notice in notices)
    return [split_topics(notice.fields[TOPICS_FIELD]) for notice in notices]
