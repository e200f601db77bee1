from holdfast.broker.flow.request import Answer, Refusal, Request
from holdfast.broker.tables.client_calls import TIMEOUT_MS, TIMER, ClientCalls
from holdfast.broker.tables.clients import Client
from holdfast.machine.effects import Effect, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import BINARY, ONE_WAY, RESPONSE, Command, decode_command
from holdfast.wire.frames.frame import split_frames

CLIENT = Client(
    client_id="c", channel=ChannelId(9), peer="1.1.1.1:1", language="JAVA", version=479, serializer=BINARY, seen_ms=0
)


def a_request(now_ms: int = 0, *, flag: int = 0) -> Request:
    command = Command(code=307, opaque=5, flag=flag)
    return Request(command=command, channel=ChannelId(1), peer="2.2.2.2:2", now_ms=now_ms, effects=[])


def sent(effects: list[Effect], channel: int) -> list[Command]:
    data = b"".join(
        bytes(piece)
        for effect in effects
        if isinstance(effect, SendBytes) and effect.channel == channel
        for piece in effect.pieces
    )
    return [decode_command(frame) for frame in split_frames(memoryview(data))[0]]


def pass_on(request: Request):
    def reply(answer: Command | None) -> Answer:
        if answer is None:
            return Refusal(ResponseCode.CONSUME_MSG_TIMEOUT, "no answer")
        return request.answer(answer.code, body=answer.body)

    return reply


def test_the_clients_answer_becomes_the_askers() -> None:
    """Under the asker's number; the client is asked in the encoding that it uses."""
    relays, request = ClientCalls(), a_request()

    relays.call(request, CLIENT, Command(code=307, body=b"?"), pass_on(request))
    (question,) = sent(request.effects, 9)
    effects = relays.handle_response(ChannelId(9), Command(code=0, opaque=question.opaque, flag=RESPONSE, body=b"!"))

    assert (question.serializer, question.body) == (BINARY, b"?")
    (answer,) = sent(effects, 1)
    assert (answer.opaque, answer.body) == (5, b"!")


def test_an_answer_counts_once_and_only_from_whom_was_asked() -> None:
    """Numbers of other channels may be the same."""
    relays, request = ClientCalls(), a_request()
    relays.call(request, CLIENT, Command(code=307), pass_on(request))
    (question,) = sent(request.effects, 9)
    answer = Command(code=0, opaque=question.opaque, flag=RESPONSE)

    assert relays.handle_response(ChannelId(8), answer) == []
    assert len(relays.handle_response(ChannelId(9), answer)) == 1
    assert relays.handle_response(ChannelId(9), answer) == []


def test_who_gets_no_answer_in_time_hears_so() -> None:
    """Those who have time left go on waiting."""
    relays, early, late = ClientCalls(), a_request(0), a_request(4_000)
    relays.call(early, CLIENT, Command(code=307), pass_on(early))
    relays.call(late, CLIENT, Command(code=307), pass_on(late))
    effects: list[Effect] = []

    relays.on_timer(TIMER, TIMEOUT_MS, effects)

    assert SetTimer(TIMER, TIMEOUT_MS) in early.effects
    assert [answer.code for answer in sent(effects, 1)] == [ResponseCode.CONSUME_MSG_TIMEOUT]
    assert SetTimer(TIMER, 4_000 + TIMEOUT_MS) in effects


def test_who_waits_for_a_client_that_left_hears_so() -> None:
    """At once."""
    relays, request = ClientCalls(), a_request()
    relays.call(request, CLIENT, Command(code=307), pass_on(request))

    assert relays.channel_closed(ChannelId(8)) == []
    assert [answer.code for answer in sent(relays.channel_closed(ChannelId(9)), 1)] == [
        ResponseCode.CONSUME_MSG_TIMEOUT
    ]


def test_who_wants_no_answer_gets_none() -> None:
    """A one-way request may be relayed, too."""
    relays, request = ClientCalls(), a_request(flag=ONE_WAY)
    relays.call(request, CLIENT, Command(code=307), pass_on(request))

    assert relays.channel_closed(ChannelId(9)) == []
