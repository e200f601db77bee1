"""A send to a broker that has not heard of a static topic goes to the leader, and makes no other topic of that name."""

import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.broker.assembly import Components
from holdfast.broker.flow.awaitables import ParallelCalls, Pause
from holdfast.broker.relay import auto_create_guard
from holdfast.broker.relay.auto_create_guard import LOOKUP_VALID_MS, QUERIED_MAX
from holdfast.machine.events import ChannelId
from holdfast.model.access.identity import ANONYMOUS
from holdfast.model.errors import PeerFailed
from holdfast.model.leadership import Leader
from holdfast.model.queue import MessageQueue
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.record import decode_records
from holdfast.wire.requests.admin import TopicConfigs
from holdfast.wire.requests.send import SendFields


def a_create(topic: str) -> Command:
    """Return an operator's request for a normal topic."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields | more)


@pytest.fixture
def cluster() -> MovingCluster:
    """A leads queue 0, b leads queue 1; c came later, and nobody told it."""
    cluster = MovingCluster("a", "b", name_servers=2)
    cluster.make_topic({0: "a", 1: "b"})
    cluster.steps["c"] = 0
    cluster.brokers["c"] = cluster.create_broker("c", "10.0.1.3:10911")
    cluster.restart("c")
    cluster.run(2_000)
    return cluster


def hosted(cluster: MovingCluster, topic: str = TOPIC) -> bool:
    return cluster.components["c"].topics.find(topic) is not None


def read(cluster: MovingCluster, queue: int, topic: str = TOPIC, at: str = "c") -> list[bytes]:
    answer = cluster.call(at, a_pull(topic, queue=queue))
    return [bytes(record.body) for record in decode_records(answer.body)]


def test_it_is_answered_by_the_leader(cluster: MovingCluster) -> None:
    """Nothing is hosted where it was asked; a queue may move there later."""
    answer = cluster.call("c", a_send(TOPIC, queue=1, body=b"one"))

    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "1", "0")
    assert not hosted(cluster)
    move = cluster.move("b", "c", 1)
    assert cluster.run(10_000, lambda: cluster.moves("b")[move.id].state == "done")
    assert cluster.read(1) == [b"one"]


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_many_keep_their_order(cluster: MovingCluster, code: RequestCode) -> None:
    """Those that come before the name servers have answered, and those that come later."""
    is_batch = code == RequestCode.SEND_BATCH_MESSAGE
    body = encode_items([(0, b"x", b"")]) if is_batch else b"x"
    answers = []
    for _ in range(20):
        answers.append(cluster.call_later("c", a_send(TOPIC, queue=0, body=body, code=code, m=str(is_batch).lower())))
        cluster.run(1)
    assert cluster.run(5_000, lambda: all(answers))

    told = [answer.fields.get("queueOffset") for (answer,) in answers if isinstance(answer, Command)]
    assert told == [str(number) for number in range(20)]
    assert not hosted(cluster)


def test_half_a_transaction_goes_there_too(cluster: MovingCluster) -> None:
    """This broker could not say what became of it."""
    half = a_send(TOPIC, queue=0, f="4", i="UNIQ_KEY\x01H\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02")

    assert cluster.call("c", half).code == 0

    assert not hosted(cluster)


def test_a_queue_that_the_topic_does_not_have_is_refused(cluster: MovingCluster) -> None:
    """With the advice to ask the name server."""
    answer = cluster.call("c", a_send(TOPIC, queue=9))

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert "name server" in (answer.remark or "")
    assert not hosted(cluster)


def test_what_another_broker_brings_in_error_makes_no_topic(cluster: MovingCluster) -> None:
    """It is told that this one does not lead the queue."""
    cluster.components["b"].view.record_leader(MessageQueue(TOPIC, "c", 0), Leader("c", 9))
    cluster.components["b"].view.record_address("c", cluster.address("c"))

    answer = cluster.call("b", a_send(TOPIC, queue=0))

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert not hosted(cluster)


def test_an_operator_cannot_make_a_normal_topic_of_its_name(cluster: MovingCluster) -> None:
    """Name servers know better, though this broker has not heard of it; one that is new everywhere is created."""
    answer = cluster.call("c", a_create(TOPIC))

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "static on other brokers" in (answer.remark or "")
    assert not hosted(cluster)
    assert cluster.call("c", a_create("N")).code == 0
    assert hosted(cluster, "N")


def test_a_list_with_its_name_is_refused_as_a_whole(cluster: MovingCluster) -> None:
    """18: all names are asked for at once, and none of them is created."""
    configs = [*(TopicConfig(name=f"N{number}") for number in range(200)), TopicConfig(name=TOPIC)]
    body = java_json.encode(TopicConfigs(topic_config_list=configs))

    answer = cluster.call("c", Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body))

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert not hosted(cluster, "N0")
    rest = java_json.encode(TopicConfigs(topic_config_list=configs[:-1]))
    assert cluster.call("c", Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=rest)).code == 0
    assert hosted(cluster, "N199")


def test_an_operator_can_make_a_topic_while_no_name_server_answers(cluster: MovingCluster) -> None:
    """Nothing speaks against it."""
    for node in cluster.name_servers:
        node.kill()

    assert cluster.call("c", a_create("N")).code == 0

    assert hosted(cluster, "N")


# Topics that are new to everybody.


@pytest.mark.parametrize("is_two_way", [True, False])
def test_a_topic_that_nobody_knows_is_created(cluster: MovingCluster, *, is_two_way: bool) -> None:
    """As ever, in the order in which messages came."""
    for number in range(5):
        send = a_send("N", body=b"%d" % number)
        send.flag = 0 if is_two_way else ONE_WAY
        cluster.call_later("c", send)
    cluster.run(1_000)

    assert read(cluster, 0, "N") == [b"%d" % number for number in range(5)]


def test_a_topic_of_another_broker_is_created_here_too(cluster: MovingCluster) -> None:
    """A normal one, of which the name server knows."""
    assert cluster.call("a", a_send("N")).code == 0
    cluster.run(4_000)

    assert cluster.call("c", a_send("N")).code == 0

    assert hosted(cluster, "N")


@pytest.mark.parametrize(("wanted", "default", "count"), [(4, 8, 4), (8, 8, 8), (16, 8, 8), (4, 2, 2)])
def test_a_created_topic_is_on_every_broker_that_creates_topics(wanted: int, default: int, count: int) -> None:
    """After one send; with the smaller of the numbers of queues that the client and the broker want."""
    cluster = MovingCluster("a", "b", "x", clusters={"x": "other"}, default_topic_queues=default)
    cluster.options["auto_create_topics"] = False
    cluster.steps["d"] = 0
    cluster.brokers["d"] = cluster.create_broker("d", "10.0.1.9:10911")
    cluster.restart("d")
    cluster.run(4_000)

    assert cluster.call("a", a_send("N", d=str(wanted))).code == 0
    cluster.run(1_000)

    configs = {name: rooms.topics.find("N") for name, rooms in cluster.components.items()}
    counts = {name: (config.read_queues, config.write_queues) for name, config in configs.items() if config is not None}
    assert counts == {"a": (count, count), "b": (count, count)}


def test_a_broker_that_is_drained_gets_no_created_topic(cluster: MovingCluster) -> None:
    """It would have to be drained again."""
    cluster.components["b"].mappings.is_draining = True

    assert cluster.call("a", a_send("N")).code == 0
    cluster.run(1_000)

    assert [name for name, rooms in cluster.components.items() if rooms.topics.find("N")] == ["a", "c"]


def test_where_no_name_server_answers_it_is_created(cluster: MovingCluster) -> None:
    """Whoever can send shall: nobody can say that there is another one."""
    for node in cluster.name_servers:
        node.kill()

    assert cluster.call("c", a_send("N")).code == 0

    assert hosted(cluster, "N")


def test_one_name_server_that_knows_is_enough(cluster: MovingCluster) -> None:
    """The other one may be new."""
    cluster.name_servers[0].kill()

    assert cluster.call("c", a_send(TOPIC, queue=0)).code == 0

    assert not hosted(cluster)


def test_what_was_told_counts_for_a_moment(cluster: MovingCluster) -> None:
    """A topic that was deleted does not come into being again, at any broker, but with an explicit create."""
    assert cluster.call("c", a_send(TOPIC, queue=0)).code == 0
    cluster.delete_topic(TOPIC, "a", "b")
    cluster.run(LOOKUP_VALID_MS)

    for name in "abc":
        answer = cluster.call(name, a_send(TOPIC, queue=0))
        assert (answer.code, "was deleted" in (answer.remark or "")) == (ResponseCode.TOPIC_NOT_EXIST, True)
        assert not hosted(cluster)

    assert cluster.call("c", a_create(TOPIC)).code == 0
    assert cluster.call("c", a_send(TOPIC, queue=0)).code == 0


def test_strangers_make_a_broker_ask_for_a_few_topics_at_once(cluster: MovingCluster) -> None:
    """The others are told to come again."""
    answers = [cluster.call_later("c", a_send(f"N{number}")) for number in range(QUERIED_MAX + 3)]
    assert cluster.run(5_000, lambda: all(answers))

    codes = [answer.code for (answer,) in answers if isinstance(answer, Command)]
    assert codes == [0] * QUERIED_MAX + [ResponseCode.SYSTEM_BUSY] * 3


def test_a_topic_that_became_static_meanwhile_is_the_leaders(cluster: MovingCluster) -> None:
    """It was a normal one, which was deleted."""
    assert cluster.call("c", a_send("N")).code == 0
    assert cluster.request("c", RequestCode.DELETE_TOPIC_IN_BROKER, topic="N").code == 0
    there = cluster.components.pop("c")
    cluster.make_topic({0: "b"}, "N")
    cluster.components["c"] = there

    assert cluster.call("c", a_send("N", body=b"one")).code == 0

    assert not hosted(cluster, "N")
    assert read(cluster, 0, "N", at="b") == [b"one"]


def test_what_waits_is_bounded(cluster: MovingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives its room back."""
    monkeypatch.setattr(auto_create_guard, "HELD_SIZE_MAX", 1_000)
    for topic in ("N", "M"):
        answers = [cluster.call_later("c", a_send(topic, body=bytes(400))) for _ in range(2)]
        cluster.run(1_000)

        assert [answer.code for (answer,) in answers if isinstance(answer, Command)] == [0, ResponseCode.SYSTEM_BUSY]


