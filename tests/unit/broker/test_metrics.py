"""The numbers of a broker."""

from tests.support.cluster.broker_machine import BrokerHarness, a_pull
from tests.support.inner_batches import a_batch_harness, make_items, put_batch, put_record

from holdfast.broker.metrics import broker_samples
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import INNER_BATCH


def numbers(desk: BrokerHarness) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and the values of its labels."""
    samples = list(broker_samples(desk.options, desk.store, desk.components))
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert len(found) == len(samples), "no sample comes twice"
    return found


def send(desk: BrokerHarness, topic: str, body: bytes) -> None:
    fields = {"a": "g", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    desk.send_bytes(encode_command(Command(code=RequestCode.SEND_MESSAGE_V2, opaque=1, fields=fields, body=body)))


def test_logical_queues_that_take_nothing_are_counted():
    """Somebody waits at them."""
    desk = BrokerHarness()
    mapping = TopicMapping(
        topic="T",
        broker=desk.options.name,
        total=2,
        queues={n: new_logical_queue(n, desk.options.name, n) for n in (0, 1)},
    )
    desk.components.topics.put(TopicConfig(name="T", read_queues=2, write_queues=2))
    desk.components.mappings.change(mapping)
    assert numbers(desk)["broker_static_queues_held",] == 0

    desk.components.relay.suspend_sends("T", [1], "somebody answers")

    assert numbers(desk)["broker_static_queues_held",] == 1


def test_sends_that_were_passed_on_are_counted():
    """Somebody's clients have not heard of a move."""
    desk = BrokerHarness()
    assert numbers(desk)["broker_relayed_sends",] == 0

    desk.components.relay.relayed_sends += 3

    assert numbers(desk)["broker_relayed_sends",] == 3


def test_what_is_sent_is_counted_in_all_and_by_topic():
    """Two messages, one topic."""
    desk = BrokerHarness()
    before = numbers(desk)
    assert before["broker_puts",] == 0

    send(desk, "orders", b"one")
    send(desk, "orders", b"two")

    after = numbers(desk)
    assert after["broker_puts",] == 2
    assert after["broker_topic_puts", "orders"] == 2
    assert after["broker_log_end_position",] > before["broker_log_end_position",]


def test_what_a_crash_would_have_read_again_can_be_watched():
    """All that was sent since the checkpoint."""
    desk = BrokerHarness()
    assert numbers(desk)["broker_checkpoint_behind_bytes",] == 0

    send(desk, "orders", b"one")

    after = numbers(desk)
    assert after["broker_checkpoint_behind_bytes",] == after["broker_log_end_position",]


def test_what_connections_hold_can_be_watched():
    """The reading that makes the broker refuse is one that an operator sees coming."""
    desk = BrokerHarness()

    desk.components.pressure.held = 4096

    assert numbers(desk)["broker_held_bytes",] == 4096


def test_lag_is_what_a_group_has_not_consumed():
    """By group and topic: the end of its queues less what it committed."""
    desk = BrokerHarness()
    for _ in range(3):
        send(desk, "orders", b"x")

    desk.components.offsets.commit("billing", "orders", 0, 1)

    assert numbers(desk)["broker_group_lag", "orders", "billing"] == 2


def test_lag_counts_the_messages_of_batches():
    """Also when a group is done with a part of one."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 10))
    put_batch(desk, make_items(10, 5))

    desk.components.offsets.commit("billing", "T", 0, 3)

    assert numbers(desk)["broker_group_lag", "T", "billing"] == 12


def test_batches_that_were_opened_are_counted_by_reason():
    """Everybody who opens them himself costs nothing here, which can be seen."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 10, size=100), codec=Codec.ZSTD)
    put_record(desk, b"nonsense", b"INNER_NUM\x012\x02", INNER_BATCH)

    desk.call(a_pull(opensBatches="true"))
    untouched = numbers(desk)
    desk.call(a_pull())
    found = numbers(desk)

    names = ("broker_batches_opened", "broker_inflations", "broker_batches_unreadable")
    assert [untouched[name, reason] for name in names for reason in ("split", "retry", "query")] == [0] * 9
    assert [found[name, "split"] for name in names] == [1, 1, 1]


def test_a_topic_that_is_not_hosted_has_no_lag():
    """Offsets may outlive it."""
    desk = BrokerHarness()
    desk.components.offsets.commit("billing", "gone", 0, 7)

    assert ("broker_group_lag", "gone", "billing") not in numbers(desk)
