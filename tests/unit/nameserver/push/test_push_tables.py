"""Which operations tell clients that watch routes: the proposal's table and ours, row by row."""

import json
from collections.abc import Callable

import pytest
from tests.support.cluster.machine import MachineHarness
from tests.support.cluster.name_server_machine import (
    a_name_server,
    a_registration,
    a_topic,
    heartbeat_fields,
    register,
)
from tests.support.static_reports import a_leader_report, a_report, a_segment, register_static, request_aware
from tests.support.watching import (
    BROKER_CHANNEL,
    a_cluster,
    create_topic,
    delete_topic,
    next_tick_ms,
    pop_notices,
    tick,
    unwipe,
    watch,
    wipe,
)

from holdfast.machine.events import TimerFired
from holdfast.nameserver.scan import TIMER as SCAN_TIMER
from holdfast.wire.frames.codes import RequestCode

SECOND_MS = 1000


# The table: which of the operations that change routes tell clients. Each is given a cluster that watches everything.


def register_topic(server: MachineHarness) -> None:
    register(server, "a", body=a_registration(a_topic("orders", 8), counter=2), channel=BROKER_CHANNEL)


def register_topics(server: MachineHarness) -> None:
    topics = (a_topic("orders", 8), a_topic("bills"), a_topic("missing"))
    register(server, "a", body=a_registration(*topics, counter=2), channel=BROKER_CHANNEL)


def start_broker(server: MachineHarness) -> None:
    body = a_registration("orders", "missing")
    register(server, "c", "10.0.0.3:10911", body=body, channel=server.connect())


def start_small_broker(server: MachineHarness) -> None:
    register(server, "c", "10.0.0.3:10911", body=a_registration("orders"), channel=server.connect())


def unregister_broker(server: MachineHarness) -> None:
    server.request(RequestCode.UNREGISTER_BROKER, heartbeat_fields())


def close_channel(server: MachineHarness) -> None:
    server.disconnect(BROKER_CHANNEL)


def expire(server: MachineHarness) -> None:
    server.now_ms += 60_000
    register(server, "b", "10.0.0.2:10911", body=a_registration("bills", "others"))  # renewed
    server.now_ms += 61_000
    server.feed(TimerFired(SCAN_TIMER, server.now_ms))


def change_order(server: MachineHarness) -> None:
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"}
    server.request(RequestCode.PUT_KV_CONFIG, fields)


def register_by_hand(server: MachineHarness) -> None:
    queue = {"brokerName": "a", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}
    body = json.dumps({"queueDatas": [queue]}).encode()
    assert server.request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "missing"}, body=body).code == 0


Operation = Callable[[MachineHarness], None]
SOON, SPREAD, NEVER = "at the next tick", "within the spread", "never"
ROWS: list[tuple[Operation, set[str], str, str]] = [
    # operation, topics that it changes, by default, with broker_events=off
    (delete_topic, {"orders"}, SOON, SOON),
    (register_topic, {"orders"}, SOON, SOON),
    (create_topic, {"missing"}, SOON, SOON),
    (register_topics, {"orders", "missing"}, SOON, NEVER),
    (start_broker, {"orders", "missing"}, SPREAD, NEVER),
    (start_small_broker, {"orders"}, SPREAD, SOON),
    (unregister_broker, {"orders", "bills"}, SPREAD, NEVER),
    (wipe, {"orders", "bills"}, SOON, SOON),
    (unwipe, {"orders", "bills"}, SOON, SOON),
    (close_channel, {"orders", "bills"}, SPREAD, NEVER),
    (expire, {"orders", "bills"}, SPREAD, NEVER),
    (change_order, {"orders"}, SOON, SOON),
    (register_by_hand, {"missing"}, SOON, SOON),
]


@pytest.mark.parametrize("broker_events", ["spread", "off"])
@pytest.mark.parametrize(("operation", "topics", "by_default", "with_off"), ROWS, ids=[row[0].__name__ for row in ROWS])
def test_an_operation_tells_those_who_watch_what_it_changed_as_the_table_says(
    operation: Operation, topics: set[str], by_default: str, with_off: str, broker_events: str
):
    """A hundred clients each watch one topic; each hears of its own once, when the table says so, or not at all."""
    server = a_cluster(broker_events=broker_events, order_message_enable=True, notify_back_off=False)
    if operation is unwipe:
        wipe(server)
    clients = {topic: [watch(server, topic) for _ in range(100)] for topic in ("orders", "bills", "others", "missing")}

    operation(server)
    counts = []
    notices: dict[str, list[list[list[str]]]] = {topic: [] for topic in clients}
    for _ in range(6):
        tick(server)
        heard = {topic: [pop_notices(server, channel) for channel in channels] for topic, channels in clients.items()}
        counts.append(sum(bool(each) for all_told in heard.values() for each in all_told))
        for topic, all_told in heard.items():
            notices[topic] += [each for each in all_told if each]

    how = by_default if broker_events == "spread" else with_off
    wanted = set() if how == NEVER else topics
    assert {topic: all_told for topic, all_told in notices.items() if all_told} == {
        topic: [[[topic]]] * 100 for topic in wanted
    }
    total = 100 * len(wanted)
    if how == SOON:
        assert counts == [total, 0, 0, 0, 0, 0]
    if how == SPREAD:
        assert all(count > 0.15 * total for count in counts[:4])
        assert counts[4:] == [0, 0]


