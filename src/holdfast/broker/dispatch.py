"""Dispatches incoming frames: runs of sends, pulls, and single requests.

    reads of a turn ─┬─ only sends; adjacent reads form one run ─> staged ───┐
                     └─ anything else, read by read ─┬─ pulls ──> views      ├─> one write, answers per channel
                                                     └─ requests ─> handler ─┘

Invariant: nothing is staged between events. The records that a read stages are written or discarded before its
processing ends.
"""

from __future__ import annotations

import types
from typing import Final, cast

import msgspec

from holdfast.broker.assembly import Components
from holdfast.broker.completion import EventCompletion
from holdfast.broker.consume.physical_pull import Puller
from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Answer, Refusal, Request, not_supported
from holdfast.broker.options import BrokerOptions
from holdfast.machine.effects import CloseChannel, Effect, Log, Piece
from holdfast.machine.events import ChannelId, FramesReceived, ReadsReceived
from holdfast.machine.reads import handle_isolated
from holdfast.model.errors import DiskFailed, LocalProtocolError, RecordRefused, RemoteProtocolError
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.replica_log import REPLICA_REFUSAL
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, decode_command, encode_command, response
from holdfast.wire.frames.fields import BadField
from holdfast.wire.frames.frame import JSON, Frame, split_frames
from holdfast.wire.frames.host import pack_host
from holdfast.wire.requests.pull import PullHeader, decode_pull, pull_header
from holdfast.wire.requests.send import SendHeader, decode_send, send_header

