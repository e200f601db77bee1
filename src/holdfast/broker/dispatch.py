"""Dispatches incoming frames: runs of sends, pulls, and single requests.

    reads of a turn ─┬─ only sends; adjacent reads form one run ─> staged ───┐
                     └─ anything else, read by read ─┬─ pulls ──> views      ├─> one write, answers per channel
                                                     └─ requests ─> handler ─┘

With access control, a read is a part of a run only if the door surely admits all of its sends. All other frames are
admitted or refused one by one.

Invariant: nothing is staged between events. The records that a read stages are written or discarded before its
processing ends.
"""

from __future__ import annotations

import types
from typing import Final, cast

import msgspec

from holdfast.access.door import require_rules
from holdfast.broker.assembly import Components
from holdfast.broker.completion import EventCompletion
from holdfast.broker.consume.physical_pull import Puller
from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Answer, Refusal, Request, not_supported
from holdfast.broker.options import BrokerOptions
from holdfast.machine.audit import describe_change, is_recorded, record_change
from holdfast.machine.effects import Piece
from holdfast.machine.events import ChannelId, FramesReceived, ReadsReceived
from holdfast.machine.reads import isolate_reads
from holdfast.model.access.identity import ANONYMOUS, Identity
from holdfast.model.access.resource import Action
from holdfast.model.errors import DiskFailed, LocalProtocolError, RecordRefused, RemoteProtocolError
from holdfast.model.queue import QueueKey
from holdfast.model.topic import DEAD_LETTER_PREFIX
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.replica_log import REPLICA_REFUSAL
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, decode_command, encode_command, response
from holdfast.wire.frames.fields import BadField
from holdfast.wire.frames.frame import JSON, Frame, split_frames
from holdfast.wire.frames.host import pack_host
from holdfast.wire.requests.permissions import for_group, for_topic
from holdfast.wire.requests.pull import PullHeader, decode_pull, pull_header
from holdfast.wire.requests.send import SendFields, SendHeader, decode_send, send_header
from holdfast.wire.requests.table import BROKER_REQUESTS, Path, RequestSpec