@pytest.mark.parametrize(("broker_events", "fields"), [("spread", {}), ("off", {"hf.single": "true"})])
def test_where_more_than_one_topic_is_a_start_brokers_are_asked_for_single_ones(
    broker_events: str, fields: dict[str, str]
):
    """Ours then register a topic that changed alone, so that clients are told of it."""
    answer = register(a_cluster(broker_events=broker_events))

    assert answer.fields == fields


def test_a_broker_that_is_started_again_under_off_is_seen_though_not_told():
    """What it says once more later is no news then either."""
    server = a_cluster(broker_events="off")
    channel = watch(server, "orders")
    close_channel(server)
    register(server, "a", body=a_registration("orders", "bills"), channel=server.connect())

    register(server, "a", body=a_registration("orders", counter=2))

    assert not tick(server)
    assert pop_notices(server, channel) == []


@pytest.mark.parametrize("broker_events", ["spread", "off"])
@pytest.mark.parametrize(
    "operation",
    [
        lambda server: register(server, "a", body=a_registration("orders", "bills"), channel=BROKER_CHANNEL),
        lambda server: register(server, "a", body=a_registration("orders", "bills", counter=9)),
        lambda server: register(server, "a", body=a_registration("orders", counter=9)),
        lambda server: register(server, "a", body=a_registration("orders", "bills", counter=9), haServerAddr="x:1"),
        lambda server: server.request(RequestCode.BROKER_HEARTBEAT, heartbeat_fields()),
        lambda server: server.request(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "a"}),
        lambda server: server.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "nobody"}),
        lambda server: server.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "nothing"}),
        lambda server: server.request(RequestCode.UNREGISTER_BROKER, heartbeat_fields("nobody", "10.9.9.9:1")),
        change_order,
        lambda server: register(server, "c", "10.0.0.3:10911", body=a_registration("unwatched", "more")),
    ],
)
def test_what_alters_nothing_for_a_topic_tells_nobody(operation: Operation, broker_events: str):
    """The same again, a newer version of the same, another seat on the same chair, a setting that is not in force."""
    server = a_cluster(broker_events=broker_events)
    channel = watch(server, "orders", "bills", "missing")

    operation(server)

    assert next_tick_ms(server) is None
    assert pop_notices(server, channel) == []


def test_withdrawing_writing_tells_nobody_of_a_topic_that_cannot_be_written_anyway():
    """The broker changed; this topic's route did not."""
    server = a_name_server()
    register(server, "a", body=a_registration(a_topic("archive", permission=4), "orders"), channel=server.connect())
    channel = watch(server, "archive", "orders")

    wipe(server)
    tick(server)

    assert pop_notices(server, channel) == [["orders"]]


def test_the_end_of_a_move_is_told_once_though_both_brokers_register():
    """The new leader's word changes the route; the old leader's, a moment later, changes nothing."""
    server = a_name_server()
    register_static(server, "a", a_leader_report("a", 0))
    register_static(server, "b", a_leader_report("b", 1))
    channel = watch(server, "orders")
    homes = [a_segment("a", 0, end=100), a_segment("b", 7, generation=1, first=100)]
    register_static(server, "b", a_report("b", {0: homes, 1: [a_segment("b", 1)]}, total=2, epoch=2))
    tick(server)
    assert pop_notices(server, channel) == [["orders"]]
    moved = request_aware(server).body

    register_static(server, "a", a_report("a", {0: homes}, total=2, epoch=2))

    assert request_aware(server).body == moved
    assert next_tick_ms(server) is None


def test_whether_routes_carry_queue_counts_is_a_change_for_those_topics_that_have_some():
    """A setting of the name server changes routes too."""
    server = a_cluster()
    change_order(server)
    channel = watch(server, "orders", "bills")

    server.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
    tick(server)

    assert pop_notices(server, channel) == [["orders"]]
