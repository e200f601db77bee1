"""Sends envelopes (7020) with clients' requests to another broker, and returns the answers.

    requests of one client ─> envelope number ─> sent, and repeated under that number ─> answers by the client's opaques

A repetition names the process that may have received the envelope before. A later process of that broker cannot know
what the earlier one stored, and refuses. An envelope names the queue of its requests, and the lowest generation in
which the receiver may lead it. The answer names the leader. This module uses neither to make a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import Pause, PeerCall
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import Identity
from holdfast.model.errors import PeerFailed, RemoteProtocolError
from holdfast.model.queue import QueueKey
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
# The receiver processed the envelope, or processed nothing because it does not lead the queue.
_ANSWERED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.NOT_LEADER_FOR_QUEUE})


class WaitingRequest(msgspec.Struct, eq=False):
    """A waiting request, with everything needed to process it later.

    Attributes:
        frame: The frame as the client sent it.
        sender: Who sent it. Another user may use the channel later.
        hops: How often the request was relayed before it arrived here.
        deadline_ms: When its sender gives up.
    """

    channel: ChannelId
    sender: Identity
    frame: bytes
    command: Command
    hops: int
    deadline_ms: int


class Target(msgspec.Struct, frozen=True):
    """The presumed leader of a queue.

    Attributes:
        generation: The lowest generation in which it may lead; None if it is not known.
    """

    queue_key: QueueKey
    address: str
    generation: int | None = None


class RelayClient:
    """Sends numbered envelopes, and remembers which process answered at each address.

    Args:
        broker: This broker's name.
        boot: The incarnation of this process.
    """

    def __init__(self, broker: str, boot: int, turn: Turn) -> None:
        self._broker = broker
        self._boot = boot
        self._turn = turn
        self._number = 0
        self._unanswered: set[int] = set()
        self._boots: dict[str, int] = {}  # address to the process that answered there

    async def request(self, waiting: WaitingRequest, target: Target, timeout_ms: int) -> Command:
        """Return the answer to an envelope with one idempotent request.

        Raises:
            PeerFailed: No answer came.
        """
        self._number += 1
        answer = await PeerCall(target.address, self._build_envelope([waiting], self._number, target, None), timeout_ms)
        self._record_boot(target.address, answer)
        return answer

    async def request_replica(self, waiting: WaitingRequest, replica: Target | None, timeout_ms: int) -> bytes:
        """Return the answer of a replica whose leader is down; empty if there is no replica or it does not answer."""
        if replica is not None:
            with suppress(PeerFailed):
                answer = await self.request(waiting, replica, timeout_ms)
                if answer.code == ResponseCode.SUCCESS and not is_not_led(answer.body):
                    return answer.body
        return b""

    async def send_reliably(self, batch: list[WaitingRequest], target: Target) -> Command:
        """Return the answer to an envelope with sends; repeat it while the same process may answer.

        The answer may say that nothing was stored, because the receiver does not lead the queue.

        Raises:
            PeerFailed: No answer came. Unless the error says that the envelope was unsent, the outcome is unknown.
        """
        self._number += 1
        number = self._number
        self._unanswered.add(number)
        try:
            return await self._send_until_answered(batch, number, target)
        finally:
            self._unanswered.discard(number)

    async def _send_until_answered(self, batch: list[WaitingRequest], number: int, target: Target) -> Command:
        to_boot: int | None = None
        address = target.address
        while True:
            remaining_ms = max(batch[0].deadline_ms - self._turn.now_ms, 0) + _SLACK_MS
            try:
                answer = await PeerCall(address, self._build_envelope(batch, number, target, to_boot), remaining_ms)
            except PeerFailed as error:
                if error.is_unsent and to_boot is None:
                    raise
                to_boot = self._boots.get(address)
                if to_boot is None or batch[0].deadline_ms <= self._turn.now_ms:
                    raise PeerFailed(str(error)) from error
                await Pause(_REPEAT_MS)
                continue
            if answer.code not in _ANSWERED:
                raise PeerFailed(f"{address} refused: {answer.remark}", is_unsent=_has_stored_nothing(answer))
            self._record_boot(address, answer)
            return answer

    def _build_envelope(self, batch: list[WaitingRequest], number: int, target: Target, to_boot: int | None) -> Command:
        first = batch[0]
        fields = RelayFields(
            source=self._broker,
            boot=self._boot,
            number=number,
            settled=min(self._unanswered, default=number),
            hops=first.hops + 1,
            client=first.sender.address,
            user=first.sender.proven_user,
            to_boot=to_boot,
            topic=target.queue_key[0],
            queue=target.queue_key[1],
            generation=target.generation,
        )
        body = b"".join(waiting.frame for waiting in batch)
        return Command(code=RequestCode.RELAY, fields=to_fields(fields), body=body)

    def _record_boot(self, address: str, answer: Command) -> None:
        try:
            self._boots[address] = from_fields(RelayAnswer, answer.fields).boot
        except BadField:
            self._boots.pop(address, None)


def choose_batch(waiting: Iterable[WaitingRequest]) -> list[WaitingRequest]:
    """Return the first requests of *waiting* that come from one client and fit into one envelope."""
    batch: list[WaitingRequest] = []
    size = 0
    opaques: set[int] = set()
    for each in waiting:
        size += len(each.frame)
        is_other_client = bool(batch) and _client_of(each) != _client_of(batch[0])
        is_full = bool(batch) and (size > _SIZE_MAX or len(batch) >= _COUNT_MAX)
        # The answers to two requests with one opaque could not be distinguished.
        if is_other_client or is_full or each.command.opaque in opaques:
            break
        opaques.add(each.command.opaque)
        batch.append(each)
    return batch


def _client_of(waiting: WaitingRequest) -> tuple[ChannelId, str, int]:
    """Return what all requests in one envelope have in common: an envelope names one user."""
    return waiting.channel, waiting.sender.proven_user, waiting.hops


def answers_in(body: bytes) -> dict[int, tuple[Command, bytes]]:
    """Return the answers in an envelope by the opaque of their request, each with its bytes."""
    try:
        frames, _ = split_frames(memoryview(body))
        found = [(decode_command(frame), copy_frame(frame)) for frame in frames]
    except RemoteProtocolError:
        return {}  # A malformed answer counts as no answer.
    return {command.opaque: (command, data) for command, data in found}


def is_not_led(body: bytes) -> bool:
    """Return whether an answer says that the queue is led elsewhere. A large answer holds records, and does not."""
    if len(body) > _REFUSAL_SIZE_MAX:
        return False
    return any(command.code == ResponseCode.NOT_LEADER_FOR_QUEUE for command, _ in answers_in(body).values())


def _has_stored_nothing(answer: Command) -> bool:
    """Return whether the broker that refused an envelope stored nothing of it."""
    return answer.code in {ResponseCode.INVALID_PARAMETER, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
