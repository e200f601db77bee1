"""An envelope goes out under one number until it is answered, or until nobody can know what became of it."""

import pytest
from tests.support.cluster.broker_machine import a_send

from holdfast.broker.flow.awaitables import Pause, PeerCall, Procedure
from holdfast.broker.relay.relay_client import RelayClient, Target, WaitingRequest, answers_in, choose_batch, is_not_led
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import Identity, IdentityKind
from holdfast.model.errors import PeerFailed
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, encode_command, response
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.requests.relay import RelayAnswer, RelayFields

ADDRESS = "10.0.0.9:10911"
SENDER = Identity(IdentityKind.USER, "alice", "1.2.3.4:5")
TARGET = Target(("T", 3), ADDRESS, generation=7)
ANSWER = Command(code=0, fields=to_fields(RelayAnswer(boot=77)))


def a_request(opaque: int = 1, *, channel: int = 1, hops: int = 0, body: bytes = b"x") -> WaitingRequest:
    command = a_send(opaque=opaque, body=body)
    return WaitingRequest(ChannelId(channel), SENDER, encode_command(command), command, hops, deadline_ms=2_500)


def some_envelopes(now_ms: int = 0) -> tuple[RelayClient, Turn]:
    errands = Turn(now_ms)
    return RelayClient("a", 5, errands), errands


def asked(wait: object) -> RelayFields:
    """Return the header of the envelope that is on its way."""
    assert isinstance(wait, PeerCall)
    assert wait.address == ADDRESS
    return from_fields(RelayFields, wait.command.fields)


def acquaint(envelopes: RelayClient) -> None:
    """Let the other process be known."""
    end(envelopes.send_reliably([a_request()], TARGET))


def end(steps: Procedure[Command]) -> None:
    steps.send(None)
    with pytest.raises(StopIteration):
        steps.send(ANSWER)


def test_it_says_whose_request_it_is_and_numbers_rise() -> None:
    """The client's own frames are in it, one behind the other."""
    envelopes, _ = some_envelopes()
    batch = [a_request(1, hops=1), a_request(2, hops=1)]

    wait = envelopes.send_reliably(batch, TARGET).send(None)

    assert asked(wait) == RelayFields(
        source="a",
        boot=5,
        number=1,
        settled=1,
        hops=2,
        client="1.2.3.4:5",
        user="alice",
        topic="T",
        queue=3,
        generation=7,
    )
    assert isinstance(wait, PeerCall)
    assert wait.command.body == batch[0].frame + batch[1].frame
    assert asked(envelopes.send_reliably([a_request()], TARGET).send(None)).number == 2


def test_what_is_not_answered_is_repeated_under_its_number_to_the_same_process() -> None:
    """The other side then knows that it has it."""
    envelopes, _ = some_envelopes()
    acquaint(envelopes)
    steps = envelopes.send_reliably([a_request()], TARGET)
    first = asked(steps.send(None))

    assert isinstance(steps.throw(PeerFailed("lost")), Pause)
    again = asked(steps.send(b""))

    assert (again.number, again.to_boot) == (first.number, 77)
    with pytest.raises(StopIteration) as stop:
        steps.send(ANSWER)
    assert stop.value.value is ANSWER


def test_a_process_that_never_answered_before_is_not_asked_twice() -> None:
    """It cannot be told apart from its successor: nobody knows, and that is what is said."""
    envelopes, _ = some_envelopes()
    steps = envelopes.send_reliably([a_request()], TARGET)
    steps.send(None)

    with pytest.raises(PeerFailed) as failed:
        steps.throw(PeerFailed("lost"))

    assert not failed.value.is_unsent


def test_what_never_left_is_said_to_be_unsent() -> None:
    """It may be sent to anybody else. But not once it was sent before."""
    envelopes, _ = some_envelopes()
    acquaint(envelopes)
    steps = envelopes.send_reliably([a_request()], TARGET)
    steps.send(None)
    with pytest.raises(PeerFailed) as failed:
        steps.throw(PeerFailed("no connection", is_unsent=True))
    assert failed.value.is_unsent

    steps = envelopes.send_reliably([a_request()], TARGET)
    steps.send(None)
    steps.throw(PeerFailed("lost"))
    steps.send(b"")
    assert isinstance(steps.throw(PeerFailed("no connection", is_unsent=True)), Pause)


def test_nobody_is_asked_again_when_the_sender_has_given_up() -> None:
    """It sends again itself."""
    envelopes, errands = some_envelopes()
    acquaint(envelopes)
    steps = envelopes.send_reliably([a_request()], TARGET)
    steps.send(None)
    errands.now_ms = 2_500

    with pytest.raises(PeerFailed) as failed:
        steps.throw(PeerFailed("too late"))

    assert not failed.value.is_unsent


@pytest.mark.parametrize(
    ("code", "is_unsent"),
    [
        (ResponseCode.INVALID_PARAMETER, True),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True),
        (ResponseCode.SYSTEM_ERROR, False),
        (ResponseCode.ILLEGAL_OPERATION, False),
    ],
)
def test_a_refused_envelope_was_taken_or_not_by_its_reason(code: int, is_unsent: bool) -> None:  # noqa: FBT001
    """What could not be read was not stored; what could not be answered may have been."""
    envelopes, _ = some_envelopes()
    steps = envelopes.send_reliably([a_request()], TARGET)
    steps.send(None)

    with pytest.raises(PeerFailed) as failed:
        steps.send(Command(code=code, remark="no"))

    assert failed.value.is_unsent == is_unsent


def test_what_is_settled_is_below_everything_that_still_waits() -> None:
    """The other side may forget only what nobody will ask again."""
    envelopes, _ = some_envelopes()
    slow = envelopes.send_reliably([a_request()], TARGET)
    slow.send(None)
    end(envelopes.send_reliably([a_request()], TARGET))

    other = envelopes.send_reliably([a_request()], TARGET)
    assert asked(other.send(None)).settled == 1
    with pytest.raises(StopIteration):
        slow.send(ANSWER)
    assert asked(envelopes.send_reliably([a_request()], TARGET).send(None)).settled == 3


def test_one_envelope_is_of_one_client_and_bounded() -> None:
    """And no number is in it twice."""
    many = [a_request(number) for number in range(300)]
    large = [a_request(number, body=bytes(400_000)) for number in range(4)]

    assert len(choose_batch(many)) == 256
    assert len(choose_batch(large)) == 2
    assert len(choose_batch([a_request(body=bytes(3_000_000))])) == 1
    assert len(choose_batch([a_request(1), a_request(2, channel=2)])) == 1
    assert len(choose_batch([a_request(1), a_request(2, hops=1)])) == 1
    assert len(choose_batch([a_request(1), a_request(1)])) == 1


def test_answers_are_found_by_number_and_nonsense_is_none() -> None:
    """Byte for byte as the leader wrote them."""
    told = [encode_command(response(a_send(opaque=number), number)) for number in (0, 501)]

    found = answers_in(b"".join(told))

    assert {number: data for number, (_, data) in found.items()} == {0: told[0], 501: told[1]}
    assert answers_in(b"\x00\x00\x00\x00nonsense") == {}
    assert is_not_led(told[1])
    assert not is_not_led(told[0])
    assert not is_not_led(told[1] * 100)
