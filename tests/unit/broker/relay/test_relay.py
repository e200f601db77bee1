"""Whichever broker a client asks, the leader of the queue answers: in order, once, or not at all."""

from collections.abc import Callable

import msgspec
import pytest
from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.broker.mapping.cluster_view import QUERY_TIMEOUT_MS
from holdfast.broker.relay import relay as relaying
from holdfast.broker.relay.group_gossip import ROUND_MS
from holdfast.broker.relay.relay import LEADER_WAIT_MS
from holdfast.model.errors import ConnectionLost, HoldfastError
from holdfast.model.leadership import Leader
from holdfast.model.queue import MessageQueue
from holdfast.sim.world.network import Socket, SocketOwner
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.record import decode_records
from holdfast.wire.requests.moves import MoveRequest, encode_body
from holdfast.wire.requests.relay import RelayFields

Answers = list[list[Command | HoldfastError]]


def a_cluster(*names: str) -> MovingCluster:
    """A leads queue 0, b leads queue 1."""
    cluster = MovingCluster(*(names or ("a", "b")))
    cluster.make_topic({0: "a", 1: "b"})
    return cluster


def send_at_once(cluster: MovingCluster, name: str, count: int, queue: int = 0) -> Answers:
    """Send many messages without waiting for any answer."""
    bodies = [f"{queue}-{at}".encode() for at in range(count)]
    return [cluster.call_later(name, a_send(TOPIC, queue=queue, body=body)) for body in bodies]


def offsets(answers: Answers) -> list[str]:
    return [answer.fields.get("queueOffset", "none") for (answer,) in answers if isinstance(answer, Command)]


def seal(cluster: MovingCluster) -> None:
    """Bring queue 0 to the point where its new leader was granted it and died."""
    cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "sealed")
    cluster.kill("b")


def relay_link(cluster: MovingCluster) -> Socket:
    """Return b's end of the connection by which it passes on to a."""
    (link,) = [
        socket
        for socket in cluster.network.connections()
        if socket.owner.host == "10.0.1.2" and socket.remote_address == cluster.address("a")
    ]
    return link


def test_sends_to_a_broker_that_does_not_lead_arrive_in_order() -> None:
    """Many at once, by way of the other broker: each gets its answer, and the queue holds them as they were sent."""
    cluster = a_cluster()

    answers = send_at_once(cluster, "b", 300)
    cluster.run(5_000, lambda: all(answers))

    assert offsets(answers) == [str(at) for at in range(300)]
    assert cluster.read(0) == [f"0-{at}".encode() for at in range(300)]


def test_what_is_passed_on_is_counted() -> None:
    """By who passes it on, and no more once clients go to the leader themselves."""
    cluster = a_cluster()

    answers = [*send_at_once(cluster, "b", 7), *send_at_once(cluster, "a", 5)]
    cluster.run(5_000, lambda: all(answers))

    assert [cluster.components[name].relay.relayed_sends for name in ("a", "b")] == [0, 7]


@pytest.mark.parametrize("name", ["a", "b"])
def test_sends_in_flight_keep_their_order_through_a_move(name: str) -> None:
    """Taken, held, passed on, and taken by the new leader itself: nobody overtakes anybody."""
    cluster = a_cluster()
    cluster.call_later("a", _order())

    answers: Answers = []
    for _ in range(60):
        answers += send_at_once(cluster, name, 5)
        cluster.run(1)
    cluster.run(5_000, lambda: all(answers))

    assert cluster.leader(0) == "b"
    assert offsets(answers) == [str(at) for at in range(300)]


def _order() -> Command:
    order = MoveRequest(topic=TOPIC, queues=[0], target="b")
    return Command(code=RequestCode.MOVE_QUEUES, body=encode_body(order))


def test_a_send_whose_leader_stays_away_is_refused_and_never_stored() -> None:
    """Its sender has given up, and sends it again: a copy that turned up later would be a second one."""
    cluster = a_cluster()
    seal(cluster)
    (waiting,) = send_at_once(cluster, "a", 1)
    cluster.run(LEADER_WAIT_MS - 100)
    assert waiting == []

    cluster.run(300)
    cluster.restart("b")
    cluster.run(20_000, cluster.are_moves_finished)

    (answer,) = waiting
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert cluster.read(0) == []


