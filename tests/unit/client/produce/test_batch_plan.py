"""Many messages into few requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.produce.batch_plan import BatchPlan, encode_messages, item_results, pack_inner_batch
from holdfast.model.message import Message, SendResult, SendStatus
from holdfast.model.queue import MessageQueue
from holdfast.wire.records.batch import ITEM_OVERHEAD, split_items
from holdfast.wire.records.inner_batch import COUNT_MAX
from holdfast.wire.records.properties import parse_properties


def spans(sizes: list[int], alone: list[int], bytes_max: int) -> list[tuple[int, int, bool]]:
    """Return how messages are cut that need *sizes* bytes in a batch; those in *alone* are delayed."""
    messages = [Message("t", bytes(size), delay_level=int(at in alone)) for at, size in enumerate(sizes)]
    cuts = BatchPlan(id_size=-ITEM_OVERHEAD, bytes_max=bytes_max).cut(messages, [b""] * len(messages))
    return [(cut.start, cut.stop, cut.is_batch) for cut in cuts]


def test_what_fits_travels_together():
    """To the last byte."""
    assert spans([400] * 5, [], 2000) == [(0, 5, True)]


def test_a_group_ends_before_it_gets_too_large():
    """The next one goes on."""
    assert spans([400] * 5, [], 1199) == [(0, 2, True), (2, 4, True), (4, 5, True)]


def test_what_cannot_be_in_a_batch_travels_alone_and_keeps_its_place():
    """What comes after it does not travel with what came before; what is too large is alone, too."""
    assert spans([100, 100, 100, 5000], [1], 4000) == [
        (0, 1, True),
        (1, 2, False),
        (2, 3, True),
        (3, 4, False),
    ]


def test_a_batch_holds_no_more_than_an_index_can_count():
    """However small they are."""
    assert spans([1] * (COUNT_MAX + 1), [], 10**6) == [(0, COUNT_MAX, True), (COUNT_MAX, COUNT_MAX + 1, True)]


def test_nothing_makes_no_request():
    """Nor does it fail."""
    assert spans([], [], 1000) == []


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=40))
def test_everything_travels_once_and_in_order(items: list[tuple[int, bool]]):
    """No batch is too large or holds what must be alone, and none could have taken the next message, too."""
    sizes = [size for size, _ in items]
    alone = [number for number, (_, is_alone) in enumerate(items) if is_alone]

    groups = spans(sizes, alone, 2000)

    assert [number for start, stop, _ in groups for number in range(start, stop)] == list(range(len(items)))
    for start, stop, is_batch in groups:
        assert is_batch == (start not in alone and sum(sizes[start:stop]) <= 2000)
        assert is_batch or stop - start == 1
        if is_batch and stop < len(items) and stop not in alone:
            assert sum(sizes[start : stop + 1]) > 2000


def test_delayed_and_retried_messages_are_never_batched():
    """Brokers refuse them."""
    messages = [Message("t", b"x"), Message("t", b"x", delay_level=1)]

    retried = [Message("%RETRY%g", b"x")] * 2
    plan = BatchPlan(id_size=40, bytes_max=1000)
    assert [cut.is_batch for cut in plan.cut(messages, [b"", b""])] == [True, False]
    assert [cut.is_batch for cut in plan.cut(retried, [b"", b""])] == [False, False]
    assert [plan.is_alone(message, 1000) for message in (*messages, retried[0])] == [False, True, True]


def test_a_list_and_single_messages_follow_one_plan():
    """A message of a list is alone exactly if it would be alone when it came by itself."""
    plan = BatchPlan(id_size=40, bytes_max=200, messages_max=2)
    text = b"TAGS\x01x\x02"
    largest = plan.bytes_max - plan.size_of(Message("t", b""), text)
    messages = [Message("t", bytes(size), tags="x") for size in (10, largest, largest + 1, 100, 10, 5, 5, 5)]
    texts = [text] * len(messages)

    cuts = [*plan.cut(messages, texts)]

    alone = {
        index
        for index, (message, text) in enumerate(zip(messages, texts, strict=True))
        if plan.is_alone(message, plan.size_of(message, text))
    }
    assert alone == {cut.start for cut in cuts if not cut.is_batch}
    for cut in cuts:
        if cut.is_batch:
            assert cut.stop - cut.start <= plan.messages_max
            part = range(cut.start, cut.stop)
            assert sum(plan.size_of(messages[at], texts[at]) for at in part) <= plan.bytes_max


@pytest.mark.parametrize("texts", [[b"", b"", b""], [b"", b"TAGS\x01red\x02", b""]])
def test_each_item_has_its_id_before_the_rest(texts: list[bytes]):
    """Whether there is a rest or not; flags and bodies are the messages' own."""
    messages = [Message("t", b"one"), Message("t", b"two", flag=7), Message("t", b"three")]

    items = split_items(encode_messages(messages, ["A1", "A2", "A3"], texts))

    assert [(flag, bytes(body), text) for flag, body, text in items] == [
        (message.flag, message.body, b"UNIQ_KEY\x01A%d\x02%b" % (number, text))
        for number, (message, text) in enumerate(zip(messages, texts, strict=True), 1)
    ]


@pytest.mark.parametrize(("offset_id", "each"), [("A,B", ["A", "B"]), ("WHOLE", ["WHOLE"] * 2), ("", ["", ""])])
def test_places_follow_one_another(offset_id: str, each: list[str]):
    """A batch that a broker kept whole is one record with one id; the offsets differ all the same."""
    queue = MessageQueue("t", "b", 1)
    first = SendResult("B", queue, 7, offset_id, SendStatus.FLUSH_DISK_TIMEOUT)

    assert [*item_results(["1", "2"], first)] == [
        SendResult("1", queue, 7, each[0], SendStatus.FLUSH_DISK_TIMEOUT),
        SendResult("2", queue, 8, each[1], SendStatus.FLUSH_DISK_TIMEOUT),
    ]


def test_every_key_stands_outside_once():
    """Those that decide on the queue, and those that are for searching only."""
    messages = [
        Message("t", b"x", key="a", keys=("c",)),
        Message("t", b"x"),
        Message("t", b"x", key="a", keys=("a", "b")),
    ]

    whole = pack_inner_batch(messages, b"items", "ID", None)

    assert whole is not None
    assert sorted(parse_properties(whole.properties)["KEYS"].split()) == ["a", "b", "c"]
