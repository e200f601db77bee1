"""Registers the broker at every name server: 103 at the start, every 30 seconds and on changes; 104 at the end.

There is one procedure per name server. It runs while the name server lacks the newest state:

    register ─┬─ answered ─────────────> done, unless something has changed since
              ├─ unreachable or lost ──> again after a second
              └─ no answer in 10 s ────> again at once, on a new connection

A connection that is lost later starts the procedure again: a restarted name server has lost all routes. If there is no
answer in ten seconds, the process may hang, or the connection may be half-open.

For static topics, the broker registers its own mapping, and only the synced state of it.

A name server that is down costs only one connection attempt per second. Usually a 103 is a full one: the table is
encoded once, and a name server of either kind extracts the changes. A Holdfast name server that treats every full
registration as the start of a broker says so in its answers; if a single topic changed, it gets a 103 with that topic
only. Topics that change one after the other during a registration follow it in that order, each in its own 103.

A request that creates a topic is answered once the name servers have answered the registration, or after a second: the
requester's next request goes to them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import Pause, PeerCall
from holdfast.broker.flow.component import NEWS_TIMER, SAVE_TIMER
from holdfast.broker.flow.request import Request, Timers
from holdfast.broker.flow.rpc import Rpc
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.naming.dr_switch_sync import DrSwitchSync
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, DiskFull, PeerFailed
from holdfast.model.topic import RETRY_PREFIX
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
HELD_TIMER: Final = "held answers"
PURPOSE: Final = "registration"
"""It has a connection of its own: a registration with many topics is large, and queue leases must not wait for it."""
OVERDUE_MS: Final = 10_000
HOLD_MAX_MS: Final = 1_000
REDIAL_MS: Final = 1_000
_CRC_MASK: Final = 0x7FFFFFFF
_LOST: Final = "the connection was closed"


class _NameServer(msgspec.Struct):
    """One name server, and the registration there.

    Attributes:
        registered: The number of the newest state of this broker that it has answered for.
        changed: The topics that have changed and were not sent since, each with the number of the state in which it
            changed; the oldest change is first.
        needs_full: The next registration must be a full one.
        is_running: Its procedure runs.
        is_connected: It has answered, and the connection was not lost since.
        is_failing: Its failure has been logged: once, not in every round.
        wants_single: It asked for registrations of single changed topics.
    """

    address: str
    registered: int = 0
    changed: dict[str, int] = {}
    needs_full: bool = True
    is_running: bool = False
    is_connected: bool = False
    is_failing: bool = False
    wants_single: bool = False


class _Held(msgspec.Struct):
    """An answer that waits until name servers have answered registrations.

    Attributes:
        state: The number of the state that they must have answered for.
        waiting: The addresses of those that have not.
    """

    channel: ChannelId
    answer: bytes
    state: int
    waiting: set[str]
    deadline_ms: int


class Registrar(Component):
    """The state of the broker's registration at each name server."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        mappings: Mappings,
        rpc: Rpc,
        turn: Turn,
        dr_switch: DrSwitchSync | None = None,
        on_master: Callable[[str, str], None] = lambda _ha_address, _address: None,
        on_access: Callable[[str, str | None], None] = lambda _namesrv, _digest: None,
    ) -> None:
        self._turn = turn
        self._rpc = rpc
        self._dr_switch = dr_switch
        self._options = options
        self._topics = topics
        self._mappings = mappings
        self._servers = {address: _NameServer(address) for address in options.namesrv}
        self._state = 0  # counts what there was to register
        self._body: tuple[object, bytes] = (None, b"")
        self._single: tuple[object, str, bytes] = (None, "", b"")
        self._held: list[_Held] = []
        self.is_leaving = False
        self._on_master = on_master
        self._on_access = on_access

    def is_registered(self) -> bool:
        """Return whether this broker is registered at a connected name server."""
        return any(server.is_connected and not server.is_failing for server in self._servers.values())

    def metrics(self) -> Iterator[Sample]:
        """Yield whether this broker is registered."""
        about = "1 while this broker is registered at a name server."
        yield Sample("broker_registered", "gauge", about, self.is_registered())

    # When to register.

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.begin, HELD_TIMER: self.release_late, NEWS_TIMER: self._register_news}

    def begin(self) -> None:
        """Register at every name server, now and periodically: registrations expire."""
        for server in self._servers.values():
            server.needs_full = True
        self._register_all()
        self._turn.set_timer(TIMER, self._turn.now_ms + self._options.register_interval_ms)

    def channel_closed(self, channel: ChannelId) -> None:  # noqa: ARG002 - only the name servers' connections matter
        """Register again, soon, at a name server to which the connection was lost."""
        for server in self._servers.values():
            if server.is_connected and not server.is_running and not self._rpc.is_connected(server.address, PURPOSE):
                self._lose(server, _LOST)
                self._start(server, REDIAL_MS)

    def announce_changes(self, mark: int) -> None:
        """Persist and register topics that changed since the last call; called at the end of every event.

        If they cannot be persisted, close the channels that were answered after *mark*: messages of a topic that is not
        on disk must not be acknowledged.
        """
        if not self._topics.changed:
            return
        try:
            self._topics.save()
        except DiskFull:
            self._turn.fire(SAVE_TIMER)  # It repeats the save, and reports that the disk is full.
            # New retry topics may wait: heartbeats created them, and they contain no messages yet.
            if not all(name.startswith(RETRY_PREFIX) for name in self._topics.changed):
                self._turn.close_instead_of_sending(mark)
        except DiskFailed as error:
            self._turn.close_instead_of_sending(mark)
            self._turn.log("error", "disk failed", reason=str(error))
        self._register_all()

    def answer_registered(self, request: Request, answer: Command) -> Command | None:
        """Register changed topics; return *answer*, or None if it is held until the name servers have answered."""
        self.announce_changes(self._turn.mark())
        waiting = {
            server.address
            for server in self._servers.values()
            if server.registered < self._state and self._rpc.is_connected(server.address, PURPOSE)
        }
        if not waiting or request.command.is_one_way:
            return answer
        deadline_ms = self._turn.now_ms + HOLD_MAX_MS
        if not self._held:
            self._turn.set_timer(HELD_TIMER, deadline_ms)
        self._held.append(_Held(request.channel, encode_command(answer), self._state, waiting, deadline_ms))
        return None

    def release_late(self) -> None:
        """Send the held answers whose deadline has passed."""
        self._release()
        if self._held:
            self._turn.set_timer(HELD_TIMER, self._held[0].deadline_ms)

    def stop(self) -> None:
        """Unregister, unless that has been done."""
        if not self.is_leaving:
            self.leave()

    def leave(self) -> None:
        """Unregister from every name server, and register no more."""
        self.is_leaving = True
        fields = BrokerFields(
            broker_name=self._options.name,
            broker_addr=self._options.address,
            cluster_name=self._options.cluster,
            broker_id=self._options.broker_id,
        )
        for address in self._servers:
            command = Command(code=RequestCode.UNREGISTER_BROKER, fields=to_fields(fields))
            self._rpc.send_one_way(address, command, PURPOSE)

    # Registering.

    def _register_news(self) -> None:
        """Register the DR switch and the deletion markers that became known: every registration carries them."""
        self._register_all()

    def _register_all(self) -> None:
        """Register at every name server: fully, or after a change of topics perhaps only what has changed."""
        changed = self._topics.drain_changed()
        if self.is_leaving:
            return
        self._state += 1
        for server in self._servers.values():
            for name in changed:
                server.changed.pop(name, None)
                server.changed[name] = self._state
            self._start(server)

    def _start(self, server: _NameServer, delay_ms: int = 0) -> None:
        if not server.is_running:
            server.is_running = True
            self._turn.spawn(self._register(server, delay_ms))

    async def _register(self, server: _NameServer, delay_ms: int) -> None:
        """Register at *server*, after *delay_ms*, until it has answered for the newest state."""
        try:
            while server.registered < self._state and not self.is_leaving:
                if delay_ms:
                    await Pause(delay_ms)
                    delay_ms = 0
                    continue
                state = self._state
                try:
                    answer = await PeerCall(server.address, self._to_request(server), OVERDUE_MS, PURPOSE)
                except PeerFailed as error:
                    delay_ms = self._handle_failure(server, error)
                else:
                    # A topic that changed before *state* may still be unsent.
                    oldest = next(iter(server.changed.values()), state + 1)
                    server.registered = min(state, oldest - 1)
                    self._handle_answer(server, answer)
        finally:
            server.is_running = False

    def _handle_failure(self, server: _NameServer, error: PeerFailed) -> int:
        """Record that there is no answer; return after how many milliseconds to register again."""
        if not error.is_unsent and self._rpc.is_connected(server.address, PURPOSE):
            self._rpc.disconnect(server.address, PURPOSE)
            self._lose(server, "no answer to a registration")
            return 0
        unreachable = str(error).removeprefix(f"cannot connect to {server.address}: ")
        self._lose(server, unreachable if error.is_unsent else _LOST)
        return REDIAL_MS

    def _handle_answer(self, server: _NameServer, command: Command) -> None:
        server.is_connected = True
        self._release(server)
        is_accepted = command.code == ResponseCode.SUCCESS
        answer = from_fields(RegisterAnswer, command.fields)
        server.wants_single = is_accepted and bool(answer.wants_single)
        if not is_accepted:
            self._fail(server, f"refused with code {command.code}: {command.remark}")
            return
        if self._dr_switch is not None:
            self._dr_switch.adopt(answer.units)
        self._topics.deletions.merge(answer.deletions)
        self._on_access(server.address, answer.access)
        if answer.ha_server_addr is not None:
            self._on_master(answer.ha_server_addr, answer.master_addr or "")
        if server.is_failing:
            server.is_failing = False
            self._turn.log("info", "registered again", namesrv=server.address)

    def _lose(self, server: _NameServer, reason: str) -> None:
        """Record that the connection to a name server is lost, and release the answers that wait for it."""
        server.registered = 0
        self._on_access(server.address, None)
        server.is_connected = server.wants_single = False
        for held in self._held:
            held.waiting.discard(server.address)
        self._release()
        self._fail(server, reason)

    def _fail(self, server: _NameServer, reason: str) -> None:
        if server.is_failing:
            return
        server.is_failing = True
        self._turn.log("warning", "cannot register", namesrv=server.address, reason=reason)

    def _release(self, answered: _NameServer | None = None) -> None:
        """Send the held answers that waited only for this name server, or whose deadline has passed."""
        for held in list(self._held):
            if answered is not None and held.state <= answered.registered:
                held.waiting.discard(answered.address)
            if not held.waiting or held.deadline_ms <= self._turn.now_ms:
                self._held.remove(held)
                self._turn.send(held.channel, [held.answer])

    # What is registered.

    def _to_request(self, server: _NameServer) -> Command:
        """Return the next registration for *server*: a full one, or only the one topic that has changed first."""
        body = self._encode_first_change(server)
        if body is None:
            body = self._encode_body()
            server.changed.clear()
            server.needs_full = False
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
        return Command(code=RequestCode.REGISTER_BROKER, fields=to_fields(fields), body=body)

    def _encode_first_change(self, server: _NameServer) -> bytes | None:
        """Remove the topic that has changed first, and encode a registration of it; None if a full one is needed."""
        first, second = islice((*server.changed.items(), None, None), 2)
        if not server.wants_single or server.needs_full or first is None:
            return None
        if second is not None and second[1] == first[1]:  # Several topics that changed at once need a full one.
            return None
        body = self._encode_single(first[0])
        if body is not None:
            del server.changed[first[0]]
        return body

    def _encode_body(self) -> bytes:
        version, body = self._body
        if version is not self._topics.data_version:
            body = encode_registration(Registration(topic_config_serialize_wrapper=self._describe_topics()))
            self._body = (self._topics.data_version, body)
        return body

    def _encode_single(self, name: str) -> bytes | None:
        """Encode a registration of one topic only; return None if the topic must not be announced yet."""
        version, known, body = self._single
        if version is self._topics.data_version and known == name:
            return body
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
        body = encode_registration(Registration(topic_config_serialize_wrapper=single))
        self._single = (self._topics.data_version, name, body)
        return body

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
