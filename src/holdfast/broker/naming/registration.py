"""Registers the broker at every name server: 103 at the start, every 30 seconds and on changes; 104 at the end.

    absent ─OpenChannel─> dialing ─ChannelOpened─> open ─ChannelClosed─> absent
       ^                     └──ChannelFailed──> absent
       └── dialed again every second until it answers: a restarted name server has lost all routes

If a name server accepts a 103 but does not answer within ten seconds, the broker reconnects: the process may hang, or
the connection may be half-open.

For static topics, the broker registers its own mapping, and only the synced state of it.

A name server that is down costs only one connection attempt per second. Usually a 103 is a full one: the table is
encoded once, and a name server of either kind extracts the changes. A Holdfast name server that treats every full
registration as the start of a broker says so in its answers; if a single topic changed, it gets a 103 with that topic
only.

A request that creates a topic is answered once the name servers have answered the registration, or after a second: the
requester's next request goes to them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.broker.flow.request import Request
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.naming.dr_switch_sync import DrSwitchSync
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.topics import NAME as TOPICS_FILE
from holdfast.broker.tables.topics import TopicTable
from holdfast.broker.tables.unwritten_files import UnwrittenFiles
from holdfast.machine.effects import CloseChannel, Effect, Log, OpenChannel, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.model.topic import RETRY_PREFIX
from holdfast.store.base.config_files import config_path
from holdfast.wire.cluster.mapping import to_info, to_plain
from holdfast.wire.cluster.registration import (
    BrokerFields,
    RegisterAnswer,
    RegisterFields,
    Registration,
    Topics,
    encode_registration,
)
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.fields import from_fields, to_fields

TIMER: Final = "registration"
HELD_TIMER: Final = "registration-answers"
REDIAL_TIMER: Final = "registration-redial"
OVERDUE_TIMER: Final = "registration-overdue"
OVERDUE_TICK_MS: Final = 5_000  # a registration unanswered at two ticks in a row is overdue
HOLD_MAX_MS: Final = 1_000
REDIAL_MS: Final = 1_000
_CRC_MASK: Final = 0x7FFFFFFF


class _NameServer(msgspec.Struct):
    """One name server and the channel to it."""

    address: str
    channel: ChannelId | None = None
    is_dialing: bool = False
    waiting_opaque: int | None = None
    is_late: bool = False  # a registration was unanswered at the last tick and still is
    is_failing: bool = False  # so that a failure is logged once, not in every round
    wants_single: bool = False  # it asked for registrations of single changed topics


class _Held(msgspec.Struct):
    """An answer that waits until name servers have answered registrations.

    Attributes:
        waiting: The opaques of the registrations that must be answered first.
    """

    channel: ChannelId
    answer: bytes
    waiting: set[int]
    deadline_ms: int


class Registrar:
    """The connections to the name servers, and the state of the broker's registration at each."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        mappings: Mappings,
        unwritten: UnwrittenFiles,
        dr_switch: DrSwitchSync | None = None,
    ) -> None:
        self._unwritten = unwritten
        self._dr_switch = dr_switch
        self._options = options
        self._topics = topics
        self._mappings = mappings
        self._servers = {address: _NameServer(address) for address in options.namesrv}
        self._opaque = 0
        self._body: tuple[object, bytes] = (None, b"")
        self._held: list[_Held] = []
        self.is_leaving = False
        if dr_switch is not None:
            dr_switch.on_change = self._register_all
        topics.deletions.on_change = self._register_all
        self.on_master: Callable[[str, str], None] = lambda _ha_address, _address: None

    def is_registered(self) -> bool:
        """Return whether this broker is registered at a connected name server."""
        return any(
            server.channel is not None and server.waiting_opaque is None and not server.is_failing
            for server in self._servers.values()
        )

    # Time.

    def start(self, now_ms: int, effects: list[Effect]) -> None:
        """Register for the first time, and start the timers."""
        self._register_all(effects)
        effects.append(SetTimer(TIMER, now_ms + self._options.register_interval_ms))
        effects.append(SetTimer(OVERDUE_TIMER, now_ms + OVERDUE_TICK_MS))

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Register again, redial, or release held answers, depending on the timer; registrations expire."""
        if name == HELD_TIMER:
            effects += self._release(now_ms=now_ms)
            return
        if name == REDIAL_TIMER:
            self._dial(effects)
            return
        if name == OVERDUE_TIMER:
            self._reconnect_overdue(effects)
            effects.append(SetTimer(OVERDUE_TIMER, now_ms + OVERDUE_TICK_MS))
            return
        assert name == TIMER
        self._register_all(effects)
        effects.append(SetTimer(TIMER, now_ms + self._options.register_interval_ms))

    def announce_changes(self, effects: list[Effect]) -> None:
        """Persist and register topics that changed since the last call; called at the end of every event."""
        if not self._topics.changed:
            return
        try:
            self._topics.save()
        except DiskFull as error:
            # New retry topics may wait: heartbeats created them, and they contain no messages yet.
            if not all(name.startswith(RETRY_PREFIX) for name in self._topics.changed):
                _close_instead_of_answering(effects)
            effects += self._unwritten.write_failed(config_path(TOPICS_FILE), str(error))
        except DiskFailed as error:
            _close_instead_of_answering(effects)
            effects.append(Log("error", "disk failed", {"reason": str(error)}))
        self._register_all(effects, is_change=True)

    def answer_registered(self, request: Request, answer: Command) -> Command | None:
        """Register changed topics; return *answer*, or None if it is held until the name servers have answered."""
        self.announce_changes(request.effects)
        waiting = {server.waiting_opaque for server in self._servers.values() if server.waiting_opaque is not None}
        if not waiting or request.command.is_one_way:
            return answer
        deadline_ms = request.now_ms + HOLD_MAX_MS
        self._held.append(_Held(request.channel, encode_command(answer), waiting, deadline_ms))
        request.effects.append(SetTimer(HELD_TIMER, deadline_ms))
        return None

    def stop(self, effects: list[Effect]) -> None:
        """Unregister from every name server, and register no more."""
        self.is_leaving = True
        fields = BrokerFields(
            broker_name=self._options.name,
            broker_addr=self._options.address,
            cluster_name=self._options.cluster,
            broker_id=self._options.broker_id,
        )
        for server in self._servers.values():
            if server.channel is not None:
                command = Command(
                    code=RequestCode.UNREGISTER_BROKER, opaque=self._next_opaque(), fields=to_fields(fields)
                )
                effects.append(SendBytes(server.channel, [encode_command(command)]))

    # Channels.

    def channel_opened(self, channel: ChannelId, dialed: str, now_ms: int) -> list[Effect]:  # noqa: ARG002
        """Register on a channel that this broker dialed."""
        server = self._servers.get(dialed)
        if server is None:
            return [CloseChannel(channel)]
        server.channel, server.is_dialing = channel, False
        effects: list[Effect] = []
        self._register(server, effects)
        return effects

    def channel_failed(self, dialed: str, reason: str, now_ms: int) -> list[Effect]:
        """Record that a name server cannot be reached, and redial soon."""
        server = self._servers.get(dialed)
        if server is None:
            return []
        server.is_dialing = False
        return [*self._fail(server, reason), SetTimer(REDIAL_TIMER, now_ms + REDIAL_MS)]

    def channel_closed(self, channel: ChannelId, now_ms: int) -> list[Effect]:
        """Record that the connection to a name server was lost, and redial soon."""
        for server in self._servers.values():
            if server.channel == channel:
                return [
                    *self._lose(server, "the connection was closed"),
                    SetTimer(REDIAL_TIMER, now_ms + REDIAL_MS),
                ]
        return []

    def _lose(self, server: _NameServer, reason: str) -> list[Effect]:
        """Drop the channel to a name server, and release the answers that wait for it."""
        opaque, server.channel, server.waiting_opaque, server.is_late = server.waiting_opaque, None, None, False
        server.wants_single = False
        return [*self._release(answered=opaque), *self._fail(server, reason)]

    def _reconnect_overdue(self, effects: list[Effect]) -> None:
        """Reconnect to name servers that have not answered a registration for two ticks."""
        for server in self._servers.values():
            if server.channel is None or server.waiting_opaque is None:
                continue
            if server.is_late:
                effects.append(CloseChannel(server.channel))
                effects += self._lose(server, "no answer to a registration")
            else:
                server.is_late = True
        self._dial(effects)

    def answered(self, channel: ChannelId, command: Command) -> list[Effect] | None:
        """Process a response from a name server; return None if the channel is not to a name server."""
        for server in self._servers.values():
            if server.channel == channel:
                return self._handle_answer(server, command)
        return None

    def _handle_answer(self, server: _NameServer, command: Command) -> list[Effect]:
        if command.opaque != server.waiting_opaque:
            return []
        server.waiting_opaque, server.is_late = None, False
        effects = self._release(answered=command.opaque)
        is_accepted = command.code == ResponseCode.SUCCESS
        answer = from_fields(RegisterAnswer, command.fields)
        server.wants_single = is_accepted and bool(answer.wants_single)
        if is_accepted and self._dr_switch is not None:
            self._dr_switch.adopt(answer.units, effects)
        if is_accepted:
            self._topics.deletions.merge(answer.deletions, effects)
        if is_accepted and answer.ha_server_addr is not None:
            self.on_master(answer.ha_server_addr, answer.master_addr or "")
        if not is_accepted:
            effects += self._fail(server, f"refused with code {command.code}: {command.remark}")
        elif server.is_failing:
            server.is_failing = False
            effects.append(Log("info", "registered again", {"namesrv": server.address}))
        return effects

    def _release(self, *, answered: int | None = None, now_ms: int = 0) -> list[Effect]:
        """Send the held answers that waited only for this registration, or whose deadline has passed."""
        effects: list[Effect] = []
        for held in list(self._held):
            held.waiting.discard(-1 if answered is None else answered)
            if not held.waiting or held.deadline_ms <= now_ms:
                self._held.remove(held)
                effects.append(SendBytes(held.channel, [held.answer]))
        return effects

    def _fail(self, server: _NameServer, reason: str) -> list[Effect]:
        if server.is_failing:
            return []
        server.is_failing = True
        return [Log("warning", "cannot register", {"namesrv": server.address, "reason": reason})]

    # Registering.

    def _register_all(self, effects: list[Effect], *, is_change: bool = False) -> None:
        changed = list(self._topics.drain_changed())
        if self.is_leaving:
            return
        single = None
        if is_change and len(changed) == 1 and any(server.wants_single for server in self._servers.values()):
            single = self._encode_single(changed[0])
        for server in self._servers.values():
            if server.channel is not None:
                self._register(server, effects, single if server.wants_single else None)
        self._dial(effects)

    def _dial(self, effects: list[Effect]) -> None:
        for server in self._servers.values():
            if server.channel is None and not server.is_dialing:
                server.is_dialing = True
                effects.append(OpenChannel(server.address))

    def _register(self, server: _NameServer, effects: list[Effect], single: bytes | None = None) -> None:
        """Send a full registration, or *single* with only the changed topic."""
        assert server.channel is not None
        # This registration supersedes an unanswered one: answers that wait for that one now wait for this one.
        superseded = server.waiting_opaque
        body = self._encode_body() if single is None else single
        fields = RegisterFields(
            broker_name=self._options.name,
            broker_addr=self._options.address,
            cluster_name=self._options.cluster,
            ha_server_addr=self._options.ha_address,
            broker_id=self._options.broker_id,
            # A replica never acts as master: its topics are those of its master.
            enable_acting_master=None if self._options.is_replica else False,
            body_crc32=zlib.crc32(body) & _CRC_MASK,
            zone_name=self._options.zone,
            units=None if self._dr_switch is None else self._dr_switch.text,
            deletions=self._topics.deletions.encoded,
        )
        server.waiting_opaque = self._next_opaque()
        for held in self._held:
            if superseded in held.waiting:
                held.waiting.add(server.waiting_opaque)
                held.waiting.discard(superseded)
        command = Command(
            code=RequestCode.REGISTER_BROKER, opaque=server.waiting_opaque, fields=to_fields(fields), body=body
        )
        effects.append(SendBytes(server.channel, [encode_command(command)]))

    def _encode_body(self) -> bytes:
        version, body = self._body
        if version is not self._topics.data_version:
            body = encode_registration(Registration(topic_config_serialize_wrapper=self._describe_topics()))
            self._body = (self._topics.data_version, body)
        return body

    def _encode_single(self, name: str) -> bytes | None:
        """Encode a registration of one topic only; return None if the topic must not be announced yet."""
        topics = self._describe_topics()
        config = topics.topic_config_table.get(name)
        if config is None:
            return None
        infos = topics.topic_queue_mapping_info_map
        single = msgspec.structs.replace(
            topics,
            topic_config_table={name: config},
            topic_queue_mapping_info_map={name: infos[name]} if name in infos else {},
        )
        return encode_registration(Registration(topic_config_serialize_wrapper=single))

    def _describe_topics(self) -> Topics:
        table, announced = self._topics.to_wire(), self._mappings.announced()
        if self._options.is_replica:
            hosted = {name: config for name, config in table.topic_config_table.items() if name not in announced}
            return msgspec.structs.replace(table, topic_config_table=hosted)
        if not self._mappings.topics() and not announced:
            return table
        # Omit a topic that is becoming static until its record is synced; above all, do not register it as a normal
        # topic.
        hosted = {
            name: config
            for name, config in table.topic_config_table.items()
            if name in announced or not self._mappings.is_static(name)
        }
        infos = {topic: to_plain(to_info(mapping)) for topic, mapping in announced.items() if topic in hosted}
        return Topics(
            topic_config_table=hosted,
            data_version=table.data_version,
            mapping_data_version=table.data_version,
            topic_queue_mapping_info_map=infos,
        )

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque


def _close_instead_of_answering(effects: list[Effect]) -> None:
    """Replace answers by closing their channels: messages of a topic that is not on disk must not be acknowledged."""
    effects[:] = [CloseChannel(effect.channel) if isinstance(effect, SendBytes) else effect for effect in effects]
