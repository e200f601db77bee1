from holdfast.broker.flow.held_replies import HeldReplies
from holdfast.machine.effects import SendBytes
from holdfast.machine.events import ChannelId

ONE, TWO = ChannelId(1), ChannelId(2)


def test_an_answer_leaves_when_its_record_is_synced_and_not_before() -> None:
    """A sync releases what it covers, nothing behind it."""
    held = HeldReplies()
    held.hold(100, ONE, [b"a"])
    held.hold(200, ONE, [b"b"])

    assert held.release(99) == []
    assert held.release(100) == [SendBytes(ONE, [b"a"])]
    assert held.release(500) == [SendBytes(ONE, [b"b"])]
    assert len(held) == 0


def test_a_sync_answers_each_channel_with_one_write() -> None:
    """Answers of one channel leave together and in order."""
    held = HeldReplies()
    held.hold(1, ONE, [b"a"])
    held.hold(2, TWO, [b"x"])
    held.hold(3, ONE, [b"b", b"c"])

    assert held.release(3) == [SendBytes(ONE, [b"a", b"b", b"c"]), SendBytes(TWO, [b"x"])]


def test_a_failed_disk_takes_all_promises_back() -> None:
    """Nothing is ever answered; the channels that wait are named once."""
    held = HeldReplies()
    held.hold(1, ONE, [b"a"])
    held.hold(2, TWO, [b"b"])
    held.hold(3, ONE, [b"c"])

    assert held.drop_all() == [ONE, TWO]
    assert held.release(1000) == []
