"""Pull requests, and what goes before the records of an answer."""

import msgspec
import pytest

from holdfast.model.queue import LogicalOffset, LogicalQueueId
from holdfast.wire.frames.command import BINARY, JSON, Command, decode_command, encode_command
from holdfast.wire.frames.fields import BadField
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.records.inner_batch import BatchSupport
from holdfast.wire.requests.pull import (
    PullFields,
    decode_pull,
    prepare_answer,
    prepared_answer_head,
    pull_answer_head,
    pull_header,
)

FIELDS = {
    "consumerGroup": "g",
    "topic": "t",
    "queueId": "1",
    "queueOffset": "5",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "-1",
    "suspendTimeoutMillis": "15000",
    "subscription": "a||b",
    "subVersion": "0",
    "expressionType": "TAG",
    "maxMsgBytes": "262144",
    "bname": "b",
}


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_pull_is_the_same_value_in_both_encodings(serializer: int):
    """The general reader; for JSON the fast one finds the same."""
    data = encode_command(Command(code=11, opaque=9, fields=FIELDS, serializer=serializer))
    (frame,), _ = split_frames(memoryview(data))

    header = pull_header(decode_command(frame))

    assert header.fields == PullFields(
        consumer_group="g",
        topic="t",
        queue_id=1,
        queue_offset=5,
        max_msg_nums=32,
        sys_flag=6,
        commit_offset=-1,
        suspend_timeout_millis=15000,
        subscription="a||b",
        sub_version=0,
        expression_type="TAG",
        max_msg_bytes=262144,
        broker_name="b",
    )
    if serializer == JSON:
        assert decode_pull(frame.header) == header


@pytest.mark.parametrize(
    ("language", "version", "said", "opening"),
    [
        ("JAVA", 413, None, BatchSupport.ALL),
        (0, 513, None, BatchSupport.ALL),
        ("JAVA", 412, None, BatchSupport.NONE),
        ("CPP", 513, None, BatchSupport.NONE),
        (None, 513, None, BatchSupport.NONE),
        ("PYTHON", 0, "true", BatchSupport.REQUESTED),
        ("PYTHON", 0, "all", BatchSupport.ALL),
        ("JAVA", 513, "false", BatchSupport.NONE),
        ("JAVA", 513, "True", BatchSupport.NONE),
    ],
)
def test_whether_a_reader_opens_batches_is_what_it_says_or_known_of_java(
    language: str | int | None, version: int, said: str | None, opening: BatchSupport
):
    """Nobody else gets what it may not understand."""
    fields = FIELDS if said is None else FIELDS | {"opensBatches": said}
    header = msgspec.json.encode(
        {"code": 11, "opaque": 1, "language": language, "version": version, "extFields": fields}
    )

    assert decode_pull(header).batch_support is opening


def test_a_pull_without_its_queue_is_refused():
    """The missing field is named."""
    with pytest.raises(BadField, match="queueId"):
        pull_header(Command(code=11, fields={key: value for key, value in FIELDS.items() if key != "queueId"}))


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize(("code", "remark"), [(0, "FOUND"), (19, "OFFSET_OVERFLOW_ONE"), (21, "OFFSET_TOO_SMALL")])
def test_the_head_of_an_answer_and_its_body_are_one_frame(serializer: int, code: int, remark: str):
    """Whatever the code is, all offsets are there: clients read them without asking."""
    body = b"records"

    head = pull_answer_head(serializer, -7, code, remark, (6, 1, 9), len(body))
    (frame,), taken = split_frames(memoryview(head + body))

    answer = decode_command(frame)
    assert taken == len(head) + len(body)
    assert (answer.code, answer.opaque, answer.remark, answer.body) == (code, -7, remark, body)
    assert answer.is_response
    assert answer.serializer == serializer
    assert answer.fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "6",
        "minOffset": "1",
        "maxOffset": "9",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


@pytest.mark.parametrize(("offset_min", "delta"), [(0, 0), (7, -3), (2**40, 2**40 + 5)])
def test_a_prepared_answer_is_the_same_answer(offset_min: int, delta: int) -> None:
    """Writing ahead what many answers share changes not a byte of them."""
    whole = pull_answer_head(JSON, 9, 0, "FOUND", (offset_min + 40, offset_min, offset_min + 90), 512, delta)

    prepared = prepare_answer(offset_min, delta)

    assert prepared_answer_head(prepared, 9, 0, "FOUND", offset_min + 40, offset_min + 90, 512) == whole


@pytest.mark.parametrize(("sent", "committed"), [(-1, None), (0, 0), (5, 5)])
def test_a_pull_commits_an_offset_or_nothing(sent: int, committed: int | None):
    """Clients send a negative offset if they have consumed nothing yet."""
    queue, offset = LogicalQueueId(0), LogicalOffset(0)
    pull = PullFields(consumer_group="g", topic="t", queue_id=queue, queue_offset=offset, commit_offset=sent)

    assert pull.committed == committed
