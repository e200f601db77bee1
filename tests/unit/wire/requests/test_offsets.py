"""Offsets, lookups, locks: headers and bodies as peers write them."""

import msgspec
import pytest

from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json
from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.requests import offsets

HEADERS: list[tuple[msgspec.Struct, dict[str, str]]] = [
    (
        offsets.QueryOffsetFields(consumer_group="g", topic="t", queue_id=1, set_zero_if_not_found=False),
        {"consumerGroup": "g", "topic": "t", "queueId": "1", "setZeroIfNotFound": "false"},
    ),
    (
        offsets.UpdateOffsetFields(consumer_group="g", topic="t", queue_id=1, commit_offset=5),
        {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": "5"},
    ),
    (
        offsets.SearchOffsetFields(topic="t", queue_id=1, timestamp=5, boundary_type="UPPER"),
        {"topic": "t", "queueId": "1", "timestamp": "5", "boundaryType": "UPPER"},
    ),
    (
        offsets.QueueFields(topic="t", queue_id=1, committed=False),
        {"topic": "t", "queueId": "1", "committed": "false"},
    ),
    (
        offsets.QueryMessageFields(topic="t", key="k", max_num=3, begin_timestamp=1, end_timestamp=2, unique_key=True),
        {
            "topic": "t",
            "key": "k",
            "maxNum": "3",
            "beginTimestamp": "1",
            "endTimestamp": "2",
            "_UNIQUE_KEY_QUERY": "true",
        },
    ),
    (offsets.ViewMessageFields(offset=7), {"offset": "7"}),
    (
        offsets.SendBackFields(offset=7, group="g", delay_level=3, origin_msg_id="m", max_reconsume_times=16),
        {
            "offset": "7",
            "group": "g",
            "delayLevel": "3",
            "originMsgId": "m",
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        },
    ),
    (
        offsets.EndTransactionFields(
            producer_group="g", tran_state_table_offset=1, commit_log_offset=2, commit_or_rollback=8, msg_id="m"
        ),
        {
            "producerGroup": "g",
            "tranStateTableOffset": "1",
            "commitLogOffset": "2",
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": "m",
        },
    ),
    (
        offsets.CheckTransactionFields(tran_state_table_offset=1, commit_log_offset=2, broker_name="b"),
        {"tranStateTableOffset": "1", "commitLogOffset": "2", "bname": "b"},
    ),
    (
        offsets.QueryMessageAnswer(indexLastUpdateTimestamp=1, indexLastUpdatePhyoffset=2),
        {"indexLastUpdateTimestamp": "1", "indexLastUpdatePhyoffset": "2"},
    ),
]


@pytest.mark.parametrize(("header", "fields"), HEADERS, ids=[type(header).__name__ for header, _ in HEADERS])
def test_a_header_is_written_under_upstreams_names_and_read_back(header: msgspec.Struct, fields: dict[str, str]):
    """In both directions, whole."""
    assert to_fields(header) == fields
    assert from_fields(type(header), fields) == header


def test_what_older_clients_leave_out_has_upstreams_default():
    """Only what identifies the queue is needed."""
    search = from_fields(offsets.SearchOffsetFields, {"topic": "t", "queueId": "1", "timestamp": "5"})
    query = from_fields(offsets.QueryOffsetFields, {"consumerGroup": "g", "topic": "t", "queueId": "1"})
    key = from_fields(offsets.QueryMessageFields, {"topic": "t", "key": "k"})

    assert search.boundary_type == "LOWER"
    assert query.set_zero_if_not_found is None
    assert (key.max_num, key.unique_key) == (32, False)
    with pytest.raises(BadField, match="commitOffset"):
        from_fields(offsets.UpdateOffsetFields, {"consumerGroup": "g", "topic": "t", "queueId": "1"})


def test_locks_name_queues_as_the_client_does():
    """The queues that come back must be equal to those that were asked for."""
    queue = b'{"brokerName":"b","queueId":0,"topic":"t"}'
    body = b'{"clientId":"c","consumerGroup":"g","mqSet":[%b],"onlyThisBroker":false}' % queue

    found = java_json.decode(body, offsets.LockBody)
    answer = java_json.encode(offsets.LockAnswer(lockOKMQSet=found.mq_set))

    assert found.mq_set == [MessageQueue("t", "b", 0)]
    assert java_json.loads(answer) == {"lockOKMQSet": [{"brokerName": "b", "queueId": 0, "topic": "t"}]}
    assert java_json.decode(b'{"clientId":"c","consumerGroup":"g"}', offsets.LockBody).mq_set == []


@pytest.mark.parametrize(("text", "offset"), [("-1", None), ("0", 0), ("7", 7)])
def test_a_group_that_never_committed_has_no_offset(text: str, offset: int | None):
    """Some brokers send -1 for it, which is no offset."""
    assert from_fields(offsets.KnownOffsetAnswer, {"offset": text}).offset == offset
