"""Envelopes (7020) on their way to another broker: requests of clients in them, and the answers that come back.

    requests of one client ─> a number ─> asked, and asked again under that number ─> answers by the client's numbers

A repetition names the process that may have got the envelope before: another one cannot know what that one stored, and
refuses. An envelope says which queue its requests are about, and in which generation the receiver is believed to lead
it; its answer says who does. Knows nothing else of queues, and decides nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import Pause, PeerCall, Procedure
from holdfast.broker.flow.turn import Errands
from holdfast.machine.events import ChannelId
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, decode_command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.requests.relay import RelayAnswer, RelayFields, copy_frame

_SIZE_MAX: Final = 1024 * 1024
_COUNT_MAX: Final = 256
_REPEAT_MS: Final = 10
_SLACK_MS: Final = 300
_REFUSAL_SIZE_MAX: Final = 4_096
# Taken; or not, as the receiver is not who the sender takes it for.
_ANSWERED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.NOT_LEADER_FOR_QUEUE})


Place = tuple[str, int]
"""Topic and logical queue."""


class Waiting(msgspec.Struct, eq=False):
    """A request that waits, with everything needed to take it later.

    Attributes:
        frame: As it was read.
        hops: How often it was passed on before it came here.
        deadline_ms: When its sender has given up.
    """

    channel: ChannelId
    peer: str
    frame: bytes
    command: Command
    hops: int
    deadline_ms: int


class Target(msgspec.Struct, frozen=True):
    """Who is believed to lead a queue.

    Attributes:
        generation: In which it leads, at least; -1 when that is not known.
    """

    place: Place
    address: str
    generation: int = -1


class Envelopes:
    """Numbers them, and remembers who answered.

    Args:
        broker: This broker's name.
        boot: Which process this is.
    """

    def __init__(self, broker: str, boot: int, errands: Errands) -> None:
        self._broker = broker
        self._boot = boot
        self._errands = errands
        self._number = 0
        self._unsettled: set[int] = set()
        self._boots: dict[str, int] = {}  # address to the process that answered there

    def ask(self, waiting: Waiting, target: Target, timeout_ms: int) -> Procedure[Command]:
        """Return the answer to an envelope with one request, which changes nothing when it comes twice.

        Raises:
            PeerFailed: there is none.
        """
        self._number += 1
        answer: Command = yield PeerCall(
            target.address, self._enclose([waiting], self._number, target, None), timeout_ms
        )
        self._note_boot(target.address, answer)
        return answer

    def ask_copy(self, waiting: Waiting, replica: Target | None, timeout_ms: int) -> Procedure[bytes]:
        """Return what a replica of a leader that is down answers; nothing without one, or when it does not."""
        if replica is not None:
            with suppress(PeerFailed):
                answer = yield from self.ask(waiting, replica, timeout_ms)
                if answer.code == ResponseCode.SUCCESS and not is_not_led(answer.body):
                    return answer.body
        return b""

    def ask_surely(self, batch: list[Waiting], target: Target) -> Procedure[Command]:
        """Return the answer to an envelope with sends; ask again while the same process may answer.

        It may say that nothing was taken, as the receiver is not the leader that it was taken for.

        Raises:
            PeerFailed: there is none; unless it says that it was not even sent, nobody knows what became of it.
        """
        self._number += 1
        number = self._number
        self._unsettled.add(number)
        try:
            return (yield from self._ask_again(batch, number, target))
        finally:
            self._unsettled.discard(number)

    def _ask_again(self, batch: list[Waiting], number: int, target: Target) -> Procedure[Command]:
        to_boot: int | None = None
        address = target.address
        while True:
            left_ms = max(batch[0].deadline_ms - self._errands.now_ms, 0) + _SLACK_MS
            try:
                answer: Command = yield PeerCall(address, self._enclose(batch, number, target, to_boot), left_ms)
            except PeerFailed as error:
                if error.is_unsent and to_boot is None:
                    raise
                to_boot = self._boots.get(address)
                if to_boot is None or batch[0].deadline_ms <= self._errands.now_ms:
                    raise PeerFailed(str(error)) from error
                yield Pause(_REPEAT_MS)
                continue
            if answer.code not in _ANSWERED:
                raise PeerFailed(f"{address} refused: {answer.remark}", is_unsent=_stored_nothing(answer))
            self._note_boot(address, answer)
            return answer

    def _enclose(self, batch: list[Waiting], number: int, target: Target, to_boot: int | None) -> Command:
        first = batch[0]
        fields = RelayFields(
            source=self._broker,
            boot=self._boot,
            number=number,
            settled=min(self._unsettled, default=number),
            hops=first.hops + 1,
            client=first.peer,
            to_boot=to_boot,
            topic=target.place[0],
            queue=target.place[1],
            generation=target.generation,
        )
        body = b"".join(waiting.frame for waiting in batch)
        return Command(code=RequestCode.RELAY, fields=to_fields(fields), body=body)

    def _note_boot(self, address: str, answer: Command) -> None:
        try:
            self._boots[address] = from_fields(RelayAnswer, answer.fields).boot
        except BadField:
            self._boots.pop(address, None)


def choose_batch(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Return as many of the first of *waiting* as are of one client and go into one envelope."""
    batch: list[Waiting] = []
    size = 0
    opaques: set[int] = set()
    for each in waiting:
        size += len(each.frame)
        is_other = bool(batch) and (each.channel, each.hops) != (batch[0].channel, batch[0].hops)
        is_much = bool(batch) and (size > _SIZE_MAX or len(batch) >= _COUNT_MAX)
        # Two requests of one number could not be told apart.
        if is_other or is_much or each.command.opaque in opaques:
            break
        opaques.add(each.command.opaque)
        batch.append(each)
    return batch


def answers_in(body: bytes) -> dict[int, tuple[Command, bytes]]:
    """Return the answers in an envelope by the number of the request, each with its bytes."""
    try:
        frames, _ = split_frames(memoryview(body))
        found = [(decode_command(frame), copy_frame(frame)) for frame in frames]
    except RemoteProtocolError:
        return {}  # A leader that speaks nonsense has not answered.
    return {command.opaque: (command, data) for command, data in found}


def is_not_led(body: bytes) -> bool:
    """Return whether an answer says that the queue is led elsewhere. One with records in it does not."""
    if len(body) > _REFUSAL_SIZE_MAX:
        return False
    return any(command.code == ResponseCode.NOT_LEADER_FOR_QUEUE for command, _ in answers_in(body).values())


def _stored_nothing(answer: Command) -> bool:
    """Return whether who refused an envelope took nothing of it."""
    return answer.code in {ResponseCode.INVALID_PARAMETER, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