# Step by step.


@pytest.fixture
def rooms(cluster: MovingCluster) -> Components:
    return cluster.components["c"]


@pytest.mark.parametrize("fields", [("N", "nothing"), ("in valid", "TBW102"), ("%RETRY%g", "TBW102"), ("M", "TBW102")])
def test_what_a_send_does_not_create_is_not_asked_for(rooms: Components, fields: tuple[str, str]) -> None:
    """Without a template, or with a name that cannot be; for a group of its own; what is there."""
    rooms.topics.put(TopicConfig(name="M"))
    topic, template = fields

    assert not rooms.auto_create_guard.is_create_unsafe(SendFields(topic=topic, default_topic=template, queue_id=0))
    assert rooms.auto_create_guard.is_create_unsafe(SendFields(topic="N", queue_id=0))


def test_what_was_just_read_stands_behind_what_waited(rooms: Components) -> None:
    """Another read of the event in which a name server answers is not taken first."""
    asking, errands, send = rooms.auto_create_guard, rooms.turn, SendFields(topic="N", queue_id=0)
    (frame,), _ = split_frames(memoryview(encode_command(a_send("N"))))
    asking.divert(frame, a_send("N"), ("N", 0), ChannelId(1), ANONYMOUS)
    (steps,) = errands.drain_procedures()

    wait = steps.send(None)
    assert isinstance(wait, ParallelCalls)
    wait = steps.send([PeerFailed("no answer")] * len(wait.calls))
    assert isinstance(wait, Pause)
    assert asking.is_create_unsafe(send)
    assert not errands.frames

    with pytest.raises(StopIteration):
        steps.send(None)
    assert not asking.is_create_unsafe(send)
    assert errands.pop_frames() == (1, encode_command(a_send("N")), ANONYMOUS)


def test_a_topic_that_exists_is_not_created_again() -> None:
    """The sender gets it as it is."""
    broker = BrokerHarness()
    guard = broker.components.auto_create_guard

    created = guard.create_for_send("T", "TBW102", 2)
    broker.pass_time(0, "stats")

    assert isinstance(created, TopicConfig)
    assert created.write_queues == 2
    assert guard.create_for_send("T", "TBW102", 4) == created
