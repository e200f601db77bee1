import pytest
from tests.support.broker_clients import a_heartbeat, a_request, a_subscription, connect_client
from tests.support.cluster import broker_machines
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.broker_machines import StaticBrokers
from tests.support.cold_reads import forbid_index_reads
from tests.support.inner_batches import a_batch_harness, make_items, put_batch, put_record

from holdfast.broker.flow import scheduler
from holdfast.broker.messages.batch_cache import UnpackReason
from holdfast.machine.effects import Effect, Log, ReadLog
from holdfast.machine.events import DiskFault, Event
from holdfast.model.java_hash import java_hash
from holdfast.model.topic import BATCH_QUEUE
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import INNER_BATCH
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.record import decode_records


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def send(desk: BrokerHarness, number: int, key: str = "k", queue: int = 0) -> int:
    properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01{key} other\x02TAGS\x01TagA\x02"
    (answer,) = desk.call(a_send(queue=queue, body=b"%d" % number, i=properties))
    return parse_message_id(answer.fields["msgId"]).position


def by_key(desk: BrokerHarness, key: str, **fields: object) -> Command:
    asked = {"topic": "T", "key": key, "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    (answer,) = desk.call(a_request(RequestCode.QUERY_MESSAGE, **(asked | fields)))
    return answer


def bodies(answer: Command) -> list[bytes]:
    return [bytes(record.body) for record in decode_records(answer.body)]


def test_messages_are_found_by_their_keys(desk: BrokerHarness) -> None:
    """By any of them, newest first; the answer says how far the index reaches."""
    send(desk, 1, "a")
    send(desk, 2, "b")
    send(desk, 3, "a")

    answer = by_key(desk, "a")

    assert bodies(answer) == [b"3", b"1"]
    assert answer.fields.keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    assert bodies(by_key(desk, "U2", _UNIQUE_KEY_QUERY="true")) == [b"2"]
    assert len(bodies(by_key(desk, "other", maxNum=2))) == 2


def test_a_key_that_nobody_has_is_not_found(desk: BrokerHarness) -> None:
    """With the index's reach all the same: clients read it."""
    send(desk, 1)

    answer = by_key(desk, "nobody")

    assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
    assert "indexLastUpdateTimestamp" in answer.fields


def test_a_message_is_shown_by_its_position(desk: BrokerHarness) -> None:
    """Exactly that one."""
    send(desk, 1)
    position = send(desk, 2)

    (answer,) = desk.call(a_request(RequestCode.VIEW_MESSAGE_BY_ID, offset=position))

    assert bodies(answer) == [b"2"]


@pytest.mark.parametrize("position", [-1, 3, 10**12])
def test_where_no_message_begins_none_is_shown(desk: BrokerHarness, position: int) -> None:
    """The client goes on to look for a unique key."""
    send(desk, 1)

    (answer,) = desk.call(a_request(RequestCode.VIEW_MESSAGE_BY_ID, offset=position))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {position}"


def test_the_ends_of_a_queue_are_told(desk: BrokerHarness) -> None:
    """A queue without messages, and one that does not exist, end where they begin."""
    start_ms = desk.now_ms
    send(desk, 1)
    desk.now_ms += 5
    send(desk, 2)
    codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)

    full = desk.call(*(a_request(code, topic="T", queueId=0) for code in codes))
    empty = desk.call(*(a_request(code, topic="T", queueId=3) for code in codes))
    nowhere = desk.call(*(a_request(code, topic="none", queueId=0) for code in codes))
    first, never = desk.call(
        *(a_request(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="T", queueId=queue) for queue in (0, 3))
    )

    assert [answer.fields["offset"] for answer in full] == ["0", "2"]
    assert [answer.fields["offset"] for answer in empty + nowhere] == ["0"] * 4
    assert (first.fields["timestamp"], never.fields["timestamp"]) == (str(start_ms), "-1")


@pytest.mark.parametrize(
    ("after_ms", "boundary", "offset"),
    [(-1, "LOWER", 0), (0, "LOWER", 0), (5, "LOWER", 1), (10, "LOWER", 1), (11, "LOWER", 3), (10, "upper", 2)],
)
def test_offsets_are_found_by_time(desk: BrokerHarness, after_ms: int, boundary: str, offset: int) -> None:
    """The first at or after a time, or the last at or before it."""
    start_ms = desk.now_ms
    send(desk, 1)
    desk.now_ms += 10
    send(desk, 2)
    send(desk, 3)

    (answer,) = desk.call(
        a_request(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            topic="T",
            queueId=0,
            timestamp=start_ms + after_ms,
            boundaryType=boundary,
        )
    )

    assert answer.fields["offset"] == str(offset)


def test_index_entries_are_shown(desk: BrokerHarness) -> None:
    """With what the group that asks subscribes to."""
    connect_client(desk, 2, a_heartbeat("c", consumer_group="g", topics=(a_subscription("T"),)))
    positions = [send(desk, number) for number in range(3)]

    (answer,) = desk.call(
        a_request(RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=1, count=5, consumerGroup="g")
    )

    body = java_json.loads(answer.body)
    assert [entry["physicOffset"] for entry in body["queueData"]] == positions[1:]
    assert {entry["tagsCode"] for entry in body["queueData"]} == {java_hash("TagA")}
    assert (body["minQueueIndex"], body["maxQueueIndex"], body["subscriptionData"]["topic"]) == (0, 3, "T")


