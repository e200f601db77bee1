"""Requests of the broker's own, to servers and clients: sent in order, answered, late, lost, or never sent at all."""

import pytest

from holdfast.broker.flow.awaitables import CALLS
from holdfast.broker.flow.rpc import CLIENT_WAITING_MAX, TIMER, WAITING_MAX, CallOutcome, Rpc
from holdfast.machine.effects import CloseChannel, OpenChannel, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.errors import PeerFailed
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, response
from holdfast.wire.frames.frame import split_frames

PEER = "10.0.0.2:10911"
CHANNEL = ChannelId(7)


class Caller:
    """Calls, and what they led to."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.calls = Rpc(self.turn)

    def call(self, waiter: str, *, deadline_ms: int = 1_000, body: bytes = b"") -> bool:
        command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, body=body)
        return self.calls.call_peer(PEER, command, waiter, deadline_ms)

    def sent(self) -> list[Command]:
        """Return the requests that left, in order."""
        data = b"".join(
            bytes(p) for effect in self.turn.effects if isinstance(effect, SendBytes) for p in effect.pieces
        )
        return [decode_command(frame) for frame in split_frames(memoryview(data))[0]]

    def open(self) -> None:
        self.calls.channel_opened(CHANNEL, PEER)


def failure_of(outcome: CallOutcome) -> PeerFailed:
    """Return why there was no answer."""
    assert isinstance(outcome.result, PeerFailed)
    return outcome.result


@pytest.fixture
def caller() -> Caller:
    return Caller()


def test_an_address_is_dialed_once_and_asked_in_order(caller: Caller) -> None:
    """What is relayed for a queue must arrive as it came, whether or not the connection was there already."""
    caller.call("first", body=b"1")
    caller.call("second", body=b"2")
    caller.open()
    caller.call("third", body=b"3")

    assert [effect for effect in caller.turn.effects if isinstance(effect, OpenChannel)] == [OpenChannel(PEER, CALLS)]
    assert [command.body for command in caller.sent()] == [b"1", b"2", b"3"]


def test_an_answer_goes_to_who_asked(caller: Caller) -> None:
    """In whatever order answers come; one that nobody waits for is nobody's."""
    caller.open()
    caller.call("first")
    caller.call("second")
    first, second = (response(command, 0, body=command.body) for command in caller.sent())

    assert caller.calls.handle_response(CHANNEL, second) == [CallOutcome("second", second)]
    assert caller.calls.handle_response(CHANNEL, first) == [CallOutcome("first", first)]
    assert caller.calls.handle_response(CHANNEL, first) == []
    assert caller.calls.handle_response(ChannelId(8), second) == []


def test_who_cannot_be_reached_has_heard_nothing(caller: Caller) -> None:
    """That is the one failure after which asking somebody else cannot make it happen twice."""
    caller.call("first")

    (ended,) = caller.calls.channel_failed(PEER, "connection refused")

    assert ended.waiter == "first"
    failure = failure_of(ended)
    assert failure.is_unsent
    assert PEER in str(failure)


def test_a_lost_connection_leaves_it_open_what_was_heard(caller: Caller) -> None:
    """And the next call dials again."""
    caller.open()
    caller.call("first")

    (ended,) = caller.calls.channel_closed(CHANNEL)
    caller.call("second")

    assert (ended.waiter, failure_of(ended).is_unsent) == ("first", False)
    assert caller.turn.effects[-1] == OpenChannel(PEER, CALLS)


def test_silence_ends_at_its_deadline(caller: Caller) -> None:
    """The timer is set for the earliest, and again for the next."""
    caller.open()
    caller.call("late", deadline_ms=500)
    caller.call("later", deadline_ms=900)
    caller.turn.drain_effects()

    caller.turn.now_ms = 500
    ended = caller.calls.on_timer()

    assert [call.waiter for call in ended] == ["late"]
    assert caller.turn.effects == [SetTimer(TIMER, 900)]


def test_what_was_given_up_while_its_connection_was_dialed_is_not_sent_any_more(caller: Caller) -> None:
    """Its caller was told that the other side cannot have heard it, and has asked again, or somebody else."""
    caller.call("late", deadline_ms=500, body=b"1")
    caller.call("later", deadline_ms=900, body=b"2")

    caller.turn.now_ms = 500
    ended = caller.calls.on_timer()
    caller.open()

    assert [(call.waiter, failure_of(call).is_unsent) for call in ended] == [("late", True)]
    assert [command.body for command in caller.sent()] == [b"2"]


