"""The name server as a machine: handles every request, timer and channel event.

    FramesReceived   105 in JSON: the hot loop, from a rendered answer     } all answers of one read
                     anything else: decoded, dispatched by code            } are one SendBytes
    ChannelClosed    the brokers that registered on it leave
    TimerFired       silent brokers leave; clients are notified of routes that changed
    FileWritten      KV changes are acknowledged; static topics and queue leases are safe

Pure: time comes with events, randomness is a parameter, and files are written through effects.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgspec

from holdfast.machine.effects import CloseChannel, Effect, Log, SendBytes, SetTimer
from holdfast.machine.events import (
    ChannelClosed,
    ChannelId,
    ChannelOpened,
    DiskFault,
    Event,
    FileWritten,
    FramesReceived,
    ReadsReceived,
    Started,
    TimerFired,
)
from holdfast.machine.readings import Readings
from holdfast.machine.reads import handle_isolated
from holdfast.model.errors import RemoteProtocolError
from holdfast.nameserver.cluster.broker_liveness import BrokerLiveness
from holdfast.nameserver.cluster.queue_leases import FILE as LEASES_FILE
from holdfast.nameserver.cluster.queue_leases import QueueLeases
from holdfast.nameserver.cluster.registry import Registry
from holdfast.nameserver.cluster.topics import TopicRequests
from holdfast.nameserver.cluster.unit_requests import UnitRequests
from holdfast.nameserver.config.kv_config import FILE as KV_FILE
from holdfast.nameserver.config.kv_config import KvStore
from holdfast.nameserver.config.kv_requests import TIMER as KV_TIMER
from holdfast.nameserver.config.kv_requests import KvRequests
from holdfast.nameserver.config.settings import Settings
from holdfast.nameserver.notices import ChangeCause
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.push.route_push import TIMER as PUSH_TIMER
from holdfast.nameserver.push.route_push import RoutePush
from holdfast.nameserver.request import Answer, Handlers, Refusal, Request
from holdfast.nameserver.routes.deletion_markers import DeletionMarkers
from holdfast.nameserver.routes.route_answer_cache import RouteAnswerCache
from holdfast.nameserver.routes.route_requests import Counters, RouteRequests, caller_of, viewer_of
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.nameserver.routes.static_topic_store import FILE as STATIC_FILE
from holdfast.nameserver.routes.static_topic_store import TIMER as STATIC_TIMER
from holdfast.nameserver.routes.static_topic_store import StaticTopicStore
from holdfast.nameserver.routes.unit_visibility import DEFAULT_VIEWER, Viewer
from holdfast.wire.cluster.route import (
    QUOTED_KEYS_VERSION,
    RouteAnswer,
    RouteFields,
    decode_route_caller,
    decode_route_query,
    is_mapping_aware,
    watching_head,
)
from holdfast.wire.cluster.watch import WATCHING_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import decode_command, encode_command, response
from holdfast.wire.frames.fields import BadField, from_fields
from holdfast.wire.frames.frame import JSON, Frame

SCAN_TIMER: Final = "scan"
_ROUTE: Final = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class NameServer:
    """A name server without I/O.

    Args:
        options: Settings of the operator.
        random: The only source of randomness.
        kv_content: Content of `kv_config.FILE` when the name server stopped; None if there was none.
        static_content: Content of `static_topic_store.FILE`, likewise.
        lease_content: Content of `queue_leases.FILE`, likewise.
        readings: Load of the machine; None if unknown.

    Raises:
        ConfigError: the KV content cannot be read.
    """

    def __init__(
        self,
        options: NameServerOptions,
        random: Random,
        *,
        kv_content: bytes | None = None,
        static_content: bytes | None = None,
        lease_content: bytes | None = None,
        readings: Readings | None = None,
    ) -> None:
        self.counters = Counters()
        self.routes = RouteTable()
        self.liveness = BrokerLiveness()
        self._settings = Settings(options)
        self._answer_cache = RouteAnswerCache(options.answer_cache_size_max)
        self._kv = KvStore(kv_content, is_durable=options.data is not None)
        self._kv_requests = KvRequests(self._kv)
        self._static_store = StaticTopicStore(self.routes.static, static_content, is_durable=options.data is not None)
        self.queue_leases = QueueLeases(self.routes.static, lease_content, is_durable=options.data is not None)
        self._scan_ms = 0  # duration of the scan timer that is set
        self.unit_requests = UnitRequests(self._kv, self.routes)
        self._deletions = DeletionMarkers(self._kv)
        self._registry = Registry(
            self.routes,
            self.liveness,
            self._kv,
            self._settings,
            self.unit_requests,
            self._deletions,
            self.queue_leases.mark_alive,
        )
        self._route_requests = RouteRequests(
            self.routes,
            self._answer_cache,
            self._kv,
            self._deletions,
            self._settings,
            lambda: self.unit_requests.switch,
            self.counters,
        )
        self.push = RoutePush(options, random, readings or Readings(), self._route_requests.route_digest)
        self._peers: dict[ChannelId, str] = {}
        self._handlers: Handlers = {
            **self._registry.handlers(),
            **TopicRequests(self.routes, self.liveness, self._deletions, random).handlers(),
            **self._kv_requests.handlers(),
            **self.unit_requests.handlers(),
            **self.queue_leases.handlers(),
            **self.push.handlers(),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_NAMESRV_CONFIG: self._get_settings,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._change_settings,
        }
        self._event_handlers: dict[type, Callable[[Any], list[Effect]]] = {
            ReadsReceived: lambda event: handle_isolated(self._frames_received, event.reads),
            Started: self._started,
            ChannelOpened: self._channel_opened,
            ChannelClosed: self._channel_closed,
            TimerFired: self._timer_fired,
            FileWritten: self._file_written,
            DiskFault: self._disk_failed,
        }

    def handle(self, event: Event) -> list[Effect]:
        """Apply *event* and return its effects, in order."""
        if type(event) is FramesReceived:
            return self._frames_received(event)
        handler = self._event_handlers.get(type(event))
        return handler(event) if handler is not None else []

    @property
    def channel_count(self) -> int:
        """How many connections are open."""
        return len(self._peers)

    # The hot loop.

    def _frames_received(self, event: FramesReceived) -> list[Effect]:
        effects: list[Effect] = []
        pieces: list[bytes] = []
        queries = 0
        standard, bare = self._answer_cache.standard, self._answer_cache.bare
        for frame in event.frames:
            if frame.serializer == JSON:
                try:
                    query = decode_route_query(frame.header)
                except _UNREADABLE:
                    pass  # Another request, or one that only the tolerant reader understands.
                else:
                    fields = query.fields
                    if query.code == _ROUTE and not query.flag:
                        is_bare = query.version < QUOTED_KEYS_VERSION and not fields.accept_standard_json_only
                        is_common = not (fields.scope or fields.zone_mode)
                        answer = (bare if is_bare else standard).get(fields.topic) if is_common else None
                        viewer = DEFAULT_VIEWER
                        if answer is None:
                            viewer, answer = self._find_cached(frame.header, fields, event.channel, is_bare=is_bare)
                        if answer is not None:
                            digits = b"%d" % query.opaque
                            count = len(digits)
                            is_watching = fields.watch and self.push.watch(event.channel, fields.topic, viewer)
                            head = watching_head(answer, count) if is_watching else answer.heads[count]
                            pieces += (head, digits, answer.tail)
                            queries += 1
                            continue
            try:
                pieces += self._answer(frame, event, effects)
            except RemoteProtocolError as error:
                self.counters.protocol_faults += 1
                effects += self._close(event.channel, str(error), pieces)
                return effects
        self.counters.route_queries += queries
        if pieces:
            effects.append(SendBytes(event.channel, pieces))
        return effects

    def _close(self, channel: ChannelId, reason: str, pieces: list[bytes]) -> list[Effect]:
        """Answer the frames before the unreadable one, then close the channel."""
        answers: list[Effect] = [SendBytes(channel, pieces)] if pieces else []
        log = Log("warning", "peer not understood", {"peer": self._peers.get(channel, ""), "reason": reason})
        return [*answers, log, CloseChannel(channel)]

    # Everything else.

    def _answer(self, frame: Frame, event: FramesReceived, effects: list[Effect]) -> list[bytes]:
        """Return the frame that answers a request; empty if it needs no answer, or is answered later.

        Raises:
            RemoteProtocolError: the header cannot be decoded.
        """
        command = decode_command(frame)
        if command.is_response:
            return []  # We send no requests, so a response belongs to none.
        self.counters.requests += 1
        request = Request(
            command=command,
            channel=event.channel,
            peer=self._peers.get(event.channel, ""),
            now_ms=event.now_ms,
            effects=effects,
        )
        answer = self._dispatch(request)
        self._publish(effects, event.now_ms, request.cause)
        if answer is None or command.is_one_way:
            return []
        if isinstance(answer, Refusal):
            self.counters.refusals += 1
            answer = response(command, answer.code, answer.remark, fields=answer.fields)
        return [encode_command(answer)]

    def _dispatch(self, request: Request) -> Answer:
        code = request.command.code
        handler = self._handlers.get(code)
        if handler is None:
            return Refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")
        try:
            return handler(request)
        except (BadField, RemoteProtocolError) as error:
            request.log("warning", "request not understood", code=code, reason=str(error))
            return Refusal(ResponseCode.SYSTEM_ERROR, str(error))

    def _route(self, request: Request) -> Answer:
        """Answer a 105 that the hot loop could not: not rendered yet, a binary header, or an unknown topic."""
        self.counters.route_queries += 1
        fields = from_fields(RouteFields, request.command.fields)
        caller = caller_of(request)
        viewer = viewer_of(fields, caller)
        answer = self._route_requests.find(request, fields, viewer, caller)
        if fields.watch and self.push.watch(request.channel, fields.topic, viewer):
            # Whatever the answer is: the topic may be created later.
            answer.fields[WATCHING_FIELD] = "true"
        return answer

    def _find_cached(
        self, header: memoryview, fields: RouteFields, channel: ChannelId, *, is_bare: bool
    ) -> tuple[Viewer, RouteAnswer | None]:
        """Return the sender of *header*, and its answer if that is not the common one and was rendered before."""
        is_common = not (fields.scope or fields.zone_mode)
        if is_common and fields.topic not in self.routes.static.by_name:
            return DEFAULT_VIEWER, None
        try:
            caller = decode_route_caller(header)
            viewer = DEFAULT_VIEWER if is_common else viewer_of(fields, caller.fields)
        except (*_UNREADABLE, BadField):
            return DEFAULT_VIEWER, None
        if caller.fields.wants_reports:
            return viewer, None if viewer.unit else self._answer_cache.reports.get(fields.topic)
        is_aware = caller.fields.reads_mappings or is_mapping_aware(caller.language, caller.version)
        peer = self._peers.get(channel, "")
        return viewer, self._route_requests.find_cached(
            fields.topic, viewer, is_aware=is_aware, peer=peer, is_bare=is_bare
        )

    def _get_settings(self, request: Request) -> Answer:
        return request.answer(body=self._settings.text())

    def _change_settings(self, request: Request) -> Answer:
        fault = self._settings.change(request.command.body)
        if fault is not None:
            return Refusal(ResponseCode.SYSTEM_ERROR, fault)
        # Whether routes carry the queue counts of ordered topics may have changed.
        self._answer_cache.drop_all()
        request.effects += self.push.routes_changed(list(self.push.watches.topics()), ChangeCause.TOPIC, request.now_ms)
        request.log("warning", "settings changed", text=request.command.body.decode(errors="replace"))
        return request.answer()

    # Events other than requests.

    def _channel_opened(self, event: ChannelOpened) -> list[Effect]:
        self._peers[event.channel] = event.peer
        return []

    def _channel_closed(self, event: ChannelClosed) -> list[Effect]:
        effects: list[Effect] = []
        self._peers.pop(event.channel, None)
        self.push.channel_closed(event.channel)
        self._registry.channel_closed(event.channel, effects)
        self._publish(effects, event.now_ms, ChangeCause.BROKER)
        return effects

    def _started(self, event: Started) -> list[Effect]:
        effects = self._static_store.started()
        self.unit_requests.started(event.now_ms)
        if self.queue_leases.fault is not None:
            fields: dict[str, object] = {"file": LEASES_FILE, "reason": self.queue_leases.fault}
            effects.append(Log("warning", "leases forgotten: their file cannot be read", fields))
        if self.unit_requests.fault is not None:
            forgotten: dict[str, object] = {"file": KV_FILE, "reason": self.unit_requests.fault}
            effects.append(Log("warning", "open units forgotten: they cannot be read", forgotten))
        if self._deletions.fault is not None:
            lost: dict[str, object] = {"file": KV_FILE, "reason": self._deletions.fault}
            effects.append(Log("warning", "deletion markers forgotten: they cannot be read", lost))
        self._publish(effects, event.now_ms, ChangeCause.BROKER)
        return effects + self._set_scan(event)

    def _timer_fired(self, event: TimerFired) -> list[Effect]:
        if event.name == PUSH_TIMER:
            return self.push.timer_fired(event.now_ms)
        if event.name == KV_TIMER:
            return self._kv_requests.retry()
        return self._static_store.pause_ended() if event.name == STATIC_TIMER else self._scan(event)

    def _scan(self, event: TimerFired) -> list[Effect]:
        effects: list[Effect] = []
        self._registry.expire(event.now_ms, effects)
        self.queue_leases.advance_time(self._scan_ms)
        self.routes.static.warn_withheld()
        self._publish(effects, event.now_ms, ChangeCause.BROKER)
        return effects + self._set_scan(event)

    def _set_scan(self, event: Started | TimerFired) -> list[Effect]:
        self._scan_ms = self._settings.scan_interval_ms
        return [SetTimer(SCAN_TIMER, event.now_ms + self._scan_ms)]

    def _file_written(self, event: FileWritten) -> list[Effect]:
        if event.path == STATIC_FILE:
            return self._static_store.written(event.now_ms)
        if event.path == LEASES_FILE:
            return self.queue_leases.written()
        return self._kv_requests.written() if event.path == KV_FILE else []

    def _disk_failed(self, event: DiskFault) -> list[Effect]:
        self.counters.disk_faults += 1
        effects: list[Effect] = [Log("error", "disk failed", {"reason": event.reason, "file": event.path})]
        if event.path == STATIC_FILE:
            return effects + self._static_store.failed(event.now_ms)
        if event.path == LEASES_FILE:
            return effects + self.queue_leases.failed(event.reason)
        return effects + self._kv_requests.failed(event.reason, event.now_ms) if event.path == KV_FILE else effects

    def _publish(self, effects: list[Effect], now_ms: int, cause: ChangeCause) -> None:
        """Drop the rendered answers that are out of date, and notify the clients that watch those topics."""
        effects += self.routes.static.pop_logs()
        effects += self._static_store.save_if_changed()
        changed = self.routes.pop_changes() | self._kv_requests.pop_changes()
        if self.unit_requests.pop_change():
            # Every route may have changed for some clients.
            self._answer_cache.drop_all()
            watched = list(self.push.watches.topics())
            effects += self.push.routes_changed(watched, ChangeCause.TOPIC, now_ms, is_urgent=True)
        if changed:
            self._answer_cache.drop(changed)
            effects += self.push.routes_changed(changed, cause, now_ms)