def test_a_send_that_waited_too_long_for_who_leads_is_refused_and_never_stored() -> None:
    """First for one before it in line, then for a name server: its sender has given up by then, and sends it again."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 1, "b"))
    links = [("10.0.1.2", node.host) for node in (cluster.brokers["a"], cluster.name_server)]
    for source, target in links:
        cluster.network.cut_link(source, target)
    cluster.call_later("b", a_send(TOPIC, queue=0, body=b"before"), by=cluster.add_client("other"))
    cluster.run(QUERY_TIMEOUT_MS // 2)

    waiting = cluster.call_later("b", a_send(TOPIC, queue=0, body=b"behind"))
    cluster.run(LEADER_WAIT_MS + 100)
    cluster.network.mend(links)
    cluster.run(10_000)

    (answer,) = waiting
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert cluster.read(0) == [b"0-0", b"before"]


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound a sender is told to come back later."""
    monkeypatch.setattr(relaying, "HELD_SIZE_MAX", 1_000)
    cluster = a_cluster()
    seal(cluster)

    answers = send_at_once(cluster, "a", 10)
    cluster.run(100)

    told = [answer.code for got in answers for answer in got if isinstance(answer, Command)]
    assert told == [ResponseCode.SYSTEM_BUSY] * 7


def test_requests_of_a_client_that_is_gone_are_dropped() -> None:
    """Nobody waits for the answer, and the room is others'."""
    cluster = a_cluster()
    seal(cluster)
    hand = cluster.add_client("gone")
    cluster.call_later("a", a_send(TOPIC), by=hand)
    cluster.run(100)
    assert cluster.components["a"].relay._held_size > 0

    assert hand.node is not None
    hand.node.kill()
    cluster.run(500)

    assert cluster.components["a"].relay._held_size == 0
    assert not any(cluster.components["a"].relay.moving.values())


def test_a_send_whose_relay_lost_its_connection_is_repeated_and_stored_once() -> None:
    """The leader knows its number. The client notices nothing."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 1, "b"))  # The two know each other.
    answers = send_at_once(cluster, "b", 5)
    assert cluster.run(1_000, lambda: cluster.stores["a"].queue(TOPIC, 0).next_offset > 1)

    cluster.network.break_connection(relay_link(cluster), is_seen_by_both=True)
    cluster.run(5_000, lambda: all(answers))

    stored = cluster.read(0)
    assert offsets(answers) == ["1", "2", "3", "4", "5"]
    assert len(stored) == 6


def test_a_send_that_was_given_up_before_there_was_a_connection_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of an envelope was late; the second was passed on again, and not with the first one, too."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 1, "b"))
    began_ms, dial = cluster.world.now_ms, cluster.network.connect

    def dial_late(owner: SocketOwner, address: str, purpose: str = "") -> None:
        left_ms = max(began_ms + 3_500 - cluster.world.now_ms, 0)
        cluster.world.schedule(lambda: dial(owner, address, purpose), delay_ms=left_ms)

    monkeypatch.setattr(cluster.network, "connect", dial_late)
    cluster.network.break_connection(relay_link(cluster), is_seen_by_both=True)
    cluster.network.cut_link("10.0.1.2", cluster.name_server.host)  # Until it answers, both wait in line.
    cluster.components["b"].view.suspect_addresses()
    late = cluster.call_later("b", a_send(TOPIC, queue=0, body=b"late"))
    cluster.run(1_000)
    later = cluster.call_later("b", a_send(TOPIC, queue=0, body=b"later"))
    cluster.run(900)

    cluster.network.mend()
    cluster.run(5_000)

    assert [answer.code for answer in late + later if isinstance(answer, Command)] == [
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.SUCCESS,
    ]
    assert cluster.read(0) == [b"0-0", b"later"]


def test_when_nobody_can_know_whether_a_send_was_stored_the_client_is_not_told_anything() -> None:
    """The leader died with the message in its hands: the client's channel closes, as the leader's own would have."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 1, "b"))
    (waiting,) = send_at_once(cluster, "b", 1)
    assert cluster.run(1_000, lambda: cluster.stores["a"].queue(TOPIC, 0).next_offset > 1)

    cluster.kill("a")
    cluster.restart("a")
    cluster.run(10_000, lambda: bool(waiting))

    assert isinstance(waiting[0], ConnectionLost)


