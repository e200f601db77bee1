"""What another broker brings is taken as from a client of our own, and taken once."""

import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send

from holdfast.broker.relay.relay_server import REMEMBERED_MAX
from holdfast.machine.effects import CloseChannel
from holdfast.model.errors import DiskFailed
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.frames.host import pack_host
from holdfast.wire.requests.relay import RelayFields


def a_desk(flush: str = "async") -> BrokerHarness:
    """A broker that leads logical queue 0 of T, and not queue 1."""
    desk = BrokerHarness(flush=flush)
    desk.make_topic("T", 1)
    queue = new_logical_queue(0, "broker-a", 0)
    desk.components.mappings.change(TopicMapping(topic="T", broker="broker-a", epoch=1, total=2, queues={0: queue}))
    return desk


def an_envelope(*commands: Command, number: int = 1, opaque: int = 50, **fields: int | str) -> Command:
    values = {"source": "b", "boot": 5, "number": number, "client": "9.8.7.6:5432"} | fields
    return Command(
        code=RequestCode.RELAY,
        opaque=opaque,
        fields=to_fields(RelayFields(**values)),  # type: ignore[arg-type]
        body=b"".join(map(encode_command, commands)),
    )


def opened(answer: Command) -> list[Command]:
    """Return the answers in an answered envelope."""
    frames, taken = split_frames(memoryview(answer.body))
    assert taken == len(answer.body)
    return [decode_command(frame) for frame in frames]


def stored(desk: BrokerHarness) -> int:
    return desk.store.queue("T", 0).next_offset


def test_requests_are_taken_in_order_and_answered_together() -> None:
    """Each under the number that its client gave it; the envelope under its own."""
    desk = a_desk()

    (answer,) = desk.call(an_envelope(a_send(opaque=7), a_send(opaque=8)))

    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 50)
    assert [(told.opaque, told.fields["queueOffset"]) for told in opened(answer)] == [(7, "0"), (8, "1")]


def test_a_message_is_of_the_client_not_of_the_broker_that_brought_it() -> None:
    """Its born host is the client's."""
    desk = a_desk()

    desk.call(an_envelope(a_send()))

    record = desk.store.read_record(desk.store.queue("T", 0).get_entry(0)[0])
    assert record is not None
    assert record.born_host == pack_host("9.8.7.6:5432")


def test_under_sync_flush_the_answer_waits_for_the_disk() -> None:
    """As any other that promises storage."""
    desk = a_desk("sync")

    assert desk.call(an_envelope(a_send())) == []
    desk.sync()

    assert [answer.opaque for answer in desk.answers[1]] == [50]


def test_a_pull_is_answered_when_there_is_something_or_its_time_is_up() -> None:
    """It waits as one of our own clients would."""
    desk = a_desk()
    pull = a_pull(opaque=9, sysFlag="6")
    assert desk.call(an_envelope(pull, number=1)) == []

    desk.connect(2)
    desk.call(a_send(), channel=2)

    (answer,) = desk.answers[1]
    assert [(told.opaque, told.code) for told in opened(answer)] == [(9, ResponseCode.SUCCESS)]
    late = a_pull(opaque=10, offset=1, sysFlag="6")
    assert desk.call(an_envelope(late, number=2)) == []
    desk.pass_time(15_000, "parked pulls")
    assert [told.code for told in opened(desk.answers[1][0])] == [ResponseCode.PULL_NOT_FOUND]


def test_an_envelope_that_comes_again_is_not_taken_again() -> None:
    """Its broker got no answer: it gets the first one."""
    desk = a_desk()
    (first,) = desk.call(an_envelope(a_send(opaque=7)))
    desk.connect(2)

    (again,) = desk.call(an_envelope(a_send(opaque=7), opaque=51), channel=2)

    assert stored(desk) == 1
    assert again.body == first.body
    assert again.opaque == 51


