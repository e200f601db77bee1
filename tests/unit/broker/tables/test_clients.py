import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, connect_client, pop_requests
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.tables.clients import SCAN_INTERVAL_MS, SHORT_TIMEOUT_PERIOD_MS, TIMER
from holdfast.machine.effects import CloseChannel, SendBytes
from holdfast.machine.turn import Turn
from holdfast.model.group import GroupConfig
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, Command, decode_command
from holdfast.wire.frames.frame import JSON, split_frames
from holdfast.wire.requests.heartbeat import CAPABILITIES_FIELD, INNER_BATCH_CAPABILITY

T = a_subscription("T")


@pytest.fixture
def desk() -> BrokerHarness:
    return BrokerHarness()


def members(desk: BrokerHarness, group: str) -> list[str]:
    (answer,) = desk.call(a_request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group))
    return list(java_json.loads(answer.body)["consumerIdList"]) if answer.code == 0 else []


def was_notified(desk: BrokerHarness, channel: int) -> bool:
    commands = pop_requests(desk, channel)
    assert all(command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for command in commands)
    assert all(command.is_one_way for command in commands)
    return bool(commands)


def test_a_heartbeat_is_answered_with_what_the_broker_can(desk: BrokerHarness) -> None:
    """It keeps batches whole: producers send them so only to whom says it."""
    (answer,) = desk.call(a_heartbeat("c1"))

    assert answer.code == 0
    assert answer.fields[CAPABILITIES_FIELD].split(",") == [INNER_BATCH_CAPABILITY]


def test_a_heartbeat_makes_a_member(desk: BrokerHarness) -> None:
    """Whoever asks for the group's members finds it, and its retry topic exists."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,)))

    assert members(desk, "g") == ["c1"]
    assert desk.components.topics.find("%RETRY%g") is not None
    assert desk.components.clients.subscription("g", "T") is not None
    assert desk.components.clients.subscription("g", "other") is None


def test_a_group_without_members_is_an_error_to_whoever_asks(desk: BrokerHarness) -> None:
    """As upstream answers: the asking client then keeps what it has."""
    (answer,) = desk.call(a_request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="nobody"))

    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_every_member_is_told_when_another_joins(desk: BrokerHarness) -> None:
    """Also the new one; a heartbeat that changes nothing tells nobody."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,)))
    desk.connect(3)

    desk.call(a_heartbeat("c2", consumer_group="g", topics=(T,)), channel=3)

    assert was_notified(desk, 2)
    assert was_notified(desk, 3)
    desk.call(a_heartbeat("c2", consumer_group="g", topics=(T,)), channel=3)
    assert not was_notified(desk, 2)


@pytest.mark.parametrize("leaves_by", ["closing", "unregistering", "silence"])
def test_the_others_are_told_when_a_member_leaves(desk: BrokerHarness, leaves_by: str) -> None:
    """However it leaves."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,)))
    connect_client(desk, 3, a_heartbeat("c2", consumer_group="g", topics=(T,)))

    if leaves_by == "closing":
        desk.disconnect(3)
    elif leaves_by == "unregistering":
        goodbye = a_request(RequestCode.UNREGISTER_CLIENT, clientID="c2", consumerGroup="g")
        (answer,) = desk.call(goodbye, channel=3)
        assert answer.code == 0
    else:
        desk.now_ms += desk.options.client_timeout_ms
        desk.call(a_heartbeat("c1", consumer_group="g", topics=(T,)), channel=2)
        desk.pass_time(SCAN_INTERVAL_MS, TIMER)

    assert was_notified(desk, 2)
    assert members(desk, "g") == ["c1"]


def test_a_silent_client_is_disconnected(desk: BrokerHarness) -> None:
    """It may believe that it is still a member: without a connection it will come back and say so."""
    connect_client(desk, 2, a_heartbeat("c1", producer_group="p"))

    desk.pass_time(desk.options.client_timeout_ms + 1, TIMER)

    assert CloseChannel(2) in desk.effects  # type: ignore[arg-type]
    assert desk.components.clients.producers("p") == []


def test_the_last_member_takes_the_group_with_it(desk: BrokerHarness) -> None:
    """Nothing is remembered of a group that is not there."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,)))

    desk.disconnect(2)

    assert not desk.components.clients.has_group("g")
    assert desk.components.clients.count_channels() == (0, 0)


def test_members_of_a_broadcast_group_are_never_told(desk: BrokerHarness) -> None:
    """Each of them consumes every queue, whoever else is there."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,), model="BROADCASTING"))
    connect_client(desk, 3, a_heartbeat("c2", consumer_group="g", topics=(T,), model="BROADCASTING"))
    desk.connect(4)

    desk.call(a_heartbeat("c3", consumer_group="g", topics=(T,), model="BROADCASTING"), channel=4)

    assert not was_notified(desk, 2)


def test_a_group_can_forbid_notifications(desk: BrokerHarness) -> None:
    """Its members then notice changes at their next own look."""
    desk.components.groups.put(GroupConfig(group_name="g", notify_consumer_ids_changed_enable=False))
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,)))
    desk.connect(3)

    desk.call(a_heartbeat("c2", consumer_group="g", topics=(T,)), channel=3)
    desk.disconnect(3)

    assert not was_notified(desk, 2)


def test_the_newest_heartbeat_decides_what_a_group_subscribes_to(desk: BrokerHarness) -> None:
    """A topic that it does not name is dropped, a new one is added, and the members are told."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T, a_subscription("old"))))

    desk.call(a_heartbeat("c1", consumer_group="g", topics=(T, a_subscription("new"))), channel=2)

    assert desk.components.clients.subscription("g", "old") is None
    assert desk.components.clients.subscription("g", "new") is not None
    assert was_notified(desk, 2)


