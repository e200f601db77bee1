import msgspec
import pytest

from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.requests.forward import AcceptedForward, ForwardFields, ForwardName

FIELDS = ForwardFields(
    source="a",
    stream="level 3",
    position=1 << 40,
    settled=5,
    topic="T",
    queue_id=7,
    properties="UNIQ_KEY\x01k\x02",
    flag=-1,
    sys_flag=1,
    born_ms=1_700_000_000_000,
    reconsume_times=2,
)


def test_a_header_is_read_as_it_was_written():
    """The queue is called as in every other request about a queue, so that it is found by whoever passes it on."""
    fields = to_fields(FIELDS)

    assert (fields["topic"], fields["queueId"]) == ("T", "7")
    assert from_fields(ForwardFields, fields) == FIELDS


@pytest.mark.parametrize("missing", ["source", "stream", "position", "settled", "topic", "queueId"])
def test_a_message_without_a_name_is_refused(missing: str):
    """It could come again, and nobody would know."""
    fields = {name: value for name, value in to_fields(FIELDS).items() if name != missing}

    with pytest.raises(BadField):
        from_fields(ForwardFields, fields)


def test_a_mark_travels_as_json():
    """In the opening of a queue that moves."""
    mark = AcceptedForward(source="a", stream="halves", position=9, topic="T", queue=3)

    assert msgspec.json.decode(msgspec.json.encode(mark), type=AcceptedForward) == mark
    assert isinstance(mark, ForwardName)