_HOT_SEND_CODES: Final = frozenset(
    code for code, spec in BROKER_REQUESTS.items() if spec.path is Path.SEND and spec.header is SendFields
)
# First bytes of a JSON header that the pull decoder accepts. Other spellings use the general path.
_PEEK_SIZE: Final = 12
_HOT_PULLS: Final = frozenset(
    (b'{"code":%d,"extFields"' % code)[:_PEEK_SIZE] for code, spec in BROKER_REQUESTS.items() if spec.path is Path.PULL
)
_DELIVERED_SIZE_MAX: Final = 32 * 1024 * 1024
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Dispatcher:
    """Decodes frames and passes each request to its handler."""

    def __init__(
        self, options: BrokerOptions, store: MessageStore, components: Components, completion: EventCompletion
    ) -> None:
        self._turn = components.turn
        self._options = options
        self._is_replica = options.is_replica
        self._store = store
        self._components = components
        self._completion = completion
        self._pulled_queues = components.pull_handler.pulled_queues
        self._relay = components.relay
        self._handlers = components.handlers()
        require_rules(self._handlers, BROKER_REQUESTS)
        # None if access control is off: then the hot paths ask for nothing else.
        self._guard = components.door if components.door.is_enabled else None
        self._born_hosts: dict[ChannelId, bytes] = {}
        self._peers: dict[ChannelId, str] = {}
        self._delivered_size = 0  # bytes in the pull answers of the current read

    def open(self, channel: ChannelId, peer: str) -> None:
        """Register a connection."""
        self._peers[channel] = peer
        self._components.door.channel_opened(channel, peer)
        try:
            self._born_hosts[channel] = pack_host(peer)
        except LocalProtocolError:  # a peer without a numeric address: a socket of the same machine
            self._born_hosts[channel] = pack_host("127.0.0.1:0")

    def close(self, channel: ChannelId) -> None:
        """Forget a connection."""
        self._peers.pop(channel, None)
        self._born_hosts.pop(channel, None)
        self._components.door.channel_closed(channel)

    def replay(self, channel: ChannelId, data: bytes, sender: Identity | None = None) -> None:
        """Process a request of *sender* that was held, or that another broker relayed, unless its channel is gone."""
        if channel in self._peers:
            frames, _ = split_frames(memoryview(data))
            read = FramesReceived(channel, frames, self._turn.now_ms)
            with self._components.door.assuming(sender):
                isolate_reads(self._turn, self.handle_read, (read,))

    def handle_reads(self, event: ReadsReceived) -> None:
        """Process the sends of adjacent reads as one run and every other read separately, all in order."""
        sends: list[FramesReceived] = []
        headers: list[SendHeader] = []
        guard = self._guard
        for read in event.reads:
            decoded = _decode_sends(read.frames)
            if decoded is not None and (guard is None or guard.admits_sends(read.channel, decoded, read.frames)):
                sends.append(read)
                headers += decoded
                continue
            if sends:
                self._handle_sends(sends, headers)
                sends, headers = [], []
            isolate_reads(self._turn, self._handle_mixed, (read,))
        if sends:
            self._handle_sends(sends, headers)

    def handle_read(self, event: FramesReceived) -> None:
        """Process the frames of one channel."""
        headers, guard = _decode_sends(event.frames), self._guard
        if headers is not None and (guard is None or guard.admits_sends(event.channel, headers, event.frames)):
            self._store_sends([event], headers)
        else:
            self._handle_mixed(event)

    def _handle_mixed(self, event: FramesReceived) -> None:
        """Process the frames of one channel that are not all sends."""
        answers: list[Piece] = []
        before, mark = self._store.log.written, self._turn.mark()
        self._delivered_size = 0
        try:
            for frame in event.frames:
                if not self._handle_frame(frame, event, answers):
                    break  # Ignore the rest: a peer with bad headers gets one log line, not one per frame.
        except BaseException:
            # The staged records point into a receive buffer that the next turn overwrites.
            self._store.discard()
            self._components.sink_progress.roll_back()
            raise
        self._completion.write(((event.channel, answers),), before)
        if self._components.topics.changed:
            self._components.registration.announce_changes(mark)

    def _handle_sends(self, reads: list[FramesReceived], headers: list[SendHeader]) -> None:
        """Store the sends of *reads* as one run; if that fails, store each read separately to isolate the bad one."""
        mark = self._turn.mark()
        try:
            self._store_sends(reads, headers)
        except Exception:  # noqa: BLE001 - raised again by the read that caused it
            self._turn.discard_effects(mark)
            isolate_reads(self._turn, self.handle_read, reads)

    def _store_sends(self, reads: list[FramesReceived], headers: list[SendHeader]) -> None:
        """Stage and write sends of one or more channels. On any exception, discard everything that was staged."""
        hosts, before, mark = self._born_hosts, self._store.log.written, self._turn.mark()
        try:
            if len(reads) == len(headers):
                bodies = [read.frames[0].body for read in reads]
                born_hosts = [hosts[read.channel] for read in reads]
            else:
                bodies = [frame.body for read in reads for frame in read.frames]
                born_hosts = [host for read in reads for host in [hosts[read.channel]] * len(read.frames)]
            answers = self._components.fast_sends.handle_run(headers, bodies, born_hosts)
        except BaseException:
            self._store.discard()
            self._components.sink_progress.roll_back()
            self._components.fast_sends.drain_away()
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
        self._completion.write(outgoing, before)
        if self._components.topics.changed:
            self._components.registration.announce_changes(mark)

    def _handle_frame(self, frame: Frame, event: FramesReceived, answers: list[Piece]) -> bool:
        """Process one frame of a read that is not all sends; return False if it cannot be decoded."""
        if bytes(frame.header[:_PEEK_SIZE]) in _HOT_PULLS:
            return self._handle_pull(frame, event, answers)
        headers, guard = _decode_sends([frame]), self._guard
        if headers is None or (guard is not None and not guard.admits_sends(event.channel, headers, [frame])):
            return self._handle_general(frame, event, answers)
        self._handle_send(headers[0], frame, frame.body, event, answers)
        return True

    def _divert_sends(self, run: list[tuple[Frame, FramesReceived]], headers: list[SendHeader]) -> None:
        """Divert those sends of a run that belong to other brokers."""
        for at in self._components.fast_sends.drain_away():
            frame, read = run[at]
            fields = headers[at].fields
            queue_key, command = (fields.topic, fields.queue_id), decode_command(frame)
            sender = self._components.door.identity_of(read.channel, command)
            self._components.auto_create_guard.divert(frame, command, queue_key, read.channel, sender)

    def _divert(self, frame: Frame, command: Command, queue_key: QueueKey, channel: ChannelId) -> None:
        sender = self._components.door.identity_of(channel, command)
        self._relay.divert(frame, command, queue_key, channel, sender)

    def _handle_pull(self, frame: Frame, event: FramesReceived, answers: list[Piece]) -> bool:
        try:
            header = decode_pull(frame.header)
        except _DECODE_ERRORS:
            return self._handle_general(frame, event, answers)
        sender = None
        if self._guard is not None:
            sender = self._guard.find_puller(event.channel, header, frame)
            if sender is None:
                return self._handle_general(frame, event, answers)
        if (header.fields.topic, header.fields.queue_id) not in self._pulled_queues:
            queue_key = self._relay.find_away(BROKER_REQUESTS[header.code], header.fields)
            if queue_key is not None:
                self._divert(frame, decode_command(frame), queue_key, event.channel)
                return True
        self._answer_pull(header, Puller(event.channel, JSON, sender), answers)
        return True

    def _answer_pull(self, header: PullHeader, puller: Puller, answers: list[Piece]) -> None:
        """Answer a pull, or put it off when this read has been answered with too many bytes.

        One read may hold thousands of pulls, each worth megabytes, from a peer that perhaps never reads the answers.
        """
        if self._delivered_size > _DELIVERED_SIZE_MAX:
            answers.append(self._components.pull_handler.answer_too_many(header, puller.serializer))
            return
        # A consumer without a unit reads here whether or not units are open.
        handler = self._components.pull_handler if header.fields.unit is None else self._components.local_reads
        pulled = handler.handle_pull(header, puller)
        if isinstance(pulled, list):
            self._delivered_size += sum(map(len, pulled))
            answers += pulled
            return
        if pulled is not None:
            # Cold: the real size is unknown until it has been read.
            self._delivered_size += self._options.pull_size_max
        self._completion.deliver(pulled, puller.channel, answers)

    def _handle_general(self, frame: Frame, event: FramesReceived, answers: list[Piece]) -> bool:
        """Process a request of any kind, or a response to a request of this broker; return False if it is neither."""
        try:
            command = decode_command(frame)
        except RemoteProtocolError as error:
            self._turn.log("warning", "bad header", peer=self._peers[event.channel], reason=str(error))
            self._turn.close(event.channel)
            return False
        if command.is_response:
            self._handle_response(event.channel, command)
            return True
        try:
            self._handle_request(frame, command, event, answers)
        except (BadField, RemoteProtocolError) as error:
            self._answer(command, Refusal(ResponseCode.INVALID_PARAMETER, str(error)), answers)
        except (RecordRefused, DiskFailed) as error:
            self._answer(command, Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)), answers)
        return True

    def _handle_response(self, channel: ChannelId, command: Command) -> None:
        """Resume the procedure that waits for a response."""
        self._completion.scheduler.complete_calls(self._components.rpc.handle_response(channel, command))

    def _handle_request(self, frame: Frame, command: Command, event: FramesReceived, answers: list[Piece]) -> None:
        """Process a request as its row in the table of requests says."""
        spec = BROKER_REQUESTS.get(command.code)
        if spec is None:
            self._answer(command, not_supported(command.code), answers)
            return
        if self._is_replica and not spec.on_replica:  # To every sender: this reveals nothing.
            self._answer(command, Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, REPLICA_REFUSAL), answers)
            return
        hot = _hot_header(spec, command)
        header = spec.decode(command) if hot is None else hot.fields
        sender = self._admit(spec, command, header, event.channel)
        if isinstance(sender, Refusal):
            if not self._park_refused(hot, command, event.channel, sender):
                self._answer(command, sender, answers)
        elif spec.path is Path.SEND:
            assert isinstance(hot, SendHeader)
            self._handle_send(hot, frame, command.body, event, answers, command.serializer)
        else:
            queue_key = self._relay.find_away(spec, header)
            if queue_key is not None:
                self._divert(frame, command, queue_key, event.channel)
            elif isinstance(hot, PullHeader):
                self._answer_pull(hot, Puller(event.channel, command.serializer, sender), answers)
            else:
                self._dispatch(self._to_request(spec, command, header, event.channel, sender), answers)

    def _park_refused(
        self, hot: SendHeader | PullHeader | None, command: Command, channel: ChannelId, refusal: Refusal
    ) -> bool:
        """Return whether a refused request is a pull that is answered later."""
        return isinstance(hot, PullHeader) and self._components.refused_pulls.park(
            channel, hot, command.serializer, refusal
        )

    def _to_request(
        self,
        spec: RequestSpec,
        command: Command,
        header: msgspec.Struct,
        channel: ChannelId,
        sender: Identity | None,
    ) -> Request:
        change = None
        if spec.rule.is_change:
            sender = sender or self._components.door.identity_of(channel, command)
            change = describe_change(spec, header, command.body) if is_recorded(spec, sender) else None
        return Request(
            command=command,
            header=header,
            channel=channel,
            peer=self._peers[channel],
            identity=sender or ANONYMOUS,
            change=change,
        )

    def _admit(
        self, spec: RequestSpec, command: Command, header: msgspec.Struct, channel: ChannelId
    ) -> Identity | Refusal | None:
        """Return who sends a request, or why it is refused; None if access control is off.

        Raises:
            RemoteProtocolError: its body cannot be read.
        """
        if self._guard is None:
            return None
        sender = self._guard.admit(command, spec, header, channel)
        if isinstance(sender, Refusal) or not isinstance(header, SendFields):
            return sender
        topic = header.topic
        if not self._components.auto_create_guard.creates(header):
            return sender
        group = topic.removeprefix(DEAD_LETTER_PREFIX)
        if topic != group and self._guard.permits(sender, for_group(group, frozenset({Action.SUB}))):
            return sender
        return self._guard.find_refusal(sender, (for_topic(topic, frozenset({Action.CREATE})),), command.code) or sender

    def _handle_send(
        self,
        header: SendHeader,
        frame: Frame,
        body: Piece,
        event: FramesReceived,
        answers: list[Piece],
        serializer: int = JSON,
    ) -> None:
        """Stage the message of a send that is alone in its run, or divert it."""
        hosts = [self._born_hosts[event.channel]]
        answers += self._components.fast_sends.handle_run([header], [body], hosts, serializer)
        if self._components.fast_sends.away_indexes:
            self._divert_sends([(frame, event)], [header])

    def _dispatch(self, request: Request, answers: list[Piece]) -> None:
        command = request.command
        result = self._handlers[command.code](request)
        if not isinstance(result, types.CoroutineType):
            self._finish(request, cast("Answer", result), answers)
            return

        def finish(ended: Answer | list[Piece]) -> None:
            pieces: list[Piece] = []
            self._finish(request, cast("Answer", ended), pieces)
            self._completion.write(((request.channel, pieces),))

        self._completion.scheduler.run(cast("Procedure[Answer]", result), finish)

    def _finish(self, request: Request, answer: Answer, answers: list[Piece]) -> None:
        if answer is not None:
            record_change(self._turn, request, answer)
        self._answer(request.command, answer, answers)

    @staticmethod
    def _answer(command: Command, answer: Answer, answers: list[Piece]) -> None:
        """Append the answer to a request, unless there is none or the request is one-way."""
        if answer is None or command.is_one_way:
            return
        if isinstance(answer, Refusal):
            answer = response(command, answer.code, answer.remark)
        answers.append(encode_command(answer))


def _hot_header(spec: RequestSpec, command: Command) -> SendHeader | PullHeader | None:
    """Return the header of a send or a pull from the general path; None for other requests.

    Raises:
        BadField: a field is missing or cannot be read.
    """
    if spec.path is Path.SEND:
        return send_header(command, spec.header)
    return pull_header(command) if spec.path is Path.PULL else None


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
