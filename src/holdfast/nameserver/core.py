"""The name server as a machine: builds its components, and passes each event to them.

    FramesReceived   105 in JSON: the hot loop, from a rendered answer     } all answers of one read
                     anything else: decoded, dispatched by code            } are one SendBytes
    ChannelClosed    the brokers that registered on it leave
    TimerFired       silent brokers leave; clients are notified of routes that changed
    FileWritten      KV changes are acknowledged; static topics and queue leases are safe

Pure: time comes with events, randomness is a parameter, and files are written through effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.access.acl_follower import AclFollower
from holdfast.access.authority import Authority
from holdfast.access.directory_store import AccessStore
from holdfast.access.door import Door, require_rules
from holdfast.access.login_server import LoginServer
from holdfast.access.role_secrets import RoleSecrets
from holdfast.access.rule_requests import RuleRequests
from holdfast.access.sessions import Sessions
from holdfast.access.sync_requests import SyncRequests
from holdfast.access.user_requests import UserRequests
from holdfast.machine.audit import describe_change, is_recorded, record_change
from holdfast.machine.component import Component, collect_handlers
from holdfast.machine.effects import Effect, SendBytes
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
    Stopping,
    TimerFired,
)
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.readings import Readings
from holdfast.machine.reads import isolate_reads
from holdfast.machine.request import Answer, Handlers, Refusal, Request, not_supported
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import ANONYMOUS
from holdfast.model.errors import RemoteProtocolError
from holdfast.nameserver.cluster.access_push import AccessPush
from holdfast.nameserver.cluster.broker_liveness import BrokerLiveness
from holdfast.nameserver.cluster.queue_leases import QueueLeases
from holdfast.nameserver.cluster.registry import Registry
from holdfast.nameserver.cluster.topics import TopicRequests
from holdfast.nameserver.cluster.unit_requests import UnitRequests
from holdfast.nameserver.config.kv_config import KvStore
from holdfast.nameserver.config.kv_requests import KvRequests
from holdfast.nameserver.config.settings import Settings
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.push.publication import Publication
from holdfast.nameserver.push.route_push import RoutePush
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes.deletion_markers import DeletionMarkers
from holdfast.nameserver.routes.open_units import OpenUnits
from holdfast.nameserver.routes.route_answer_cache import RouteAnswerCache
from holdfast.nameserver.routes.route_requests import Counters, RouteRequests, viewer_of
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.nameserver.routes.static_topic_store import StaticTopicStore
from holdfast.nameserver.routes.unit_visibility import DEFAULT_VIEWER, Viewer
from holdfast.nameserver.scan import Scan
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.route import (
    QUOTED_KEYS_VERSION,
    RouteAnswer,
    RouteFields,
    RouteQueryFields,
    decode_route_caller,
    decode_route_query,
    is_mapping_aware,
    watching_head,
)
from holdfast.wire.cluster.watch import WATCHING_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, decode_command, encode_command, response
from holdfast.wire.frames.fields import BadField
from holdfast.wire.frames.frame import JSON, Frame
from holdfast.wire.requests.table import NAME_SERVER_REQUESTS, RequestSpec

_ROUTE: Final = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class NameServer:
    """A name server without I/O.

    Args:
        options: Settings of the operator.
        random: The only source of randomness.
        disk: The data folder; None: everything is only in memory.
        readings: Load of the machine; None if unknown.
        secrets: What only this role and its cluster know; None: it has no cluster secret.
        acl_folder: The folder of the ACL 1.0 files to follow, and the name of the file; None: none are followed.

    Raises:
        ConfigError: the KV file or an ACL 1.0 file cannot be used.
        StoreError: the file of users and rules cannot be used.
    """

    def __init__(
        self,
        options: NameServerOptions,
        random: Random,
        *,
        disk: Disk | None = None,
        readings: Readings | None = None,
        secrets: RoleSecrets | None = None,
        acl_folder: tuple[Disk, str] | None = None,
    ) -> None:
        self.counters = Counters()
        self._turn = turn = Turn()
        self._peers: dict[ChannelId, str] = {}
        self.access_store = AccessStore(turn, disk)
        of_access = self._build_access(options, secrets or RoleSecrets.none(random), acl_folder)
        self._guard = self.door if options.auth else None  # None: the hot loop asks for nothing else.
        changes = RouteChanges()
        settings = Settings(turn, options, changes)
        kv = KvStore(turn, disk)
        self.routes = RouteTable(turn, changes)
        static_store = StaticTopicStore(turn, disk, self.routes.static)
        self.queue_leases = QueueLeases(turn, disk, self.routes.static)
        self.open_units = OpenUnits(turn, kv, changes)
        deletions = DeletionMarkers(turn, kv)
        self._answer_cache = RouteAnswerCache(options.answer_cache_size_max)
        self._route_requests = RouteRequests(
            self.routes, self._answer_cache, kv, deletions, settings, self.open_units, self.counters
        )
        liveness = BrokerLiveness()
        access_push = AccessPush(self.access_store, liveness, self.door.identity_of, turn)
        registry = Registry(
            turn,
            self.routes,
            liveness,
            kv,
            settings,
            self.open_units,
            deletions,
            self.queue_leases,
            access_push.digest_for,
        )
        self.push = RoutePush(turn, options, random, readings or Readings(), self._route_requests.route_digest)
        self._publication = Publication(changes, static_store, self._answer_cache, self.push)
        self._components: tuple[Component, ...] = (
            *of_access,
            access_push,
            settings,
            kv,
            KvRequests(turn, kv, changes),
            static_store,
            self._route_requests,
            self.queue_leases,
            UnitRequests(turn, kv, self.routes, self.open_units),
            registry,
            TopicRequests(turn, self.routes, liveness, deletions, random),
            self.push,
            self._publication,
            Scan(turn, settings, registry, self.queue_leases, self.routes.static, self._publication),
        )
        self._collect()

    def _build_access(
        self, options: NameServerOptions, secrets: RoleSecrets, acl_folder: tuple[Disk, str] | None
    ) -> list[Component]:
        """Build the components that know who sends a request, whether it is admitted, and all users and rules."""
        store, turn = self.access_store, self._turn
        self.authority = authority = Authority(store, cluster="")
        self.sessions = sessions = Sessions(authority)
        self.door = Door("namesrv", is_enabled=options.auth, sessions=sessions, authority=authority, turn=turn)
        login_server = LoginServer(
            "namesrv",
            options.listen,
            is_required=options.auth,
            sessions=sessions,
            authority=authority,
            secrets=secrets,
            turn=turn,
        )
        built: list[Component] = [
            store,
            self.door,
            login_server,
            UserRequests(store, self.door.identity_of, authority.find_user, self.door.guard_change, turn),
            RuleRequests(store, self.door.guard_change, turn),
            SyncRequests(store, self.door.identity_of),
        ]
        if acl_folder is not None:
            built.append(AclFollower(store, *acl_folder, turn))
        return built

    def _collect(self) -> None:
        """Collect what handles each request, timer, file and event."""
        self._handlers: Handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            **collect_handlers(self._components),
        }
        self._timers: dict[str, Callable[[], None]] = {}
        self._files: dict[str, KeptFile[Any]] = {}
        for component in self._components:
            self._timers.update(component.timers())
            for file in component.files():
                self._files.update(dict.fromkeys(file.paths, file))
                if file.retry_timer is not None:
                    self._timers[file.retry_timer] = file.on_timer
        require_rules(self._handlers, NAME_SERVER_REQUESTS)
        self._event_handlers: dict[type, Callable[[Any], None]] = {
            ReadsReceived: lambda event: isolate_reads(self._turn, self._frames_received, event.reads),
            Started: self._started,
            ChannelOpened: self._channel_opened,
            ChannelClosed: self._channel_closed,
            TimerFired: self._timer_fired,
            FileWritten: self._file_written,
            DiskFault: self._disk_failed,
            Stopping: self._stopping,
        }

    def handle(self, event: Event) -> list[Effect]:
        """Apply *event* and return its effects, in order."""
        turn = self._turn
        turn.now_ms = event.now_ms
        try:
            if type(event) is FramesReceived:
                self._frames_received(event)
            else:
                self._event_handlers.get(type(event), _ignore)(event)
            for name in turn.drain_fired() if turn.fired else ():
                self._timer_fired(TimerFired(name, turn.now_ms))
        except BaseException:
            turn.discard_effects()
            raise
        effects, turn.effects = turn.effects, []
        return effects

    def metrics(self) -> Iterator[Sample]:
        """Yield all metrics of the name server."""
        counters = self.counters
        yield Sample("namesrv_channels", "gauge", "Open connections.", len(self._peers))
        yield Sample("namesrv_requests", "counter", "Requests off the hot path.", counters.requests)
        yield Sample("namesrv_refusals", "counter", "Requests answered with a failure code.", counters.refusals)
        yield Sample("namesrv_protocol_faults", "counter", "Peers disconnected.", counters.protocol_faults)
        yield Sample("namesrv_disk_faults", "counter", "Writes that the disk refused.", counters.disk_faults)
        for component in self._components:
            yield from component.metrics()

    # The hot loop.

    def _frames_received(self, event: FramesReceived) -> None:
        pieces: list[bytes] = []
        queries = 0
        standard, bare, guard = self._answer_cache.standard, self._answer_cache.bare, self._guard
        for frame in event.frames:
            if frame.serializer == JSON:
                try:
                    query = decode_route_query(frame.header)
                except _UNREADABLE:
                    pass  # Another request, or one that only the tolerant reader understands.
                else:
                    fields = query.fields
                    if (
                        query.code == _ROUTE
                        and not query.flag
                        and (guard is None or guard.admits_route(event.channel, fields, frame))
                    ):
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
                pieces += self._answer(frame, event.channel)
            except RemoteProtocolError as error:
                self.counters.protocol_faults += 1
                self._close(event.channel, str(error), pieces)
                return
        self.counters.route_queries += queries
        if pieces:
            self._turn.effects.append(SendBytes(event.channel, pieces))

    def _close(self, channel: ChannelId, reason: str, pieces: list[bytes]) -> None:
        """Answer the frames before the unreadable one, then close the channel."""
        if pieces:
            self._turn.send(channel, pieces)
        self._turn.log("warning", "peer not understood", peer=self._peers.get(channel, ""), reason=reason)
        self._turn.close(channel)

    # Everything else.

    def _answer(self, frame: Frame, channel: ChannelId) -> list[bytes]:
        """Return the frame that answers a request; empty if it needs no answer, or is answered later.

        Raises:
            RemoteProtocolError: the header cannot be decoded.
        """
        command = decode_command(frame)
        if command.is_response:
            return []  # We send no requests, so a response belongs to none.
        self.counters.requests += 1
        answer = self._dispatch(command, channel)
        self._publication.publish()
        if answer is None or command.is_one_way:
            return []
        if isinstance(answer, Refusal):
            self.counters.refusals += 1
            answer = response(command, answer.code, answer.remark, fields=answer.fields)
        return [encode_command(answer)]

    def _dispatch(self, command: Command, channel: ChannelId) -> Answer:
        spec, peer = NAME_SERVER_REQUESTS.get(command.code), self._peers.get(channel, "")
        if spec is None:
            return not_supported(command.code)
        try:
            header, sender = spec.decode(command), ANONYMOUS
            if self._guard is not None:
                admitted = self._guard.admit(command, spec, header, channel)
                if isinstance(admitted, Refusal):
                    return admitted
                sender = admitted
            request = Request(command=command, header=header, channel=channel, peer=peer, identity=sender)
            return self._change(spec, request) if spec.rule.is_change else self._handlers[command.code](request)
        except (BadField, RemoteProtocolError) as error:
            self._turn.log("warning", "request not understood", code=command.code, reason=str(error), peer=peer)
            return Refusal(ResponseCode.SYSTEM_ERROR, str(error))

    def _change(self, spec: RequestSpec, request: Request) -> Answer:
        """Answer a request that changes something, and record it for the audit log."""
        command = request.command
        if self._guard is None:
            request = replace(request, identity=self.door.identity_of(request.channel, command))
        if is_recorded(spec, request.identity):
            request = replace(request, change=describe_change(spec, request.header, command.body))
        answer = self._handlers[command.code](request)
        if answer is not None:
            record_change(self._turn, request, answer)
        return answer

    def _route(self, request: Request) -> Answer:
        """Answer a 105 that the hot loop could not: not rendered yet, a binary header, or an unknown topic."""
        self.counters.route_queries += 1
        fields = request.header_as(RouteQueryFields)
        caller = fields.caller
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

    # Events other than requests.

    def _started(self, _event: Started) -> None:
        for component in self._components:
            component.start()

    def _stopping(self, _event: Stopping) -> None:
        for component in self._components:
            component.stop()

    def _channel_opened(self, event: ChannelOpened) -> None:
        self._peers[event.channel] = event.peer
        self.door.channel_opened(event.channel, event.peer)

    def _channel_closed(self, event: ChannelClosed) -> None:
        self._peers.pop(event.channel, None)
        for component in self._components:
            component.channel_closed(event.channel)

    def _timer_fired(self, event: TimerFired) -> None:
        run = self._timers.get(event.name)
        if run is not None:
            run()

    def _file_written(self, event: FileWritten) -> None:
        file = self._files.get(event.path)
        if file is not None:
            file.on_written(event.path)

    def _disk_failed(self, event: DiskFault) -> None:
        self.counters.disk_faults += 1
        file = None if event.path is None else self._files.get(event.path)
        if file is None or file.fault is None:  # A disk that stays full is reported once for each file.
            self._turn.log("error", "disk failed", reason=event.reason, file=event.path)
        if file is not None and event.path is not None:
            file.on_failed(event.path, event.reason)


def _ignore(_event: Event) -> None:
    """Ignore an event that is only for brokers."""