def test_a_pull_waits_at_the_leader_and_is_answered_when_something_comes() -> None:
    """Asked of either broker, a message is delivered at once."""
    cluster = a_cluster()
    waiting = cluster.call_later("b", a_pull(TOPIC, queue=0, sysFlag="6", suspendTimeoutMillis="15000"))
    cluster.run(3_000)
    assert waiting == []

    cluster.run(1_000, cluster.produce(0, 1, "a"))
    cluster.run(100)

    (answer,) = waiting
    assert isinstance(answer, Command)
    assert [bytes(record.body) for record in decode_records(answer.body)] == [b"0-0"]


def test_a_pull_is_answered_as_late_as_it_wants_and_not_later() -> None:
    """Nothing came."""
    cluster = a_cluster()
    waiting = cluster.call_later("b", a_pull(TOPIC, queue=0, sysFlag="6", suspendTimeoutMillis="10000"))

    cluster.run(9_500)
    assert waiting == []
    cluster.run(1_000)

    (answer,) = waiting
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.PULL_NOT_FOUND


def test_a_pull_for_a_dead_leader_is_an_error_that_names_it() -> None:
    """The consumer waits and asks again."""
    cluster = a_cluster()
    cluster.kill("a")
    cluster.run(1_000)

    answer = cluster.pull("b", 0, 0)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is led by a, which cannot be reached" in (answer.remark or "")