_SEND_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_PULL_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_HOT_SEND_CODES: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
# First bytes of a JSON header that the pull decoder accepts. Other spellings use the general path.
_PEEK_SIZE: Final = 12
_HOT_PULLS: Final = frozenset({b'{"code":11,"', b'{"code":361,'})
_DELIVERED_SIZE_MAX: Final = 32 * 1024 * 1024
# Requests that change a broker's tables. A replica refuses them: its next sync with the master would undo the change.
_MASTER_ONLY: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.CREATE_FROM_TEMPLATE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.MOVE_QUEUES,
        RequestCode.FORCE_QUEUES,
        RequestCode.PREPARE_QUEUES,
        RequestCode.OPEN_QUEUES,
        RequestCode.DISCARD_SEGMENTS,
        RequestCode.DELETE_MAPPING,
    }
)
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Dispatcher:
    """Decodes frames and passes each request to its handler."""

    def __init__(
        self, options: BrokerOptions, store: MessageStore, components: Components, completion: EventCompletion
    ) -> None:
        self._options = options
        self._is_replica = options.is_replica
        self._store = store
        self._components = components
        self._completion = completion
        self._static_topics = components.mappings.topics()
        self._led_queues = components.pull_handler.led_queues
        self._relay = components.relay
        self._handlers = components.handlers()
        self._born_hosts: dict[ChannelId, bytes] = {}
        self._peers: dict[ChannelId, str] = {}
        self._delivered_size = 0  # bytes in the pull answers of the current read

    def open(self, channel: ChannelId, peer: str) -> None:
        """Register a connection."""
        self._peers[channel] = peer
        try:
            self._born_hosts[channel] = pack_host(peer)
        except LocalProtocolError:  # a peer without a numeric address: a socket of the same machine
            self._born_hosts[channel] = pack_host("127.0.0.1:0")

    def close(self, channel: ChannelId) -> None:
        """Forget a connection."""
        self._peers.pop(channel, None)
        self._born_hosts.pop(channel, None)

    def replay(self, channel: ChannelId, data: bytes, now_ms: int) -> list[Effect]:
        """Process a request that was held, or that another broker relayed; return [] if its channel is gone."""
        if channel not in self._peers:
            return []
        frames, _ = split_frames(memoryview(data))
        return handle_isolated(self.handle_read, (FramesReceived(channel, frames, now_ms),))

    def handle_reads(self, event: ReadsReceived) -> list[Effect]:
        """Process the sends of adjacent reads as one run and every other read separately, all in order."""
        effects: list[Effect] = []
        sends: list[FramesReceived] = []
        headers: list[SendHeader] = []
        for read in event.reads:
            decoded = _decode_sends(read.frames)
            if decoded is not None:
                sends.append(read)
                headers += decoded
                continue
            if sends:
                self._handle_sends(sends, headers, effects)
                sends, headers = [], []
            effects += handle_isolated(self._handle_mixed, (read,))
        if sends:
            self._handle_sends(sends, headers, effects)
        return effects

    def handle_read(self, event: FramesReceived) -> list[Effect]:
        """Process the frames of one channel."""
        headers = _decode_sends(event.frames)
        if headers is None:
            return self._handle_mixed(event)
        effects: list[Effect] = []
        self._store_sends([event], headers, effects)
        return effects

    def _handle_mixed(self, event: FramesReceived) -> list[Effect]:
        """Process the frames of one channel that are not all sends."""
        effects: list[Effect] = []
        answers: list[Piece] = []
        before = self._store.log.written
        self._delivered_size = 0
        try:
            for frame in event.frames:
                if not self._handle_frame(frame, event, answers, effects):
                    break  # Ignore the rest: a peer with bad headers gets one log line, not one per frame.
        except BaseException:
            # The staged records point into a receive buffer that the next turn overwrites.
            self._store.discard()
            self._components.sink_progress.roll_back()
            raise
        self._completion.write(((event.channel, answers),), effects, event.now_ms, before)
        if self._components.topics.changed:
            self._components.registration.announce_changes(effects)
        return effects

    def _handle_sends(self, reads: list[FramesReceived], headers: list[SendHeader], effects: list[Effect]) -> None:
        """Store the sends of *reads* as one run; if that fails, store each read separately to isolate the bad one."""
        try:
            self._store_sends(reads, headers, effects)
        except Exception:  # noqa: BLE001 - raised again by the read that caused it
            effects += handle_isolated(self.handle_read, reads)

    def _store_sends(self, reads: list[FramesReceived], headers: list[SendHeader], effects: list[Effect]) -> None:
        """Stage and write sends of one or more channels. On any exception, discard everything that was staged."""
        hosts, before, now_ms = self._born_hosts, self._store.log.written, reads[0].now_ms
        try:
            if len(reads) == len(headers):
                bodies = [read.frames[0].body for read in reads]
                born_hosts = [hosts[read.channel] for read in reads]
            else:
                bodies = [frame.body for read in reads for frame in read.frames]
                born_hosts = [host for read in reads for host in [hosts[read.channel]] * len(read.frames)]
            answers = self._components.fast_sends.handle_run(headers, bodies, born_hosts, now_ms)
        except BaseException:
            self._store.discard()
            self._components.sink_progress.roll_back()
            self._components.fast_sends.away_indexes = []
            raise
        if self._components.fast_sends.away_indexes:
            self._divert_sends([(frame, read) for read in reads for frame in read.frames], headers)
        if len(reads) == len(answers):
            outgoing = [(read.channel, [answer]) for read, answer in zip(reads, answers, strict=True)]
        else:
            outgoing, at = [], 0
            for read in reads:
                end = at + len(read.frames)
                outgoing.append((read.channel, answers[at:end]))
                at = end
        self._completion.write(outgoing, effects, now_ms, before)
        if self._components.topics.changed:
            self._components.registration.announce_changes(effects)

    def _handle_frame(self, frame: Frame, event: FramesReceived, answers: list[Piece], effects: list[Effect]) -> bool:
        """Process one frame of a read that is not all sends; return False if it cannot be decoded."""
        if bytes(frame.header[:_PEEK_SIZE]) in _HOT_PULLS:
            return self._handle_pull(frame, event, answers, effects)
        headers = _decode_sends([frame])
        if headers is None:
            return self._handle_general(frame, event, answers, effects)
        answers += self._components.fast_sends.handle_run(
            headers, [frame.body], [self._born_hosts[event.channel]], event.now_ms
        )
        if self._components.fast_sends.away_indexes:
            self._divert_sends([(frame, event)], headers)
        return True

    def _divert_sends(self, run: list[tuple[Frame, FramesReceived]], headers: list[SendHeader]) -> None:
        """Divert those sends of a run that belong to other brokers."""
        diverted, self._components.fast_sends.away_indexes = self._components.fast_sends.away_indexes or [], []
        for at in diverted:
            frame, read = run[at]
            fields = headers[at].fields
            queue_key, command = (fields.topic, fields.queue_id), decode_command(frame)
            if queue_key[0] in self._static_topics:
                self._divert(frame, command, queue_key, read.channel)
            else:
                self._components.auto_create_guard.divert(
                    frame, command, queue_key, read.channel, self._peers[read.channel]
                )

    def _divert(self, frame: Frame, command: Command, queue_key: tuple[str, int], channel: ChannelId) -> None:
        self._components.relay.divert(frame, command, queue_key, channel, self._peers[channel])

    def _handle_pull(self, frame: Frame, event: FramesReceived, answers: list[Piece], effects: list[Effect]) -> bool:
        try:
            header = decode_pull(frame.header)
        except _DECODE_ERRORS:
            return self._handle_general(frame, event, answers, effects)
        queue_key = (header.fields.topic, header.fields.queue_id)
        if (
            queue_key[0] in self._static_topics
            and queue_key not in self._led_queues
            and self._relay.is_pull_away(header.fields)
        ):
            self._divert(frame, decode_command(frame), queue_key, event.channel)
            return True
        self._answer_pull(header, JSON, event, answers, effects)
        return True

    def _answer_pull(
        self,
        header: PullHeader,
        serializer: int,
        event: FramesReceived,
        answers: list[Piece],
        effects: list[Effect],
    ) -> None:
        """Answer a pull, or put it off when this read has been answered with too many bytes.

        One read may hold thousands of pulls, each worth megabytes, from a peer that perhaps never reads the answers.
        """
        if self._delivered_size > _DELIVERED_SIZE_MAX:
            answers.append(self._components.pull_handler.answer_too_many(header, serializer))
            return
        puller = Puller(event.channel, serializer, event.now_ms)
        # A consumer without a unit reads here whether or not units are open.
        handler = self._components.pull_handler if header.fields.unit is None else self._components.local_reads
        pulled = handler.handle_pull(header, puller)
        if isinstance(pulled, list):
            self._delivered_size += sum(map(len, pulled))
            answers += pulled
            return
        if pulled is not None:
            self._delivered_size += (
                self._options.pull_size_max
            )  # Cold: the real size is unknown until it has been read.
        self._completion.deliver(pulled, event.channel, event.now_ms, answers, effects)

    def _handle_general(self, frame: Frame, event: FramesReceived, answers: list[Piece], effects: list[Effect]) -> bool:
        """Process a request of any kind, or a response to a request of this broker; return False if it is neither."""
        try:
            command = decode_command(frame)
        except RemoteProtocolError as error:
            effects.append(Log("warning", "bad header", {"peer": self._peers[event.channel], "reason": str(error)}))
            effects.append(CloseChannel(event.channel))
            return False
        if command.is_response:
            outcome = self._components.peer_calls.handle_response(event.channel, command)
            if outcome is None:
                effects += self._components.handle_response(event.channel, command)
            else:
                self._completion.scheduler.complete_calls([outcome], effects, event.now_ms)
            return True
        request = Request(
            command=command,
            channel=event.channel,
            peer=self._peers[event.channel],
            now_ms=event.now_ms,
            effects=effects,
        )
        try:
            queue_key = self._relay.find_away(command) if self._static_topics else None
            if queue_key is not None:
                self._divert(frame, command, queue_key, event.channel)
            elif command.code in _SEND_CODES:
                headers = [send_header(command)]
                answers += self._components.fast_sends.handle_run(
                    headers,
                    [command.body],
                    [self._born_hosts[event.channel]],
                    event.now_ms,
                    command.serializer,
                )
                if self._components.fast_sends.away_indexes:
                    self._divert_sends([(frame, event)], headers)
            elif command.code in _PULL_CODES:
                self._answer_pull(pull_header(command), command.serializer, event, answers, effects)
            else:
                self._dispatch(request, answers)
        except (BadField, RemoteProtocolError) as error:
            self._answer(request, Refusal(ResponseCode.INVALID_PARAMETER, str(error)), answers)
        except (RecordRefused, DiskFailed) as error:
            self._answer(request, Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)), answers)
        return True

    def _dispatch(self, request: Request, answers: list[Piece]) -> None:
        if self._is_replica and request.command.code in _MASTER_ONLY:
            self._answer(request, Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, REPLICA_REFUSAL), answers)
            return
        handler = self._handlers.get(cast("RequestCode", request.command.code))
        if handler is None:
            self._answer(request, not_supported(request.command.code), answers)
            return
        result = handler(request)
        if not isinstance(result, types.CoroutineType):
            self._answer(request, cast("Answer", result), answers)
            return

        def finish(ended: Answer | list[Piece], later: list[Effect]) -> None:
            pieces: list[Piece] = []
            self._answer(request, cast("Answer", ended), pieces)
            # Effects that the handler added after a wait belong to the present event, not to the one long answered.
            later += request.effects
            self._completion.write(((request.channel, pieces),), later, request.now_ms)

        effects = request.effects
        request.effects = []
        self._completion.scheduler.run(cast("Procedure[Answer]", result), finish, effects, request.now_ms)

    @staticmethod
    def _answer(request: Request, answer: Answer, answers: list[Piece]) -> None:
        """Append the answer to *request*, unless there is none or the request is one-way."""
        if answer is None or request.command.is_one_way:
            return
        if isinstance(answer, Refusal):
            answer = response(request.command, answer.code, answer.remark)
        answers.append(encode_command(answer))


def _decode_sends(frames: list[Frame]) -> list[SendHeader] | None:
    """Return the headers of a read that contains only plain sends; otherwise None."""
    if not frames[0].body:  # Mostly pulls. Other requests with a body are rare, and fail the checks below.
        return None
    try:
        if len(frames) == 1:
            header = decode_send(frames[0].header)
            return [header] if header.code in _HOT_SEND_CODES else None
        headers = [decode_send(frame.header) for frame in frames]
    except _DECODE_ERRORS:
        return None
    return headers if {header.code for header in headers} <= _HOT_SEND_CODES else None
