"""Which changes of a route are told, row by row, under both settings of `broker_events`.

    off      the proposal's six operations, literally: a broker's start and end are told to nobody
    spread   every difference is told: a broker's start and end in the client's own moment, all else at the next tick

Broker a has the topics `orders` and `bills`; broker z has `fence` and `clock`. A client watches `orders` and `fence`, a
second one `clock`. Moments are spread over days here: none comes at the next tick, but by a very rare chance.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from tests.support.client_stories import TIMEOUT_S
from tests.support.cluster.name_server_machine import a_topic
from tests.support.static_reports import a_leader_report, a_report, a_segment
from tests.support.watchers import ADDRESS, NameServerHarness, Peer, running_name_server

from holdfast.nameserver.config.kv_config import ORDER_TOPICS
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode

DAYS_MS = 1_000_000_000
SCAN_MS = 50


class Stage:
    """A name server with two brokers and two watching clients."""

    def __init__(self, server: NameServerHarness, *peers: Peer) -> None:
        self.server = server
        self.broker, self.keeper, self.other, self.client, self.clock = peers
        self._queues = 4

    async def change(self, topic: str) -> None:
        """Let the one topic *topic* of the broker that stays get another queue."""
        self._queues += 1
        await self.keeper.register(a_topic(topic, self._queues), name="z", address="10.0.0.26:10911")

    async def tick(self) -> None:
        """Wait until notices went out of everything that is due by now, and have been received."""
        await self.change("clock")
        assert await self.clock.next_notice() == {"clock"}

    async def is_told_at_once(self) -> None:
        """See that `orders` is told at the next tick, and nothing else."""
        assert await self.client.next_notice() == {"orders"}

    async def is_told_in_its_own_moment(self) -> None:
        """See that `orders` is not told at the next tick, is not forgotten, and goes along with the next notice."""
        await self.tick()
        assert await self.client.has_no_notice()
        await self.change("fence")
        assert await self.client.next_notice() == {"orders", "fence"}

    async def is_told_to_nobody(self) -> None:
        """See that not even a notice that goes out anyway names `orders`."""
        await self.tick()
        assert await self.client.has_no_notice()
        await self.change("fence")
        assert await self.client.next_notice() == {"fence"}


@asynccontextmanager
async def a_stage(**options: Any) -> AsyncIterator[Stage]:
    """Set the scene."""
    options = {"broker_event_spread_ms": DAYS_MS, "scan_interval_ms": SCAN_MS, **options}
    async with running_name_server(**options) as server, server.peers(5) as peers:
        stage = Stage(server, *peers)
        await stage.broker.register("orders", "bills")
        await stage.keeper.register("fence", "clock", name="z", address="10.0.0.26:10911")
        await stage.client.watch("orders", "fence")
        await stage.clock.watch("clock")
        yield stage


Row = Callable[[Stage], Awaitable[None]]


# The six operations.


async def delete_topic(stage: Stage) -> None:
    await stage.other.call_successfully(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders")


async def register_one_topic(stage: Stage) -> None:
    await stage.broker.register(a_topic("orders", 8))


async def register_many_topics(stage: Stage) -> None:
    await stage.broker.register(a_topic("orders", 8), a_topic("bills", 8))


async def start_a_broker_with_one_topic(stage: Stage) -> None:
    await stage.other.register("orders", name="b", address="10.0.0.2:10911")


async def start_a_broker_with_many_topics(stage: Stage) -> None:
    await stage.other.register("orders", "bills", name="b", address="10.0.0.2:10911")


async def start_a_slave(stage: Stage) -> None:
    await stage.other.register("orders", "bills", address="10.0.0.2:10911", brokerId="1")


async def start_at_another_address(stage: Stage) -> None:
    await stage.other.register("orders", "bills", address="10.0.0.2:10911")


async def unregister_broker(stage: Stage) -> None:
    await stage.broker.unregister()


async def close_the_channel(stage: Stage) -> None:
    await stage.broker.close()
    await stage.server.wait_for_log("broker left")


async def fall_silent(stage: Stage) -> None:
    await stage.broker.register("orders", "bills", heartbeatTimeoutMillis="1")
    await stage.server.wait_for_log("broker left")


async def wipe_write_permission(stage: Stage) -> None:
    await stage.other.call_successfully(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="a")


async def add_write_permission(stage: Stage) -> None:
    await wipe_write_permission(stage)
    assert await stage.client.next_notice() == {"orders"}
    await stage.other.call_successfully(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="a")


# What else changes routes.


async def register_topic_by_hand(stage: Stage) -> None:
    queue = {"brokerName": "z", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}
    body = java_json.encode({"queueDatas": [queue]})
    assert (await stage.other.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "orders"}, body=body)).code == 0


async def order_queues(stage: Stage) -> None:
    await stage.other.call_successfully(RequestCode.PUT_KV_CONFIG, namespace=ORDER_TOPICS, key="orders", value="a:4")


async def end_the_order_of_queues(stage: Stage) -> None:
    await order_queues(stage)
    assert await stage.client.next_notice() == {"orders"}
    await stage.other.call_successfully(RequestCode.DELETE_KV_CONFIG, namespace=ORDER_TOPICS, key="orders")


async def move_a_logical_queue(stage: Stage) -> None:
    """Both brokers have it; the second takes the lead of a queue, with a registration of all its topics."""
    await stage.other.call_successfully(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders")
    await stage.broker.register("orders", mappings={"orders": a_leader_report("a", 0, 1)})
    await stage.other.register("rest", "more", name="b", address="10.0.0.2:10911")
    await stage.tick()
    await stage.client.discard_notices()
    homes = [a_segment("a", 1, end=10), a_segment("b", 1, generation=1, first=10)]
    moved = a_report("b", {1: homes}, total=2, epoch=2)
    await stage.other.register("rest", "more", "orders", name="b", address="10.0.0.2:10911", mappings={"orders": moved})


# What changes nothing.


async def register_the_same_again(stage: Stage) -> None:
    for _ in range(3):
        await stage.broker.register("orders", "bills")


async def register_one_topic_that_is_known(stage: Stage) -> None:
    await stage.broker.register("orders")


async def register_no_topic(stage: Stage) -> None:
    await stage.broker.register()


async def register_on_another_channel(stage: Stage) -> None:
    await stage.other.register("orders", "bills")
    await stage.broker.close()


async def change_another_topic_of_the_broker(stage: Stage) -> None:
    await stage.broker.register(a_topic("bills", 8))
    await stage.other.call_successfully(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="bills")


async def end_a_broker_without_the_topic(stage: Stage) -> None:
    await stage.other.register("bills", "rest", name="b", address="10.0.0.2:10911")
    await stage.other.unregister("b", "10.0.0.2:10911")


async def end_a_broker_that_is_not_there(stage: Stage) -> None:
    await stage.other.unregister("b", "10.0.0.2:10911")
    await stage.other.unregister("b", ADDRESS)


async def delete_what_is_not_there(stage: Stage) -> None:
    await stage.other.call_successfully(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders", clusterName="C2")
    await stage.other.call_successfully(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="nothing")


async def add_write_permission_that_is_there(stage: Stage) -> None:
    await stage.other.call_successfully(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="a")
    await stage.other.call_successfully(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="nobody")


async def order_queues_of_others(stage: Stage) -> None:
    await stage.other.call_successfully(RequestCode.PUT_KV_CONFIG, namespace=ORDER_TOPICS, key="bills", value="a:4")
    await stage.other.call_successfully(RequestCode.PUT_KV_CONFIG, namespace="OTHER", key="orders", value="a:4")


async def order_queues_as_they_are(stage: Stage) -> None:
    await order_queues(stage)
    assert await stage.client.next_notice() == {"orders"}
    await order_queues(stage)


async def live_on(stage: Stage) -> None:
    fields = {"brokerName": "a", "brokerAddr": ADDRESS, "clusterName": "C1", "brokerId": "0"}
    await stage.broker.call_successfully(RequestCode.BROKER_HEARTBEAT, **fields)
    await stage.broker.call(RequestCode.QUERY_DATA_VERSION, fields)


class Group(NamedTuple):
    """Rows of which the same becomes under the same options."""

    outcome: Row
    options: dict[str, Any]
    rows: list[Row]


OFF_TELLS = Group(
    Stage.is_told_at_once,
    {"broker_events": "off"},
    [delete_topic, register_one_topic, start_a_broker_with_one_topic, wipe_write_permission, add_write_permission],
)
OFF_TELLS_NOBODY = Group(
    Stage.is_told_to_nobody,
    {"broker_events": "off"},
    [
        register_many_topics,
        start_a_broker_with_many_topics,
        start_a_slave,
        start_at_another_address,
        unregister_broker,
        close_the_channel,
        fall_silent,
    ],
)
SPREAD_TELLS_AT_ONCE = Group(
    Stage.is_told_at_once,
    {"broker_events": "spread"},
    [
        delete_topic,
        register_one_topic,
        register_many_topics,
        wipe_write_permission,
        add_write_permission,
        register_topic_by_hand,
        move_a_logical_queue,
    ],
)
SPREAD_TELLS_LATER = Group(
    Stage.is_told_in_its_own_moment,
    {},
    [
        start_a_broker_with_one_topic,
        start_a_broker_with_many_topics,
        start_a_slave,
        start_at_another_address,
        unregister_broker,
        close_the_channel,
        fall_silent,
    ],
)
MOMENTS_COME = Group(
    Stage.is_told_at_once,
    {"broker_event_spread_ms": 1},
    [start_a_broker_with_many_topics, unregister_broker, close_the_channel, fall_silent],
)
ORDER_IS_TOLD = {
    mode: Group(
        Stage.is_told_at_once,
        {"broker_events": mode, "order_message_enable": True},
        [order_queues, end_the_order_of_queues],
    )
    for mode in ("spread", "off")
}
NOTHING_CHANGES = {
    mode: Group(
        Stage.is_told_to_nobody,
        {"broker_events": mode},
        [
            register_the_same_again,
            register_one_topic_that_is_known,
            register_no_topic,
            register_on_another_channel,
            change_another_topic_of_the_broker,
            end_a_broker_without_the_topic,
            end_a_broker_that_is_not_there,
            delete_what_is_not_there,
            add_write_permission_that_is_there,
            order_queues_of_others,
            order_queues,  # routes do not carry the order, unless `order_message_enable` is on
            live_on,
        ],
    )
    for mode in ("spread", "off")
}
ORDER_STAYS = Group(Stage.is_told_to_nobody, {"order_message_enable": True}, [order_queues_as_they_are])
GROUPS = (
    OFF_TELLS,
    OFF_TELLS_NOBODY,
    SPREAD_TELLS_AT_ONCE,
    SPREAD_TELLS_LATER,
    MOMENTS_COME,
    *ORDER_IS_TOLD.values(),
    *NOTHING_CHANGES.values(),
    ORDER_STAYS,
)


class Played:
    """What became of every row."""

    def __init__(self) -> None:
        self._failures: dict[tuple[int, Row], BaseException | None] = {}

    async def play(self, group: Group, row: Row) -> None:
        """Let *row* happen, and see that it becomes of it what the group says."""
        failure = None
        try:
            async with asyncio.timeout(TIMEOUT_S), a_stage(**group.options) as stage:
                await row(stage)
                await group.outcome(stage)
        except (Exception, AssertionError) as error:  # noqa: BLE001 - the test of the row raises it
            failure = error
        self._failures[id(group), row] = failure

    def check(self, group: Group, row: Row) -> None:
        """Fail unless *row* went as the group says."""
        failure = self._failures[id(group), row]
        if failure is not None:
            raise failure


@pytest.fixture(scope="module")
def played() -> Played:
    """All rows side by side, each with a name server of its own: most of their time they wait for a tick."""
    played = Played()

    async def play_all() -> None:
        await asyncio.gather(*(played.play(group, row) for group in GROUPS for row in group.rows))

    asyncio.run(play_all())
    return played


@pytest.mark.parametrize("row", OFF_TELLS.rows)
def test_off_tells_of_single_topics_and_of_permissions(played: Played, row: Row):
    """The green rows, and registrations that carry one topic: what looks like the creation of a topic."""
    played.check(OFF_TELLS, row)


@pytest.mark.parametrize("row", OFF_TELLS_NOBODY.rows)
def test_off_tells_nobody_of_a_brokers_start_and_end(played: Played, row: Row):
    """The red rows, and registrations that carry several topics: what looks like a broker that starts."""
    played.check(OFF_TELLS_NOBODY, row)


@pytest.mark.parametrize("row", SPREAD_TELLS_AT_ONCE.rows)
def test_spread_tells_of_topics_and_of_permissions_at_the_next_tick(played: Played, row: Row):
    """However many topics a registration carries: what counts is the difference."""
    played.check(SPREAD_TELLS_AT_ONCE, row)


@pytest.mark.parametrize("row", SPREAD_TELLS_LATER.rows)
def test_by_default_a_brokers_start_and_end_are_told_in_a_moment_of_the_clients_own(played: Played, row: Row):
    """Not at the next tick, where everybody would be told at once; but merged with whatever comes sooner."""
    played.check(SPREAD_TELLS_LATER, row)


@pytest.mark.parametrize("row", MOMENTS_COME.rows)
def test_a_moment_comes(played: Played, row: Row):
    """Without anything else happening."""
    played.check(MOMENTS_COME, row)


@pytest.mark.parametrize("mode", ORDER_IS_TOLD)
@pytest.mark.parametrize("row", [order_queues, end_the_order_of_queues])
def test_the_order_of_queues_is_told_where_routes_carry_it(played: Played, row: Row, mode: str):
    """It is no broker's event."""
    played.check(ORDER_IS_TOLD[mode], row)


@pytest.mark.parametrize("mode", NOTHING_CHANGES)
@pytest.mark.parametrize("row", NOTHING_CHANGES["spread"].rows)
def test_what_changes_nothing_for_a_topic_tells_nobody(played: Played, row: Row, mode: str):
    """Whatever was asked of the name server: the route of `orders` is what it was."""
    played.check(NOTHING_CHANGES[mode], row)


@pytest.mark.parametrize("row", ORDER_STAYS.rows)
def test_the_same_order_of_queues_tells_nobody(played: Played, row: Row):
    """The value is what it was."""
    played.check(ORDER_STAYS, row)
