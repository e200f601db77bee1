"""What a room wants done besides is done before the event ends, in the order it was wanted."""

from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.broker.flow.awaitables import Pause
from holdfast.machine.effects import Log
from holdfast.machine.events import ChannelId, TimerFired
from holdfast.wire.frames.command import encode_command


def test_nothing_wanted_is_nothing_to_do() -> None:
    """The list is empty between events, and taking from it empties it."""
    desk = BrokerHarness()
    errands = desk.components.turn
    assert not errands

    errands.effects.append(Log("info", "something", {}))

    assert errands
    assert len(errands.drain_effects()) == 1
    assert not errands


def test_work_begins_at_once_and_goes_on_by_itself() -> None:
    """It may wait, and sees the time of the event that wakes it."""
    desk = BrokerHarness()
    errands = desk.components.turn
    seen: list[int] = []

    async def work() -> None:
        seen.append(errands.now_ms)
        await Pause(500)
        seen.append(errands.now_ms)
        errands.effects.append(Log("info", "done", {}))

    errands.procedures.append(work())
    start = desk.now_ms
    desk.feed(TimerFired("stats", desk.now_ms))
    desk.pass_time(500, "pauses")

    assert seen == [start, start + 500]
    assert [effect.event for effect in desk.effects if isinstance(effect, Log)][-1] == "done"


def test_frames_are_taken_as_if_they_had_just_been_read() -> None:
    """From the channel they are said to be from; nothing happens when that is gone."""
    desk = BrokerHarness()
    desk.make_topic("T")
    errands = desk.components.turn
    errands.frames.append((ChannelId(1), encode_command(a_send(opaque=5))))
    errands.frames.append((ChannelId(99), encode_command(a_send(opaque=6))))

    desk.feed(TimerFired("stats", desk.now_ms))

    assert [answer.opaque for answer in desk.answers[1]] == [5]
    assert desk.store.queue("T", 0).next_offset == 1
    assert not errands