@pytest.mark.parametrize(
    ("code", "field", "expected"),
    [
        (RequestCode.GET_MAX_OFFSET, "offset", "4"),
        (RequestCode.GET_MIN_OFFSET, "offset", "0"),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "offset", "0"),
    ],
)
def test_questions_about_a_queue_are_answered_the_same_everywhere(code: RequestCode, field: str, expected: str) -> None:
    """Before and after a move."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 4, "a"))
    asked = {"topic": TOPIC, "queueId": "0", "timestamp": "1"}

    before = [cluster.request(name, code, None, **asked).fields[field] for name in ("a", "b")]
    cluster.move("a", "b", 0)
    cluster.run(5_000, cluster.are_moves_finished)
    after = [cluster.request(name, code, None, **asked).fields[field] for name in ("a", "b")]

    assert before == after == [expected] * 2


def test_an_offset_is_asked_for_while_the_queue_moves_and_answered_when_it_has() -> None:
    """Held, not refused: who is told "none" might begin at the end."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 4, "a"))
    cluster.pull("a", 0, 0)
    cluster.commit("a", 0, 3)
    seal(cluster)
    fields = {"consumerGroup": "consumers", "topic": TOPIC, "queueId": "0", "setZeroIfNotFound": "false"}
    waiting = cluster.call_later("a", Command(code=RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
    cluster.run(500)
    assert waiting == []

    cluster.restart("b")
    cluster.run(5_000, lambda: bool(waiting))

    (answer,) = waiting
    assert isinstance(answer, Command)
    assert answer.fields["offset"] == "3"


def test_two_brokers_that_pass_on_to_each_other_do_not_wait_for_each_other() -> None:
    """One sent to the leader, which sends back what it held when the queue moved: neither line stands in the other."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 1, "b"))  # The two know each other.
    cluster.network.delay(relay_link(cluster), 500)
    by_way = send_at_once(cluster, "b", 3)
    cluster.run(100)
    cluster.move("a", "b", 0)
    assert cluster.run(300, lambda: cluster.components["a"].mappings.placement(TOPIC, 0).state == "sealed")

    held = send_at_once(cluster, "a", 3)
    is_answered = cluster.run(1_000, lambda: all(by_way + held))

    assert is_answered
    assert (offsets(by_way), offsets(held)) == (["1", "2", "3"], ["4", "5", "6"])


def test_what_waits_at_a_leader_that_leads_no_more_goes_back_to_who_brought_it() -> None:
    """That one may be the next leader: passed on to it, the send would stand behind itself."""
    cluster = a_cluster("a", "b", "c")
    cluster.run(5_000, cluster.produce(0, 1, "b"))
    cluster.network.delay(relay_link(cluster), 1_000)
    first = send_at_once(cluster, "b", 1)
    cluster.run(10)
    cluster.move("a", "b", 0)
    assert cluster.run(300, cluster.are_moves_finished)
    second = send_at_once(cluster, "c", 1)
    cluster.run(50)
    cluster.move("b", "c", 0)
    assert cluster.run(300, cluster.are_moves_finished)

    is_answered = cluster.run(1_000, lambda: all(first + second))

    assert is_answered
    assert cluster.leader(0) == "c"
    assert sorted(offsets(first + second)) == ["1", "2"]


def test_a_request_goes_no_further_than_two_brokers() -> None:
    """Three that each believe another one leads would pass it on for ever."""
    cluster = a_cluster("a", "b", "c")
    for name, other in (("b", "c"), ("c", "b")):
        place = MessageQueue(TOPIC, "__syslo__global__", 0)
        cluster.components[name].view.record_leader(place, Leader(other, 99, 99))

    answer = cluster.call("b", a_send(TOPIC, queue=0))

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert cluster.read(0) == []


def test_a_broker_that_stops_refuses_what_it_could_not_pass_on() -> None:
    """Its senders ask elsewhere at once, and are sure that nothing was stored."""
    cluster = a_cluster()
    seal(cluster)
    answers = send_at_once(cluster, "a", 3)
    cluster.run(100)

    cluster.stop("a")
    cluster.run(500)

    assert [answer.code for (answer,) in answers if isinstance(answer, Command)] == [
        ResponseCode.NOT_LEADER_FOR_QUEUE
    ] * 3


def test_a_broker_that_stops_refuses_unsent_sends_after_a_client_with_sends_in_flight_left() -> None:
    """The sends of the client that left no longer count as in flight: the next ones in line were never relayed."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 1, "b"))  # The two know each other.
    cluster.network.delay(relay_link(cluster), 5_000)
    hand = cluster.add_client("gone")
    for body in (b"one", b"two"):
        cluster.call_later("b", a_send(TOPIC, queue=0, body=body), by=hand)
    cluster.run(100)
    answers = send_at_once(cluster, "b", 2)
    cluster.run(100)
    assert hand.node is not None
    hand.node.kill()
    cluster.run(500)

    cluster.stop("b")
    cluster.run(500)

    assert [answer.code for (answer,) in answers if isinstance(answer, Command)] == [
        ResponseCode.NOT_LEADER_FOR_QUEUE
    ] * 2


def test_a_rolling_restart_under_load_loses_and_repeats_nothing() -> None:
    """One broker after the other, in order, while messages are sent by way of all."""
    cluster = a_cluster("a", "b", "c")
    producers = [cluster.produce(queue, 150, "a", "b", "c", pause_ms=20) for queue in (0, 1)]

    for name in ("a", "b", "c"):
        cluster.run(500)
        cluster.brokers[name].stop(cluster.brokers[name].start)

    assert cluster.run(60_000, lambda: all(done() for done in producers))
    cluster.run(3_000)
    cluster.check_ledger(0, 1)
    assert cluster.refused == []


def test_a_broker_that_missed_two_moves_is_told_where_the_queue_is() -> None:
    """With no name server to ask: whoever does not lead says who does, and what is passed on goes there at once."""
    cluster = a_cluster("a", "b", "c", "d")
    (first,) = send_at_once(cluster, "d", 1)
    cluster.run(ROUND_MS)
    assert offsets([first]) == ["0"]
    cluster.name_server.kill()
    for source, target in (("a", "b"), ("b", "c")):
        cluster.move(source, target, 0)
        assert cluster.run(5_000, cluster.are_moves_finished)
    before = cluster.components["d"].relay.find_leader_name((TOPIC, 0))

    answers = send_at_once(cluster, "d", 3)

    assert cluster.run(200, lambda: all(answers)), "long before its sender gives up"
    assert offsets(answers) == ["1", "2", "3"]
    assert before == "a"
    assert cluster.components["d"].relay.find_leader_name((TOPIC, 0)) == "c"


def test_other_requests_find_the_queue_after_two_moves_too() -> None:
    """A commit goes where a send would."""
    cluster = a_cluster("a", "b", "c", "d")
    cluster.pull("a", 0, 0)
    assert cluster.commit("d", 0, 1).code == ResponseCode.SUCCESS
    cluster.run(ROUND_MS)
    cluster.name_server.kill()
    for source, target in (("a", "b"), ("b", "c")):
        cluster.move(source, target, 0)
        assert cluster.run(5_000, cluster.are_moves_finished)

    began_ms = cluster.world.now_ms
    answer = cluster.commit("d", 0, 2)

    assert answer.code == ResponseCode.SUCCESS
    assert cluster.world.now_ms - began_ms < 200
    assert cluster.components["c"].offsets.find("consumers", TOPIC, 0) == 2


def test_a_leader_that_is_behind_takes_nothing_from_who_knows_better() -> None:
    """It was passed over, or lost what it knew: it says in which generation it leads, and finds out."""
    cluster = a_cluster()
    send = encode_command(a_send(TOPIC, queue=0, body=b"late"))

    def relay(number: int, generation: int) -> Command:
        fields = RelayFields(source="b", boot=1, number=number, topic=TOPIC, queue=0, generation=generation)
        return cluster.call("a", Command(code=RequestCode.RELAY, fields=to_fields(fields), body=send))

    newer, equal = relay(1, generation=5), relay(2, generation=0)

    assert (newer.code, newer.body) == (ResponseCode.NOT_LEADER_FOR_QUEUE, b"")
    assert (newer.fields["leader"], newer.fields["generation"]) == ("a", "0")
    assert equal.code == ResponseCode.SUCCESS
    assert cluster.read(0) == [b"late"]


def test_who_believed_in_too_new_a_generation_asks_again() -> None:
    """The topic was deleted and made anew: its generations began again, and nobody waits for the old ones."""
    cluster = a_cluster()
    queue = MessageQueue(TOPIC, "__syslo__global__", 0)
    cluster.components["b"].view.record_leader(queue, Leader("a", generation=9))

    answers = send_at_once(cluster, "b", 1)

    assert cluster.run(1_000, lambda: all(answers))
    assert offsets(answers) == ["0"]


@pytest.mark.parametrize("ask", [a_send, a_pull])
def test_a_client_that_reads_mappings_is_told_who_leads(ask: Callable[..., Command]) -> None:
    """In the answer, if its request was passed on. Others get what the leader wrote, byte for byte."""
    cluster = a_cluster()
    curious, plain = ask(TOPIC, queue=0), ask(TOPIC, queue=0)
    curious.fields["hf.mapping"] = "1"

    by_way, at_leader = cluster.call("b", curious), cluster.call("a", curious)
    other = cluster.call("b", plain)

    assert (by_way.fields["hf.leader"], by_way.fields["hf.generation"]) == ("a", "0")
    assert "hf.leader" not in {**at_leader.fields, **other.fields}


def test_a_leader_that_has_sealed_a_queue_takes_no_word_of_progress_with_a_pull() -> None:
    """The next leader may have been told already how far groups are; a commit by itself waits for that one."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 3, "a"))
    cluster.pull("a", 0, 0)
    cluster.commit("a", 0, 1)
    seal(cluster)

    answer = cluster.pull("a", 0, 0, sysFlag="5", commitOffset="2")

    assert len(list(decode_records(answer.body))) == 3
    assert cluster.components["a"].offsets.find("consumers", TOPIC, 0) == 1


@pytest.mark.parametrize("asked", ["a", "b", "c"])
def test_a_send_to_a_queue_without_a_leader_is_refused_with_what_to_do(asked: str) -> None:
    """By the broker that led it, by one that passed requests on to it, and by one that never heard of it."""
    cluster = a_cluster("a", "b", "c")
    cluster.run(5_000, cluster.produce(0, 1, "b"))

    cluster.request("a", RequestCode.DELETE_MAPPING, None, topic=TOPIC, queue="0")
    cluster.run(1_000)
    answer = cluster.call(asked, a_send(TOPIC, queue=0, body=b"x"))

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert answer.remark is not None
    assert f"holdfast queue set {TOPIC} 0 --broker" in answer.remark
    assert answer.fields["hf.leader"] == "__syslo__none__"


@pytest.mark.parametrize("asked", ["a", "b", "c"])
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET])
def test_readers_of_a_queue_without_a_leader_are_refused_as_senders_are(asked: str, code: RequestCode) -> None:
    """They learn which queue it is, and what gives it a leader."""
    cluster = a_cluster("a", "b", "c")
    cluster.request("a", RequestCode.DELETE_MAPPING, None, topic=TOPIC, queue="0")
    cluster.run(1_000)

    question = msgspec.structs.replace(a_pull(TOPIC, queue=0), code=code)
    answer = cluster.call(asked, question)

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert answer.remark is not None
    assert f"holdfast queue set {TOPIC} 0 --broker" in answer.remark


def test_a_queue_whose_leader_is_down_is_not_taken_for_one_without_a_leader() -> None:
    """Its leader will be back."""
    cluster = a_cluster()
    cluster.kill("a")

    answer = cluster.call("b", a_send(TOPIC, queue=0, body=b"x"))

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert "hf.leader" not in answer.fields
