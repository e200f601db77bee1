import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.inner_batches import a_batch_harness, make_items, put_batch, put_record

from holdfast.broker.deferred.scheduled_messages import TIMER
from holdfast.broker.messages.batch_cache import UnpackReason
from holdfast.model.group import GroupConfig
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import INNER_BATCH
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord, decode_records

MINUTE_MS = 60_000


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def send_one(desk: BrokerHarness, **fields: str) -> int:
    (answer,) = desk.call(a_send(**fields))
    return parse_message_id(answer.fields["msgId"]).position


def give_back(desk: BrokerHarness, position: int, **fields: object) -> Command:
    (answer,) = desk.call(
        a_request(RequestCode.CONSUMER_SEND_MSG_BACK, **({"offset": position, "group": "g", "delayLevel": 0} | fields))
    )
    return answer


def records(desk: BrokerHarness, topic: str) -> list[StoredRecord]:
    if desk.components.topics.find(topic) is None:
        return []
    (answer,) = desk.call(a_pull(topic))
    return list(decode_records(answer.body))


def properties(record: StoredRecord) -> dict[str, str]:
    return parse_properties(record.properties.decode())


def test_a_returned_message_comes_again_after_its_delay(desk: BrokerHarness) -> None:
    """The first time after ten seconds (level 3), from the group's retry topic, with everything it had."""
    position = send_one(desk, body=b"payload", h="5")  # type: ignore[arg-type]

    assert give_back(desk, position, originTopic="T").code == 0

    desk.pass_time(9_000, TIMER)
    assert records(desk, "%RETRY%g") == []
    desk.pass_time(1_000, TIMER)
    (again,) = records(desk, "%RETRY%g")
    assert (bytes(again.body), again.flag, again.reconsume_times, again.born_ms) == (b"payload", 5, 1, 1699999999999)
    assert properties(again)["RETRY_TOPIC"] == "T"
    assert properties(again)["TAGS"] == "TagA"
    assert parse_message_id(properties(again)["ORIGIN_MESSAGE_ID"]).position == position


def test_each_return_waits_longer(desk: BrokerHarness) -> None:
    """Level 3 + the number of earlier returns; topic and origin stay those of the first."""
    position = send_one(desk)
    give_back(desk, position)
    desk.pass_time(10_000, TIMER)
    (first,) = records(desk, "%RETRY%g")

    give_back(desk, first.position)

    desk.pass_time(29_000, TIMER)
    assert len(records(desk, "%RETRY%g")) == 1
    desk.pass_time(1_000, TIMER)
    _, second = records(desk, "%RETRY%g")
    assert second.reconsume_times == 2
    assert properties(second)["RETRY_TOPIC"] == "T"
    assert parse_message_id(properties(second)["ORIGIN_MESSAGE_ID"]).position == position


def test_a_client_may_choose_the_delay(desk: BrokerHarness) -> None:
    """Level 1 is a second."""
    give_back(desk, send_one(desk), delayLevel=1)

    desk.pass_time(1_000, TIMER)

    assert len(records(desk, "%RETRY%g")) == 1


@pytest.mark.parametrize(
    "fields",
    [{"maxReconsumeTimes": 0}, {"delayLevel": -1}],
    ids=["returned too often", "the consumer gave up"],
)
def test_a_hopeless_message_goes_to_the_dead_letters(desk: BrokerHarness, fields: dict[str, object]) -> None:
    """At once and for good; the topic is made for it."""
    give_back(desk, send_one(desk, body=b"dead"), **fields)  # type: ignore[arg-type]

    (dead,) = records(desk, "%DLQ%g")
    assert bytes(dead.body) == b"dead"
    assert properties(dead)["RETRY_TOPIC"] == "T"
    desk.pass_time(MINUTE_MS, TIMER)
    assert records(desk, "%RETRY%g") == []


def test_the_groups_own_maximum_counts_for_clients_that_name_none(desk: BrokerHarness) -> None:
    """Very old clients send a number that they do not mean."""
    desk.components.groups.put(GroupConfig(group_name="g", retry_max_times=0))
    old = a_request(RequestCode.CONSUMER_SEND_MSG_BACK, version=100, group="g", maxReconsumeTimes=9)

    old.fields["offset"] = str(send_one(desk))
    desk.call(old)

    assert len(records(desk, "%DLQ%g")) == 1


def test_a_group_without_retry_queues_drops_what_is_returned(desk: BrokerHarness) -> None:
    """The client is told that all is well, as upstream does."""
    desk.components.groups.put(GroupConfig(group_name="g", retry_queue_nums=0))
    written = desk.store.written

    position = send_one(desk)
    before = desk.store.written
    answer = give_back(desk, position)

    assert answer.code == 0
    assert desk.store.written == before > written


