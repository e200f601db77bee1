"""What a consumer tells operators about itself."""

import json

from holdfast.client.consume.running_info import (
    DirectOutcome,
    QueueStatus,
    encode_consumer_status,
    encode_direct_result,
    encode_running_info,
)
from holdfast.model.filter import parse_tags
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json

QUEUE = MessageQueue("t", "b", 0)


def test_running_info_has_the_shape_that_tools_read():
    """Queues are keys, in the form that every version reads."""
    body = encode_running_info({"p": "q"}, [parse_tags("t", "*")], {QUEUE: QueueStatus(commit_offset=7)})

    assert b'"mqTable":{{"topic":"t","brokerName":"b","queueId":0}:{' in body
    info = java_json.loads(body)
    assert info["properties"] == {"p": "q"}
    assert [subscription["topic"] for subscription in info["subscriptionSet"]] == ["t"]
    assert set(info["statusTable"]) == {"t"}
    (status,) = info["mqTable"].values()
    assert (status["commitOffset"], status["droped"], status["cachedMsgSizeInMiB"]) == (7, False, 0)


def test_consumer_status_tells_how_far_each_queue_is():
    """Nothing else is asked."""
    assert (
        encode_consumer_status({QUEUE: 7})
        == b'{"messageQueueTable":{{"topic":"t","brokerName":"b","queueId":0}:7},"consumerTable":{}}'
    )


def test_a_direct_result_tells_what_the_listener_did():
    """Success, or what it raised."""
    good = json.loads(encode_direct_result(DirectOutcome.DONE, is_ordered=False, spent_ms=3))
    bad = json.loads(encode_direct_result(DirectOutcome.FAILED, is_ordered=True, remark="ValueError", spent_ms=4))

    assert good == {"order": False, "autoCommit": True, "consumeResult": "CR_SUCCESS", "spentTimeMills": 3}
    assert (bad["consumeResult"], bad["remark"], bad["order"]) == ("CR_THROW_EXCEPTION", "ValueError", True)