def test_an_envelope_that_comes_again_before_it_is_answered_waits_too() -> None:
    """Both are answered when the disk has it."""
    desk = a_desk("sync")
    desk.call(an_envelope(a_send()))
    desk.connect(2)
    desk.call(an_envelope(a_send(), opaque=51), channel=2)

    desk.sync()

    assert stored(desk) == 1
    assert [answer.opaque for answer in (*desk.answers[1], *desk.answers[2])] == [50, 51]


@pytest.mark.parametrize("other", [{"number": 2}, {"boot": 6}, {"source": "c"}])
def test_another_envelope_is_another_one(other: dict[str, int | str]) -> None:
    """Numbers are of one process of one broker."""
    desk = a_desk()
    desk.call(an_envelope(a_send()))

    desk.call(an_envelope(a_send(), **other))  # type: ignore[arg-type]

    assert stored(desk) == 2


def test_what_is_settled_is_forgotten_and_what_is_remembered_is_bounded() -> None:
    """Nobody can make a broker remember for ever."""
    desk = a_desk()
    for number in range(1, 6):
        desk.call(an_envelope(a_send(), number=number, settled=4 if number == 5 else 0))
    remembered = desk.components.relayed_clients._remembered["b", 5]
    assert sorted(remembered) == [4, 5]

    for number in range(6, REMEMBERED_MAX + 10):
        desk.call(an_envelope(a_send(), number=number))

    assert len(remembered) == REMEMBERED_MAX


def test_a_repetition_meant_for_an_earlier_process_is_refused() -> None:
    """It may have stored the message before it died: nobody can know."""
    desk = a_desk()

    (answer,) = desk.call(an_envelope(a_send(), to_boot=desk.components.relayed_clients.boot - 1))

    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert stored(desk) == 0


def test_sends_that_want_no_answer_are_taken_and_the_envelope_is_answered() -> None:
    """With nothing in it."""
    desk = a_desk()
    one_way = a_send()
    one_way.flag = 2

    (answer,) = desk.call(an_envelope(one_way))

    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"")
    assert stored(desk) == 1


@pytest.mark.parametrize(
    "envelope",
    [
        an_envelope(Command(code=RequestCode.HEART_BEAT)),
        an_envelope(an_envelope(a_send())),
        an_envelope(a_send(), hops=3),
        an_envelope(a_send(), hops=0),
        an_envelope(),
        an_envelope(Command(code=RequestCode.SEND_MESSAGE_V2, flag=1)),
    ],
)
def test_what_is_not_passed_on_is_refused(envelope: Command) -> None:
    """Above all: no envelope in an envelope, and no circle."""
    desk = a_desk()

    (answer,) = desk.call(envelope)

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert len(desk.components.relayed_clients) == 0


def test_guests_leave_nothing_behind() -> None:
    """Channels of their own are forgotten with their last answer."""
    desk = a_desk()

    desk.call(an_envelope(a_send()), an_envelope(a_pull(), number=2, opaque=51))

    assert len(desk.components.relayed_clients) == 0
    assert min(desk.broker._dispatcher._peers) > 0


def test_a_disk_that_fails_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other broker is told that nobody knows; its connection stays."""
    desk = a_desk()

    def fail() -> None:
        raise DiskFailed("no more")

    monkeypatch.setattr(desk.store, "write", fail)
    monkeypatch.setattr(desk.store.log, "write", fail)
    answers = desk.call(an_envelope(a_send()))

    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR]
    assert not [effect for effect in desk.effects if isinstance(effect, CloseChannel) and effect.channel < 0]


def test_a_request_for_a_queue_that_nobody_knows_comes_back_as_501() -> None:
    """The other broker asks the name servers, and tries elsewhere."""
    desk = a_desk()

    assert desk.call(an_envelope(a_send(queue=1), hops=2)) != []

    assert [told.code for told in opened(desk.answers[1][0])] == [ResponseCode.NOT_LEADER_FOR_QUEUE]