def test_a_peer_that_never_answers_does_not_gather_calls_for_ever(caller: Caller) -> None:
    """Beyond a number that no sound cluster has, they are refused."""
    caller.open()
    for number in range(WAITING_MAX):
        assert caller.call(str(number))

    assert not caller.call("one more")


OTHER_PURPOSE = "registration"


def test_calls_of_different_purposes_use_different_connections(caller: Caller) -> None:
    """One that is lost takes only its own calls with it."""
    caller.call("first")
    caller.calls.call_peer(PEER, Command(code=RequestCode.REGISTER_BROKER), "second", 1_000, OTHER_PURPOSE)
    caller.open()
    caller.calls.channel_opened(ChannelId(8), PEER, OTHER_PURPOSE)

    (ended,) = caller.calls.channel_closed(CHANNEL)

    dialed = [effect.purpose for effect in caller.turn.effects if isinstance(effect, OpenChannel)]
    assert dialed == [CALLS, OTHER_PURPOSE]
    assert ended.waiter == "first"
    assert (caller.calls.is_connected(PEER), caller.calls.is_connected(PEER, OTHER_PURPOSE)) == (False, True)


def test_a_connection_that_is_given_up_is_dialed_again(caller: Caller) -> None:
    """When it has closed at last, its calls fail, and the new connection stays."""
    caller.open()
    caller.call("first")

    caller.calls.disconnect(PEER)
    caller.call("second")
    caller.calls.channel_opened(ChannelId(8), PEER)
    ended = caller.calls.channel_closed(CHANNEL)

    assert [effect for effect in caller.turn.effects if isinstance(effect, CloseChannel | OpenChannel)] == [
        CloseChannel(CHANNEL),
        OpenChannel(PEER, CALLS),
    ]
    assert [call.waiter for call in ended] == ["first"]
    assert caller.calls.is_connected(PEER)


def test_calls_on_a_connection_that_is_given_up_end_at_their_deadline(caller: Caller) -> None:
    """It may take long to close: the other side may be gone without a word."""
    caller.open()
    caller.call("first", deadline_ms=500)
    caller.calls.disconnect(PEER)

    caller.turn.now_ms = 500

    assert [call.waiter for call in caller.calls.on_timer()] == ["first"]


CLIENT, OTHER_CLIENT = ChannelId(9), ChannelId(8)


def ask_client(caller: Caller, waiter: str, *, deadline_ms: int = 1_000) -> CallOutcome | None:
    command = Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO)
    return caller.calls.call_client(CLIENT, command, waiter, deadline_ms)


def test_a_client_is_asked_on_its_own_connection(caller: Caller) -> None:
    """It is never dialed. Its answer counts once, and only from the channel that was asked."""
    ask_client(caller, "tool")
    (question,) = caller.sent()
    answer = response(question, 0)

    assert caller.turn.effects[0].channel == CLIENT
    assert caller.calls.handle_response(OTHER_CLIENT, answer) == []
    assert caller.calls.handle_response(CLIENT, answer) == [CallOutcome("tool", answer)]
    assert caller.calls.handle_response(CLIENT, answer) == []


def test_a_silent_client_is_given_up_in_time(caller: Caller) -> None:
    """The others are waited for; one timer serves servers and clients."""
    ask_client(caller, "early", deadline_ms=500)
    ask_client(caller, "late", deadline_ms=900)
    caller.call("a server", deadline_ms=700)
    caller.turn.now_ms = 500

    ended = caller.calls.on_timer()

    assert [(call.waiter, failure_of(call).is_unsent) for call in ended] == [("early", False)]
    assert caller.turn.effects[-1] == SetTimer(TIMER, 700)


def test_calls_to_a_client_that_leaves_fail_at_once(caller: Caller) -> None:
    """Calls to other clients do not."""
    ask_client(caller, "tool")

    assert caller.calls.channel_closed(OTHER_CLIENT) == []
    (ended,) = caller.calls.channel_closed(CLIENT)
    assert (ended.waiter, failure_of(ended).is_unsent) == ("tool", False)


def test_the_oldest_call_to_a_client_makes_room_for_a_new_one(caller: Caller) -> None:
    """Clients that never answer must not use up the memory of the broker."""
    for number in range(CLIENT_WAITING_MAX):
        assert ask_client(caller, str(number)) is None

    given_up = ask_client(caller, "one more")

    assert given_up is not None
    assert (given_up.waiter, failure_of(given_up).is_unsent) == ("0", False)