def test_a_message_of_a_transaction_is_delayed_like_any_other(desk: BrokerHarness) -> None:
    """Once delivered it is an ordinary message."""
    position = send_one(desk, f="8")

    give_back(desk, position, delayLevel=1)

    assert records(desk, "%RETRY%g") == []
    desk.pass_time(1_000, TIMER)
    (again,) = records(desk, "%RETRY%g")
    assert again.sys_flag & 0xC == 0


@pytest.mark.parametrize("position", [10**9, -5, 17])
def test_a_position_where_no_message_begins_is_refused(desk: BrokerHarness, position: int) -> None:
    """Beyond the log, before it, and in the middle of a record."""
    send_one(desk)

    answer = give_back(desk, position)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(position) in (answer.remark or "")


def test_where_groups_are_not_created_a_stranger_is_refused() -> None:
    """Its retry topic would belong to nobody."""
    desk = BrokerHarness(auto_create_groups=False)
    desk.make_topic("T")

    assert give_back(desk, send_one(desk)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_under_sync_flush_the_answer_waits_for_the_disk() -> None:
    """The consumer forgets a message that it has given back."""
    desk = BrokerHarness(flush="sync")
    desk.make_topic("T")
    desk.call(a_send())
    desk.sync()

    assert desk.call(a_request(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="g", delayLevel=0)) == []

    desk.sync()
    assert [answer.code for answer in desk.answers[1]] == [0]


@pytest.mark.parametrize("codec", [None, *Codec])
def test_of_a_batch_one_message_is_returned(codec: Codec | None) -> None:
    """With its own content; the others are not tried again, and the batch is opened once for all that are."""
    desk = a_batch_harness()
    position = put_batch(desk, make_items(0, 10, tags=("a", "b"), size=200), codec=codec)

    assert give_back(desk, position, originMsgId="U7", originTopic="T").code == 0
    assert give_back(desk, position, originMsgId="U3").code == 0

    desk.pass_time(10_000, TIMER)
    again = records(desk, "%RETRY%g")
    assert sorted((bytes(record.body), record.flag, record.sys_flag) for record in again) == [
        (b"%0200d" % 3, 3, 0),
        (b"%0200d" % 7, 0, 0),
    ]
    assert {record.reconsume_times for record in again} == {1}
    seven = next(properties(record) for record in again if record.flag == 0)
    assert (seven["UNIQ_KEY"], seven["TAGS"], seven["KEYS"]) == ("U7", "b", "k7")
    assert (seven["RETRY_TOPIC"], seven["ORIGIN_MESSAGE_ID"]) == ("T", "U7")
    assert "INNER_NUM" not in seven
    assert desk.components.batch_cache.unpacked[UnpackReason.RETRY] == 1
    assert desk.components.batch_cache.inflated[UnpackReason.RETRY] == (codec is not None)


def test_a_message_of_a_batch_that_fails_too_often_is_a_dead_letter() -> None:
    """Alone: it is an ordinary message from the first return on."""
    desk = a_batch_harness()
    position = put_batch(desk, make_items(0, 3))
    give_back(desk, position, originMsgId="U1")
    desk.pass_time(10_000, TIMER)
    (again,) = records(desk, "%RETRY%g")

    assert give_back(desk, again.position, originMsgId="U1", maxReconsumeTimes=1).code == 0

    (dead,) = records(desk, "%DLQ%g")
    assert (bytes(dead.body), properties(dead)["ORIGIN_MESSAGE_ID"]) == (b"001", "U1")


@pytest.mark.parametrize("message_id", [None, "", "BU0", "U99", "0A0000010000138900000000000000"])
def test_a_batch_is_not_returned_without_a_word_which_message_is_meant(message_id: str | None) -> None:
    """All of it would be the wrong ones; the answer tells what is missing."""
    desk = a_batch_harness()
    position = put_batch(desk, make_items(0, 3))

    answer = give_back(desk, position, **({} if message_id is None else {"originMsgId": message_id}))

    assert (answer.code, records(desk, "%RETRY%g")) == (ResponseCode.INVALID_PARAMETER, [])
    assert "UNIQ_KEY" in (answer.remark or "")


def test_a_message_of_a_batch_that_cannot_be_opened_is_refused() -> None:
    """Nobody can have got it from there."""
    desk = a_batch_harness()
    position = put_record(desk, b"nonsense", b"INNER_NUM\x012\x02", INNER_BATCH)

    assert give_back(desk, position, originMsgId="U0").code == ResponseCode.INVALID_PARAMETER
    assert desk.components.batch_cache.unreadable[UnpackReason.RETRY] == 1