def test_an_older_subscription_does_not_replace_a_newer_one(desk: BrokerHarness) -> None:
    """A slower member still tells of the choice before."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(a_subscription("T", "new", 5),)))

    desk.call(a_heartbeat("c1", consumer_group="g", topics=(a_subscription("T", "old", 4),)), channel=2)

    subscription = desk.components.clients.subscription("g", "T")
    assert subscription is not None
    assert subscription.sub_string == "new"


def test_where_groups_are_not_created_a_stranger_does_not_become_a_member() -> None:
    """Its heartbeat is answered all the same: it may be a producer as well."""
    desk = BrokerHarness(auto_create_groups=False)

    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,), producer_group="p"))

    assert members(desk, "g") == []
    assert [client.client_id for client in desk.components.clients.producers("p")] == ["c1"]


def test_a_client_with_two_connections_is_one_member(desk: BrokerHarness) -> None:
    """Old clients hold a second one to the VIP port; a queue must not be given to the same client twice."""
    connect_client(desk, 2, a_heartbeat("c1", consumer_group="g", topics=(T,)))
    connect_client(desk, 3, a_heartbeat("c1", consumer_group="g", topics=(T,)))

    assert members(desk, "g") == ["c1"]
    desk.disconnect(2)
    assert members(desk, "g") == ["c1"]


def test_a_requester_is_found_on_its_newest_connection(desk: BrokerHarness) -> None:
    """Until that one closes."""
    connect_client(desk, 2, a_heartbeat("c1", producer_group="p"))
    connect_client(desk, 3, a_heartbeat("c1", producer_group="p"))

    found = desk.components.clients.find_producer("c1")
    assert found is not None
    assert found.channel == 3
    desk.disconnect(3)
    assert desk.components.clients.find_producer("c1") is None


def test_a_member_is_told_in_the_encoding_that_it_uses(desk: BrokerHarness) -> None:
    """A client that writes binary headers may read nothing else."""
    beat = a_heartbeat("c1", consumer_group="g", topics=(T,))
    beat.serializer = BINARY
    desk.connect(2)

    desk.call(beat, channel=2)

    assert [command.serializer for command in pop_requests(desk, 2)] == [BINARY]


def test_a_heartbeat_that_is_none_is_refused(desk: BrokerHarness) -> None:
    """The connection lives on: the frame was sound."""
    (answer,) = desk.call(Command(code=RequestCode.HEART_BEAT, body=b'{"clientID":[]}'))

    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_only_tag_subscriptions_can_be_used(desk: BrokerHarness) -> None:
    """A consumer that wants SQL is told at its start, not by messages that it did not want."""
    check = {
        "clientId": "c",
        "group": "g",
        "subscriptionData": {"topic": "T", "subString": "a", "expressionType": "TAG"},
    }
    sql = check | {"subscriptionData": {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}}

    accepted, refused = desk.call(
        a_request(RequestCode.CHECK_CLIENT_CONFIG, java_json.encode(check)),
        a_request(RequestCode.CHECK_CLIENT_CONFIG, java_json.encode(sql)),
    )

    assert accepted.code == 0
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "SQL92" in (refused.remark or "")


def test_when_in_doubt_whoever_is_not_heard_of_any_more_is_forgotten_soon(desk: BrokerHarness) -> None:
    """Long before the usual time, also if it was heard of once more since; whoever goes on to be heard of stays."""
    beats = {
        channel: a_heartbeat(name, consumer_group="G", topics=(T,)) for channel, name in ((1, "stays"), (2, "goes"))
    }
    for channel, beat in beats.items():
        connect_client(desk, channel, beat)

    desk.components.clients.shorten_timeout()
    for channels in ((), (), (1, 2), (), (), (1,), ()):
        desk.pass_time(SCAN_INTERVAL_MS, TIMER)
        for channel in channels:
            desk.call(beats[channel], channel=channel)
        assert members(desk, "G") == ["stays", "goes"]
    desk.pass_time(SCAN_INTERVAL_MS, TIMER)

    assert members(desk, "G") == ["stays"]
    desk.call(beats[1], channel=1)
    for _ in range(
        SHORT_TIMEOUT_PERIOD_MS // SCAN_INTERVAL_MS
    ):  # The doubt is over before that: the usual time counts.
        desk.pass_time(SCAN_INTERVAL_MS, TIMER)
    assert members(desk, "G") == ["stays"]


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_notice_is_one_way_and_in_the_encoding_of_the_client(desk: BrokerHarness, serializer: int) -> None:
    """Some clients can read only one of the two."""
    heartbeat = a_heartbeat("c1", consumer_group="g", topics=(T,))
    heartbeat.serializer = serializer
    connect_client(desk, 2, heartbeat)
    membership = desk.components.clients.find_membership("g")
    assert membership is not None
    (client,) = membership.members.values()
    turn = Turn()

    client.notify(turn, Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED))

    (sent,) = turn.drain_effects()
    assert isinstance(sent, SendBytes)
    (frame,) = split_frames(memoryview(b"".join(sent.pieces)))[0]
    assert (sent.channel, frame.serializer, decode_command(frame).is_one_way) == (client.channel, serializer, True)
