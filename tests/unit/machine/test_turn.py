"""Everything that components cause in a turn is done before the event ends, in order."""

import re
from pathlib import Path

from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.broker.flow.awaitables import Pause
from holdfast.machine.effects import CloseChannel, Log, OpenChannel, SendBytes, SetTimer, SyncLog, WriteFile
from holdfast.machine.events import ChannelId, TimerFired
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import Identity, IdentityKind
from holdfast.wire.frames.command import encode_command

SOURCE = Path(__file__).parents[3] / "src" / "holdfast"


def test_an_empty_turn_is_false() -> None:
    """A turn is empty between events, and draining its effects empties it."""
    broker = BrokerHarness()
    turn = broker.components.turn
    assert not turn

    turn.log("info", "something", reason="a test")

    assert turn
    assert turn.drain_effects() == [Log("info", "something", {"reason": "a test"})]
    assert not turn


def test_a_spawned_procedure_starts_in_the_same_event() -> None:
    """It may wait, and sees the time of the event that wakes it."""
    broker = BrokerHarness()
    turn = broker.components.turn
    seen: list[int] = []

    async def work() -> None:
        seen.append(turn.now_ms)
        await Pause(500)
        seen.append(turn.now_ms)
        turn.log("info", "done")

    turn.spawn(work())
    start = broker.now_ms
    broker.feed(TimerFired("stats", broker.now_ms))
    broker.pass_time(500, "pauses")

    assert seen == [start, start + 500]
    assert [effect.event for effect in broker.effects if isinstance(effect, Log)][-1] == "done"


def test_replayed_frames_are_processed_as_if_just_read() -> None:
    """Frames of a channel that has closed are dropped."""
    broker = BrokerHarness()
    broker.make_topic("T")
    turn = broker.components.turn
    turn.replay(ChannelId(1), encode_command(a_send(opaque=5)))
    turn.replay(ChannelId(99), encode_command(a_send(opaque=6)))

    broker.feed(TimerFired("stats", broker.now_ms))

    assert [answer.opaque for answer in broker.answers[1]] == [5]
    assert broker.store.queue("T", 0).next_offset == 1
    assert not turn


def test_replayed_frames_of_one_channel_are_separate_by_their_senders() -> None:
    """Each is processed with the rights of its own."""
    turn = Turn()
    alice, bob = (Identity(IdentityKind.USER, name) for name in ("alice", "bob"))
    for frame, sender in ((b"1", alice), (b"2", alice), (b"3", bob), (b"4", None), (b"5", alice)):
        turn.replay(ChannelId(1), frame, sender)

    assert [turn.pop_frames() for _ in range(4)] == [
        (1, b"12", alice),
        (1, b"3", bob),
        (1, b"4", None),
        (1, b"5", alice),
    ]


def test_effects_leave_in_the_order_in_which_they_were_caused() -> None:
    """An answer, a closed channel and a timer of one component keep their order."""
    turn = Turn()

    turn.send(ChannelId(1), [b"answer"])
    turn.close(ChannelId(1))
    turn.set_timer("again", 5)
    turn.open_channel("127.0.0.1:1")
    turn.sync_log((), 7)
    turn.log("error", "lost", level=3)
    turn.cause(WriteFile("config/a.json", b"{}"))
    turn.cause_all([CloseChannel(ChannelId(2))])

    assert turn.drain_effects() == [
        SendBytes(ChannelId(1), [b"answer"]),
        CloseChannel(ChannelId(1)),
        SetTimer("again", 5),
        OpenChannel("127.0.0.1:1"),
        SyncLog((), 7),
        Log("error", "lost", {"level": 3}),
        WriteFile("config/a.json", b"{}"),
        CloseChannel(ChannelId(2)),
    ]


def test_a_timer_that_is_fired_runs_before_the_event_ends() -> None:
    """Once, however often a component fires it."""
    broker = BrokerHarness()
    turn = broker.components.turn
    for _ in range(2):
        turn.fire("stats")
    broker.effects.clear()

    broker.feed(TimerFired("clients", broker.now_ms))

    assert [effect.name for effect in broker.effects if isinstance(effect, SetTimer)] == ["clients", "stats"]
    assert not turn


def test_a_failed_read_keeps_its_file_writes() -> None:
    """The value has changed all the same, and a `KeptFile` waits for the results of its writes."""
    turn = Turn()
    turn.log("info", "before")
    turn.log("info", "answered")
    turn.cause(WriteFile("config/a.json", b"1"))

    turn.discard_effects(1)

    assert turn.drain_effects() == [Log("info", "before", {}), WriteFile("config/a.json", b"1")]


def test_what_was_sent_after_a_mark_is_replaced_by_closing_the_channels() -> None:
    """Nothing before the mark, and no other effect."""
    turn = Turn()
    turn.send(ChannelId(1), [b"before"])
    mark = turn.mark()
    turn.send(ChannelId(1), [b"after"])
    turn.log("info", "something")
    turn.send(ChannelId(2), [b"after"])

    turn.close_instead_of_sending(mark)

    assert turn.drain_effects() == [
        SendBytes(ChannelId(1), [b"before"]),
        CloseChannel(ChannelId(1)),
        Log("info", "something", {}),
        CloseChannel(ChannelId(2)),
    ]


def test_only_a_turn_keeps_its_lists() -> None:
    """Roles take the effects at the end of an event; the paths of each read and each pull add to them directly."""
    allowed = {
        "machine/turn.py",
        "broker/core.py",  # the end of an event
        "nameserver/core.py",  # the same, and the answers of the hot loop
        "broker/completion.py",  # answers of a read: a call less
    }
    pattern = re.compile(r"turn\.(effects|procedures|frames|fired)\b(?! or| and)")
    found = {
        path.relative_to(SOURCE).as_posix()
        for folder in ("machine", "broker", "nameserver")
        for path in (SOURCE / folder).rglob("*.py")
        if pattern.search(path.read_text(encoding="utf-8")) or path.name == "turn.py"
    }

    assert found == allowed