def test_entries_of_a_queue_that_does_not_exist_are_an_error(desk: BrokerHarness) -> None:
    """Upstream's words."""
    (answer,) = desk.call(a_request(RequestCode.QUERY_CONSUME_QUEUE, topic="none", queueId=4))

    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "4@none is not exist!")


def reopened(desk: BrokerHarness) -> BrokerHarness:
    """Return the broker after an orderly end and a new start: nothing is in memory any more."""
    desk.store.close(desk.now_ms)
    again = BrokerHarness(disk=desk.disk)
    again.make_topic("T")
    return again


def forbid_cold_reads(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every read fail that happens while the broker handles an event, but of records that were read before."""
    forbid_index_reads(desk, monkeypatch)
    handle, view = desk.broker.handle, desk.store.view
    warm: set[tuple[str, int]] = set()

    def note_warm(event: Event) -> list[Effect]:
        effects = handle(event)
        warm.update((effect.file.path, effect.start) for effect in effects if isinstance(effect, ReadLog))
        return effects

    def view_warm(position: int, size: int) -> memoryview | None:
        assert ("commitlog/00000000000000000000", position) in warm, f"the record at {position} is read on the loop"
        return view(position, size)

    monkeypatch.setattr(desk.broker, "handle", note_warm)
    monkeypatch.setattr(desk.store, "view", view_warm)


QUERIES = [
    a_request(RequestCode.QUERY_MESSAGE, topic="T", key="k2", maxNum=10, beginTimestamp=0, endTimestamp=2**63 - 1),
    a_request(RequestCode.VIEW_MESSAGE_BY_ID, offset=0),
    a_request(RequestCode.VIEW_MESSAGE_BY_ID, offset=3),
    a_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="T", queueId=0, timestamp=1_700_000_000_100),
    a_request(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="T", queueId=0),
    a_request(RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=1, count=5, consumerGroup="g"),
    a_request(RequestCode.GET_TOPIC_STATS_INFO, topic="T"),
    a_request(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="T"),
    a_request(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"),
    a_request(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="g"),
    a_request(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="g", timestamp=1_700_000_000_100, isForce="true"
    ),
    a_request(RequestCode.GET_BROKER_RUNTIME_INFO),
    a_pull("T", offset=3),
    a_pull("T", offset=3, subscription="TagA || TagB"),
    a_pull("T", offset=3, subscription="TagX"),
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query.code))
def test_no_query_makes_the_loop_wait_for_the_disk(
    desk: BrokerHarness, query: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may have gone out of memory is read elsewhere; the answer is the same as before."""
    desk.components.groups.ensure("g")
    for number in range(20):
        send(desk, number, f"k{number % 4}")
        desk.now_ms += 10
    desk.components.offsets.commit("g", "T", 0, 7)
    desk.make_topic("last")
    desk.call(a_send("last"))  # A start looks at the last record, which is in memory from then on.
    desk.pass_time(10_000, "housekeep")
    again = reopened(desk)
    again.now_ms = desk.now_ms
    again.components.groups.ensure("g")
    again.components.offsets.commit("g", "T", 0, 7)
    (expected,) = desk.call(query)
    forbid_cold_reads(again, monkeypatch)

    (answer,) = again.call(query)

    assert any(isinstance(effect, ReadLog) for effect in again.effects)
    assert (answer.code, answer.remark, answer.fields) == (expected.code, expected.remark, expected.fields)
    if query.code != RequestCode.GET_BROKER_RUNTIME_INFO:
        assert answer.body == expected.body
    assert not [effect for effect in again.effects if isinstance(effect, Log) and effect.level == "error"]


def test_a_long_query_lets_others_have_a_turn(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where everything is in memory: now and then it waits as if it were not."""
    for number in range(20):
        send(desk, number)
    quick = by_key(desk, "k")
    assert not any(isinstance(effect, ReadLog) for effect in desk.effects)
    monkeypatch.setattr(scheduler, "_HOT_READS_MAX", 8)

    slow = by_key(desk, "k")

    assert sum(isinstance(effect, ReadLog) for effect in desk.effects) in range(3, 8)
    assert bodies(slow) == bodies(quick)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query.code))
def test_a_query_whose_cold_read_fails_is_refused(
    desk: BrokerHarness, query: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason, at once; nobody waits for bytes that will not come."""
    desk.components.groups.ensure("g")
    for number in range(20):
        send(desk, number, f"k{number % 4}")
    desk.make_topic("last")
    desk.call(a_send("last"))
    desk.pass_time(10_000, "housekeep")
    again = reopened(desk)
    again.components.groups.ensure("g")
    again.components.offsets.commit("g", "T", 0, 7)
    monkeypatch.setattr(again, "_read", lambda effect: DiskFault("a bad sector", again.now_ms, effect.token))

    (answer,) = again.call(query)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "a bad sector" in (answer.remark or "")
    assert answer.opaque == query.opaque


@pytest.fixture
def desks() -> StaticBrokers:
    """Brokers a, b and c, with one message of the same key on each, stored one after the other."""
    desks = StaticBrokers("a", "b", "c")
    desks.create("a", "b", "c")
    for number, name in enumerate("abc"):
        desks[name].now_ms += number
        properties = f"UNIQ_KEY\x01U{name}\x02KEYS\x01shared\x02"
        desks[name].call(a_send(broker_machines.TOPIC, queue=number, body=name.encode(), i=properties))
    return desks


def by_key_at(desks: StaticBrokers, name: str, *, version: int = 433, **fields: object) -> list[bytes]:
    asked = {"topic": broker_machines.TOPIC, "key": "shared", "maxNum": 10}
    query = a_request(RequestCode.QUERY_MESSAGE, **(asked | fields))
    query.language, query.version = "JAVA", version
    (answer,) = desks[name].call(query)
    return bodies(answer) if answer.code == 0 else []


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_clients_that_know_one_broker_find_what_all_hold(desks: StaticBrokers, name: str) -> None:
    """The newest first, and no more than they asked for."""
    assert by_key_at(desks, name, version=399) == [b"c", b"b", b"a"]
    assert by_key_at(desks, name, version=399, maxNum=2) == [b"c", b"b"]
    assert by_key_at(desks, name, version=399, key="Ub") == [b"b"]
    assert by_key_at(desks, name, version=399, key="nobody") == []


def test_clients_that_read_mappings_find_what_one_broker_holds(desks: StaticBrokers) -> None:
    """They ask every broker: what all hold would come to them several times."""
    assert by_key_at(desks, "b") == [b"b"]
    assert by_key_at(desks, "b", version=399, **{"hf.mapping": "1"}) == [b"b"]


def test_a_broker_that_is_down_hides_only_its_own_messages(desks: StaticBrokers) -> None:
    """What the others hold is found."""
    desks.kill("b")

    assert by_key_at(desks, "a", version=399) == [b"c", b"a"]


@pytest.mark.parametrize("codec", [None, Codec.ZSTD])
def test_messages_of_a_batch_are_found_by_their_keys(codec: Codec | None) -> None:
    """Those that have the key, each alone, in its own place; by the id of the batch, all of them."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 10, size=100), codec=codec)
    put_batch(desk, make_items(10, 3))
    put_record(desk, b"single", b"KEYS\x01k7 other\x02UNIQ_KEY\x01U99\x02")

    seventh, all_of_one = by_key(desk, "k7"), by_key(desk, "BU10", _UNIQUE_KEY_QUERY="true")

    found = [(record.offset, bytes(record.body)[-3:], record.sys_flag) for record in decode_records(seventh.body)]
    assert found == [(13, b"gle", 0), (7, b"007", 0)]
    assert bodies(all_of_one) == [b"010", b"011", b"012"]
    assert desk.components.batch_cache.unpacked[UnpackReason.QUERY] == 2
    assert desk.components.batch_cache.inflated[UnpackReason.QUERY] == (codec is not None)


def test_a_batch_that_says_keys_which_its_messages_do_not_have_is_not_shown() -> None:
    """And one that cannot be opened is nobody's answer; the others are."""
    desk = a_batch_harness()
    put_record(desk, b"nonsense", b"KEYS\x01k1\x02INNER_NUM\x012\x02", INNER_BATCH)
    put_batch(desk, make_items(0, 3))

    assert bodies(by_key(desk, "k1")) == [b"001"]


def test_a_batch_is_shown_by_its_position() -> None:
    """Message by message, or as it is to those who open it."""
    desk = a_batch_harness()
    position = put_batch(desk, make_items(0, 3), codec=Codec.LZ4)
    unreadable = put_record(desk, b"nonsense", b"INNER_NUM\x012\x02", INNER_BATCH)

    split, whole, refused = (
        desk.call(a_request(RequestCode.VIEW_MESSAGE_BY_ID, **fields))[0]
        for fields in (
            {"offset": position},
            {"offset": position, "opensBatches": "true"},
            {"offset": unreadable},
        )
    )

    assert bodies(split) == [b"000", b"001", b"002"]
    (record,) = decode_records(whole.body)
    assert record.sys_flag & INNER_BATCH == INNER_BATCH
    assert refused.code == ResponseCode.SYSTEM_ERROR


def test_messages_of_batches_of_a_static_topic_are_shown_with_logical_numbers() -> None:
    """As every reader of the topic knows them."""
    desks = StaticBrokers("a", "b")
    for desk in desks.brokers.values():
        desk.store.set_queue_type(broker_machines.TOPIC, BATCH_QUEUE)
    desks.create("b", "a")
    put_batch(desks["b"], make_items(0, 3))
    desks.move(0, "a")
    leader = desks.queue().leader
    put_batch(desks["a"], make_items(3, 3), queue=leader.queue_id)

    (answer,) = decode_records(by_key(desks["a"], "k4").body)

    assert (answer.queue_id, answer.offset, bytes(answer.body)) == (0, 4, b"004")
    assert leader.queue_id != 0
