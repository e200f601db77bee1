"""What one turn of the event loop read from several channels is one event, not to be told apart from many."""

import msgspec
import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes

from holdfast.machine.effects import CloseChannel, Fault, SendBytes, SyncLog
from holdfast.machine.events import ChannelId
from holdfast.model.errors import DiskFailed
from holdfast.wire.frames.codes import ResponseCode


def a_desk(**options: str) -> BrokerHarness:
    desk = BrokerHarness(**options)
    desk.connect(2)
    desk.connect(3)
    desk.make_topic("T")
    return desk


def bodies(desk: BrokerHarness) -> list[bytes]:
    """What a consumer of queue 0 gets, in order."""
    (pulled,) = desk.call(a_pull())
    return [part for part in (b"one", b"two", b"three", b"four") if part in pulled.body]


def test_the_sends_of_all_channels_are_one_write_and_one_sync() -> None:
    """That is what a turn is for: the price of an event is paid once."""
    desk = a_desk(flush="sync")
    before = len(desk.syncs)

    desk.call_together({1: [a_send(opaque=1)], 2: [a_send(opaque=2)], 3: [a_send(opaque=3)]})

    assert len(desk.syncs) - before == 1


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_each_channel_gets_its_own_answers(flush: str) -> None:
    """Offsets follow the order of reading; a sender that wants no answer gets none, and shifts nobody else's."""
    desk = a_desk(flush=flush)

    desk.call_together(
        {
            1: [a_send(opaque=10), a_send(opaque=11)],
            2: [msgspec.structs.replace(a_send(opaque=20), flag=2), a_send(opaque=21)],
            3: [a_send(opaque=30)],
        }
    )
    desk.sync()

    told = {
        channel: [(answer.opaque, answer.fields["queueOffset"]) for answer in desk.answers[channel]]
        for channel in (1, 2, 3)
    }
    assert told == {1: [(10, "0"), (11, "1")], 2: [(21, "3")], 3: [(30, "4")]}


def test_a_turn_of_everything_is_answered_as_its_reads_one_by_one() -> None:
    """Sends, a pull between them, an unknown topic, a batch of nothing: the same answers, the same queue."""
    turn = {
        1: [a_send(body=b"one", opaque=1), a_send("never heard of", opaque=2, c="none")],
        2: [a_pull(opaque=3)],
        3: [a_send(body=b"two", opaque=4), a_send(body=b"three", opaque=5)],
    }
    together, apart = a_desk(), a_desk()

    answered = together.call_together(turn)
    expected = {channel: apart.call(*commands, channel=channel) for channel, commands in turn.items()}

    assert answered == expected
    assert bodies(together) == bodies(apart) == [b"one", b"two", b"three"]


def test_a_fault_of_ours_is_told_to_the_channel_that_met_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a peer finds to break us with, those who happened to be read in the same turn get their answers."""
    desk = a_desk()

    def fail(*_: object) -> None:
        desk.components.turn.close(ChannelId(1))
        raise ZeroDivisionError

    monkeypatch.setattr(desk.components.pull_handler, "handle_pull", fail)
    answered = desk.call_together(
        {1: [a_send(body=b"one")], 2: [a_send(body=b"lost"), a_pull()], 3: [a_send(body=b"two")]}
    )

    assert [codes(answered[channel]) for channel in (1, 2, 3)] == [[0], [], [0]]
    assert [effect.channel for effect in desk.effects if isinstance(effect, Fault)] == [2]
    assert not desk.closed(), "what the failed read had caused is dropped"
    monkeypatch.undo()
    assert bodies(desk) == [b"one", b"two"]


def test_a_fault_while_storing_a_run_does_not_reach_the_other_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is given up, and each read taken again by itself."""
    desk = a_desk()
    stage_run = desk.store.stage_run

    def fail_on_lost(drafts: list[tuple[object, bytes]], now_ms: int) -> list[tuple[int, int]]:
        if any(bytes(draft[1]) == b"lost" for draft in drafts):
            raise ZeroDivisionError
        return stage_run(drafts, now_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.store, "stage_run", fail_on_lost)
    answered = desk.call_together({1: [a_send(body=b"one")], 2: [a_send(body=b"lost")], 3: [a_send(body=b"two")]})

    assert [codes(answered[channel]) for channel in (1, 2, 3)] == [[0], [], [0]]
    assert [effect.channel for effect in desk.effects if isinstance(effect, Fault)] == [2]
    assert bodies(desk) == [b"one", b"two"]


def test_a_disk_that_fails_closes_everybody_who_was_promised_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that a message is stored which is not."""
    desk = a_desk()

    def fail() -> None:
        raise DiskFailed("no more")

    monkeypatch.setattr(desk.store, "write", fail)
    answered = desk.call_together({1: [a_send()], 2: [a_send()]})

    assert answered == {1: [], 2: []}
    assert [effect.channel for effect in desk.effects if isinstance(effect, CloseChannel)] == [1, 2]


def test_answers_leave_before_anything_that_comes_after_them() -> None:
    """A pull behind a send of another channel finds what that one sent."""
    desk = a_desk()
    desk.effects.clear()

    answered = desk.call_together({1: [a_send(body=b"one")], 2: [a_pull()]})

    assert answered[2][0].code == ResponseCode.SUCCESS
    assert [effect.channel for effect in desk.effects if isinstance(effect, SendBytes)] == [1, 2]
    assert not [effect for effect in desk.effects if isinstance(effect, SyncLog)]
