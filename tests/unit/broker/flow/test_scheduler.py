"""Work that waits in the middle: for the disk, for time, for a peer; and what it is told when it waits in vain."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.stores import stage

from holdfast.broker.flow import rpc
from holdfast.broker.flow.awaitables import CALLS, Pause, PeerCall, Procedure, Synced, call_all
from holdfast.broker.flow.request import Refusal
from holdfast.broker.flow.scheduler import PAUSE_TIMER
from holdfast.machine.effects import OpenChannel, SendBytes, SyncLog
from holdfast.machine.events import ChannelClosed, ChannelFailed, ChannelId, ChannelOpened, DiskFault, FramesReceived
from holdfast.model.errors import PeerFailed
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, encode_command, response
from holdfast.wire.frames.frame import split_frames

PEER = "10.0.0.9:10911"
OTHER = "10.0.0.8:10911"
LINK = ChannelId(99)


class Bench:
    """A broker, and one piece of work in it."""

    def __init__(self, flush: str = "async") -> None:
        self.desk = BrokerHarness(flush=flush)
        self.ended: list[Any] = []

    def run(self, work: Callable[[], Procedure[object]]) -> None:
        self.desk.broker._scheduler.run(work(), self.ended.append)
        started = self.desk.components.turn.drain_effects()
        self.desk.effects += started
        self.desk.syncs += [effect for effect in started if isinstance(effect, SyncLog)]

    def connect(self) -> None:
        self.desk.answers[LINK] = []
        self.desk.feed(ChannelOpened(LINK, PEER, self.desk.now_ms, PEER, CALLS))

    def asked(self) -> Command:
        """Return the one request that was sent to the peer."""
        pieces = [p for e in self.desk.effects if isinstance(e, SendBytes) and e.channel == LINK for p in e.pieces]
        (frame,) = split_frames(memoryview(b"".join(bytes(piece) for piece in pieces)))[0]
        return decode_command(frame)

    def answer(self, body: bytes) -> None:
        frames, _ = split_frames(memoryview(encode_command(response(self.asked(), 0, body=body))))
        self.desk.feed(FramesReceived(LINK, frames, self.desk.now_ms))


async def ask() -> object:
    try:
        answer = await PeerCall(PEER, Command(code=RequestCode.GET_BROKER_RUNTIME_INFO), 1_000)
    except PeerFailed as error:
        return str(error), error.is_unsent
    return answer.body


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_peers_answer_is_what_the_call_gives(bench: Bench) -> None:
    """The work reads from top to bottom, whatever happened in between."""
    bench.run(ask)
    assert [effect for effect in bench.desk.effects if isinstance(effect, OpenChannel)] == [OpenChannel(PEER, CALLS)]
    bench.connect()
    bench.answer(b"well")

    assert bench.ended == [b"well"]


def test_a_peer_that_is_not_there_is_told_as_such(bench: Bench) -> None:
    """And that it has not heard the question."""
    bench.run(ask)
    bench.desk.feed(ChannelFailed(PEER, "connection refused", bench.desk.now_ms, CALLS))

    assert bench.ended == [(f"cannot connect to {PEER}: connection refused", True)]


def test_a_peer_that_goes_away_may_have_heard(bench: Bench) -> None:
    """Whoever asked must not ask somebody else as if nothing had happened."""
    bench.run(ask)
    bench.connect()
    bench.desk.feed(ChannelClosed(LINK, bench.desk.now_ms))

    assert bench.ended == [(f"the connection to {PEER} was lost", False)]


def test_a_silent_peer_is_given_up_in_time(bench: Bench) -> None:
    """The time is the call's own."""
    bench.run(ask)
    bench.connect()
    bench.desk.pass_time(999, "calls")
    assert bench.ended == []
    bench.desk.pass_time(1, "calls")

    assert bench.ended == [(f"{PEER} did not answer in time", False)]


async def ask_both() -> object:
    questions = [PeerCall(peer, Command(code=RequestCode.GET_BROKER_RUNTIME_INFO), 1_000) for peer in (OTHER, PEER)]
    answers = await call_all(questions)
    return [str(answer) if isinstance(answer, PeerFailed) else answer.body for answer in answers]


def test_several_peers_are_asked_at_once(bench: Bench) -> None:
    """What came of each is told when nothing is left to wait for, in the order of the questions."""
    bench.run(ask_both)
    dialed = [effect.address for effect in bench.desk.effects if isinstance(effect, OpenChannel)]
    bench.connect()
    bench.answer(b"well")
    waited = list(bench.ended)
    bench.desk.feed(ChannelFailed(OTHER, "connection refused", bench.desk.now_ms, CALLS))

    assert (dialed, waited) == ([OTHER, PEER], [])
    assert bench.ended == [[f"cannot connect to {OTHER}: connection refused", b"well"]]


def test_several_silent_peers_are_given_up_together(bench: Bench) -> None:
    """They take no longer than one."""
    bench.run(ask_both)
    bench.desk.pass_time(1_000, "calls")

    assert bench.ended == [[f"{OTHER} did not answer in time", f"{PEER} did not answer in time"]]


def test_peers_for_whom_too_many_wait_are_not_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is told as a failure, and the work goes on."""
    monkeypatch.setattr(rpc, "WAITING_MAX", 0)
    bench.run(ask_both)

    assert bench.ended == [[f"too many requests wait for {OTHER}", f"too many requests wait for {PEER}"]]


def test_who_asks_nobody_does_not_wait(bench: Bench) -> None:
    """There is nothing to wait for."""

    async def ask_nobody() -> object:
        return await call_all(())

    bench.run(ask_nobody)

    assert bench.ended == [[]]


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_waiting_for_the_disk_is_waiting_for_a_sync(flush: str) -> None:
    """Also where answers do not wait for one: what was staged is written, and then synced."""
    bench = Bench(flush)
    bench.desk.make_topic("T")

    async def keep() -> object:
        stage(bench.desk.store, b"kept", topic="T")
        await Synced(bench.desk.store.log.staged_end)
        return "on disk"

    bench.run(keep)
    assert bench.ended == []
    assert bench.desk.store.log.written > 0
    bench.desk.sync()

    assert bench.ended == ["on disk"]


def test_a_disk_that_fails_ends_the_waiting(bench: Bench) -> None:
    """With an answer that says so."""

    async def keep() -> object:
        await Synced(1)

    bench.run(keep)
    bench.desk.feed(DiskFault("no more", bench.desk.now_ms))

    (ended,) = bench.ended
    assert isinstance(ended, Refusal)
    assert "no more" in ended.remark


def test_pauses_end_in_the_order_of_their_ends(bench: Bench) -> None:
    """Whichever began first."""

    async def rest(ms: int) -> object:
        await Pause(ms)
        return ms

    bench.run(lambda: rest(300))
    bench.run(lambda: rest(100))
    bench.run(lambda: rest(200))
    bench.desk.pass_time(200, PAUSE_TIMER)
    assert bench.ended == [100, 200]
    bench.desk.pass_time(100, PAUSE_TIMER)

    assert bench.ended == [100, 200, 300]
