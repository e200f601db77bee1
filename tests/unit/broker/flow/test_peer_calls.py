"""Requests of the broker's own: sent in order, answered, late, lost, or never sent at all."""

import pytest

from holdfast.broker.flow.peer_calls import PURPOSE, TIMER, WAITING_MAX, CallOutcome, PeerCalls
from holdfast.machine.effects import Effect, OpenChannel, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, response
from holdfast.wire.frames.frame import split_frames

PEER = "10.0.0.2:10911"
CHANNEL = ChannelId(7)


class Caller:
    """Calls, and what they led to."""

    def __init__(self) -> None:
        self.calls = PeerCalls()
        self.effects: list[Effect] = []

    def call(self, waiter: str, *, deadline_ms: int = 1_000, body: bytes = b"") -> bool:
        command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, body=body)
        return self.calls.call(PEER, command, waiter, deadline_ms, self.effects)

    def sent(self) -> list[Command]:
        """Return the requests that left, in order."""
        data = b"".join(bytes(p) for effect in self.effects if isinstance(effect, SendBytes) for p in effect.pieces)
        return [decode_command(frame) for frame in split_frames(memoryview(data))[0]]

    def open(self) -> None:
        self.effects += self.calls.channel_opened(CHANNEL, PEER)


@pytest.fixture
def caller() -> Caller:
    return Caller()


def test_an_address_is_dialed_once_and_asked_in_order(caller: Caller) -> None:
    """What is relayed for a queue must arrive as it came, whether or not the connection was there already."""
    caller.call("first", body=b"1")
    caller.call("second", body=b"2")
    caller.open()
    caller.call("third", body=b"3")

    assert [effect for effect in caller.effects if isinstance(effect, OpenChannel)] == [OpenChannel(PEER, PURPOSE)]
    assert [command.body for command in caller.sent()] == [b"1", b"2", b"3"]


def test_an_answer_goes_to_who_asked(caller: Caller) -> None:
    """In whatever order answers come; one that nobody waits for is nobody's."""
    caller.open()
    caller.call("first")
    caller.call("second")
    first, second = (response(command, 0, body=command.body) for command in caller.sent())

    assert caller.calls.handle_response(CHANNEL, second) == CallOutcome("second", second)
    assert caller.calls.handle_response(CHANNEL, first) == CallOutcome("first", first)
    assert caller.calls.handle_response(CHANNEL, first) is None
    assert caller.calls.handle_response(ChannelId(8), second) is None


def test_who_cannot_be_reached_has_heard_nothing(caller: Caller) -> None:
    """That is the one failure after which asking somebody else cannot make it happen twice."""
    caller.call("first")

    (ended,) = caller.calls.channel_failed(PEER, "connection refused")

    assert ended.waiter == "first"
    assert ended.is_unsent
    assert PEER in ended.reason


def test_a_lost_connection_leaves_it_open_what_was_heard(caller: Caller) -> None:
    """And the next call dials again."""
    caller.open()
    caller.call("first")

    (ended,) = caller.calls.channel_closed(CHANNEL)
    caller.call("second")

    assert (ended.waiter, ended.answer, ended.is_unsent) == ("first", None, False)
    assert caller.effects[-1] == OpenChannel(PEER, PURPOSE)


def test_silence_ends_at_its_deadline(caller: Caller) -> None:
    """The timer is set for the earliest, and again for the next."""
    caller.open()
    caller.call("late", deadline_ms=500)
    caller.call("later", deadline_ms=900)
    caller.effects.clear()

    ended = caller.calls.on_timer(500, caller.effects)

    assert [call.waiter for call in ended] == ["late"]
    assert caller.effects == [SetTimer(TIMER, 900)]


def test_what_was_given_up_while_its_connection_was_dialed_is_not_sent_any_more(caller: Caller) -> None:
    """Its caller was told that the other side cannot have heard it, and has asked again, or somebody else."""
    caller.call("late", deadline_ms=500, body=b"1")
    caller.call("later", deadline_ms=900, body=b"2")

    ended = caller.calls.on_timer(500, caller.effects)
    caller.open()

    assert [(call.waiter, call.is_unsent) for call in ended] == [("late", True)]
    assert [command.body for command in caller.sent()] == [b"2"]


def test_a_peer_that_never_answers_does_not_gather_calls_for_ever(caller: Caller) -> None:
    """Beyond a number that no sound cluster has, they are refused."""
    caller.open()
    for number in range(WAITING_MAX):
        assert caller.call(str(number))

    assert not caller.call("one more")
