"""Names of forwarded messages: taken once, remembered over restarts, forgotten when they cannot come again."""

import pytest
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.messages.writer import Draft
from holdfast.broker.relay import forward_dedup as module
from holdfast.broker.relay.forward_dedup import ForwardedNames
from holdfast.model.topic import FORWARD_TOPIC
from holdfast.wire.requests.forward import AcceptedForward, ForwardFields, ForwardName


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def names(desk: BrokerHarness) -> ForwardedNames:
    return ForwardedNames(desk.store, desk.components.reply_gate.is_acknowledged, desk.components.turn)


def a_name(position: int, stream: str = "level 1", source: str = "a") -> ForwardName:
    return ForwardName(source=source, stream=stream, position=position)


def note(desk: BrokerHarness, forwarded: ForwardedNames, position: int, *, settled: int = 0, queue: int = 0) -> None:
    """Take a message."""
    draft = Draft(topic="T", queue_id=0, body=b"x", properties={}, born_ms=1, born_host=bytes(8))
    stored = desk.components.writer.append(draft)
    fields = ForwardFields(source="a", stream="level 1", position=position, settled=settled, topic="T", queue_id=queue)
    forwarded.add(fields, stored.position)  # type: ignore[union-attr]


def test_a_name_is_known_once_its_message_was_taken(desk: BrokerHarness) -> None:
    """By broker, stream and position: all of them."""
    forwarded = names(desk)

    note(desk, forwarded, 7)

    assert a_name(7) in forwarded
    assert not any(other in forwarded for other in (a_name(8), a_name(7, "level 2"), a_name(7, source="b")))


def test_names_are_known_after_a_restart(desk: BrokerHarness) -> None:
    """They are in the log, beside their messages."""
    note(desk, names(desk), 7)
    desk.store.close(desk.now_ms)

    assert a_name(7) in names(BrokerHarness(disk=desk.disk))


def test_a_name_without_its_message_counts_for_nothing(desk: BrokerHarness) -> None:
    """When power was lost the one may be gone and the other not: then the message is taken, not missed."""
    forwarded = names(desk)
    fields = ForwardFields(source="a", stream="level 1", position=7, settled=0, topic="T", queue_id=0)
    forwarded.add(fields, 12_345)
    desk.store.close(desk.now_ms)

    assert a_name(7) not in names(BrokerHarness(disk=desk.disk))


def test_records_of_nobody_know_what_are_passed_over(desk: BrokerHarness) -> None:
    """Bytes on disk are never trusted."""
    queue = desk.store.queue(FORWARD_TOPIC, 0)
    desk.store.stage(queue, b"{nonsense", b"", 0, 0, 1, bytes(8), 0, desk.now_ms)
    desk.store.write()
    note(desk, names(desk), 7)
    desk.store.close(desk.now_ms)

    assert a_name(7) in names(BrokerHarness(disk=desk.disk))


def test_what_will_not_come_again_is_forgotten(desk: BrokerHarness) -> None:
    """By the sender's word; otherwise the oldest goes when there are too many."""
    forwarded = names(desk)
    note(desk, forwarded, 7)
    note(desk, forwarded, 8)

    note(desk, forwarded, 9, settled=8)

    assert [a_name(position) in forwarded for position in (7, 8, 9)] == [False, True, True]


def test_memory_is_bounded(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also against senders that settle nothing, or invent streams."""
    monkeypatch.setattr(module, "NAMES_MAX", 3)
    monkeypatch.setattr(module, "STREAMS_MAX", 2)
    forwarded = names(desk)

    for position in range(5):
        note(desk, forwarded, position)
    of_one = forwarded.names_of("T", [0])
    forwarded.adopt(
        AcceptedForward(source="a", stream=f"invented {number}", position=1, topic="T", queue=0) for number in range(5)
    )

    assert [mark.position for mark in of_one] == [2, 3, 4]
    assert len(forwarded.names_of("T", [0])) == 2


def test_names_go_along_with_their_queues_only(desk: BrokerHarness) -> None:
    """Other queues and topics stay."""
    here, there = names(desk), names(BrokerHarness())
    note(desk, here, 7, queue=0)
    note(desk, here, 8, queue=1)

    there.adopt(here.names_of("T", [1]))

    assert (a_name(7) in there, a_name(8) in there) == (False, True)
    assert here.names_of("other", [0, 1]) == []
