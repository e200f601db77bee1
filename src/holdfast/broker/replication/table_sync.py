"""Copies the master's tables, which are not in its log: topics, groups, offsets, and mappings of logical queues.

    every 3 s, at once when the master is found, and when a record of an unknown topic arrives:
        21 topics, 201 groups ─> applied at once          43 offsets, 45 delays ─> applied when the log here reaches the
        7033 logical queues ─> once per master                    master's end of the same sync (28)

These are the requests of Java's slaves, except 7033, which is ours. A Java master does not support 7033 and sends its
mappings with its topics. Offsets never run ahead of the log, or a group or a schedule would skip messages that have not
arrived yet.

Offsets that groups commit here while the master is away are kept, also on disk, and sent to the returning master (15)
before its own offsets are applied here. One that is not newer than the master's is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final, TypeVar

import msgspec

from holdfast.broker.consume.consumer_offsets import Offsets, OffsetTable
from holdfast.broker.deferred.scheduled_messages import DelayedDelivery, DelayOffsets
from holdfast.broker.flow.awaitables import PeerCall
from holdfast.broker.flow.request import Answer, Handlers, Request
from holdfast.broker.flow.turn import Turn
from holdfast.broker.mapping.mapping_journal import MappingSnapshot
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_replica import HaReplica
from holdfast.broker.replication.local_reads import CatchUp
from holdfast.broker.replication.replica_mappings import ReplicaMappings
from holdfast.broker.tables.config_store import load_config, write_config
from holdfast.broker.tables.groups import Groups, GroupTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.effects import Effect, Log, SetTimer
from holdfast.model.errors import PeerFailed, ProtocolError, StoreError
from holdfast.model.numbers import parse_count
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.registration import Topics
from holdfast.wire.cluster.route import Table
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.moves import decode_body
from holdfast.wire.requests.offsets import UpdateOffsetFields

TIMER: Final = "replica"
NAME: Final = "replicaCommits.json"
TICK_MS: Final = 1_000
SYNC_MS: Final = 3_000

_T = TypeVar("_T")


class ReplicaCommits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file of offsets that were committed here and not yet sent to the master. Keys are `topic@group`."""

    offset_table: dict[str, dict[int, int]] = {}


class ReplicaTables(msgspec.Struct, frozen=True):
    """The tables that are copied from the master."""

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    delays: DelayedDelivery
    mappings: Mappings


class TableSync:
    """Copies the master's tables periodically.

    Attributes:
        master: The address of the master; None until a name server has reported it.
        has_synced: Whether a sync has succeeded since this broker started.
        on_resumed: Makes records readable that waited for their topics.
        catch_up: Tracks how far the log here lags the master's.
        report: Returns the header fields with which this replica reports to its master.
    """

    def __init__(
        self,
        options: BrokerOptions,
        disk: Disk,
        store: MessageStore,
        tables: ReplicaTables,
        ha_replica: HaReplica,
        turn: Turn,
    ) -> None:
        self._disk = disk
        self._store = store
        self._topics, self._groups = tables.topics, tables.groups
        self._offsets, self._delays = tables.offsets, tables.delays
        self._mappings = tables.mappings
        self._ha_replica = ha_replica
        self._turn = turn
        self.master: str | None = None
        self.has_synced = False
        self.on_resumed: Callable[[list[Effect], int], None] = lambda _effects, _now_ms: None
        self.catch_up = CatchUp()
        self.report: Callable[[], dict[str, str]] = dict
        self._is_busy = False
        self._is_failing = False
        self._due_ms = 0
        self._mapping_master: str | None = None  # The master whose mappings were requested.
        self._is_java_master = False  # Whether that master is a Java broker.
        self._master_groups: set[str] = set()
        # Unknown topics that the master lacks, too. Valid for records before a position: the topic may be recreated.
        self._orphans: set[str] = set()
        self._orphan_end = 0
        # Waits until the log here reaches the position.
        self._pending_offsets: tuple[int, Offsets, DelayOffsets] | None = None
        self._applied_end = int(store.written)  # Mapping changes in records before it are applied.
        self._saved: dict[str, dict[int, int]] = {}
        if options.is_replica:
            self._saved = dict((load_config(disk, NAME, ReplicaCommits) or ReplicaCommits()).offset_table)
            tables.offsets.unsent_commits = {key: dict(queues) for key, queues in self._saved.items()}
            ha_replica.is_ready = self._is_ready
            store.replica.is_topic_known = self._is_known

    # Requests from other brokers.

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.GET_REPLICA_COMMITS: self.get_commits}

    def get_commits(self, request: Request) -> Answer:
        """Answer 7034: send a returning master the offsets that were committed here while it was away."""
        return request.answer(body=java_json.encode(ReplicaCommits(offset_table=self._offsets.unsent_commits or {})))

    def _is_ready(self) -> bool:
        return self.has_synced or self.master is None

    def _is_known(self, topic: str) -> bool | None:
        if self.master is None or self._topics.find(topic) is not None or self._topics.is_system(topic):
            return True
        is_gone = topic in self._orphans and self._store.replica.complete_end < self._orphan_end
        return None if is_gone else False

    def set_master(self, address: str) -> None:
        """Record the master's address, as reported by a name server."""
        if address and address != self.master:
            self.master = address
            self._due_ms = 0

    def sync_soon(self) -> None:
        """Schedule a sync at once: the master is back, and our commits go to it first."""
        self._due_ms = 0

    @property
    def _replica_mappings(self) -> ReplicaMappings:
        assert isinstance(self._mappings, ReplicaMappings), "only a replica syncs"
        return self._mappings

    # Timer.

    def start(self, now_ms: int, effects: list[Effect]) -> None:
        """Start the periodic sync."""
        effects.append(SetTimer(TIMER, now_ms))

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Start a sync if it is due, and save commits for the master."""
        assert name == TIMER
        self.offer_save(effects)
        self._apply_offsets(effects)
        is_due = now_ms >= self._due_ms or self._store.replica.awaited_topic is not None
        if self.master is not None and is_due and not self._is_busy:
            self._is_busy = True
            self._due_ms = now_ms + SYNC_MS
            self._turn.procedures.append(self._sync(self.master))
        effects.append(SetTimer(TIMER, now_ms + TICK_MS))

    def offer_save(self, effects: list[Effect]) -> None:
        """Save the commits that the master has yet to receive, if they changed."""
        own = self._offsets.unsent_commits
        if own is not None and own != self._saved:
            self._saved = {key: dict(queues) for key, queues in own.items()}
            effects += write_config(self._disk, NAME, ReplicaCommits(offset_table=self._saved))

    def apply_mapping_changes(self) -> None:
        """Apply mapping changes in records that became readable."""
        start, self._applied_end = self._applied_end, self._store.confirmed
        try:
            self._replica_mappings.apply_from(start)
        except StoreError as error:
            self._turn.effects.append(Log("error", "logical queues not followed", {"reason": str(error)}))

    # Syncing.

    async def _sync(self, address: str) -> None:
        try:
            waited_for, end = self._store.replica.awaited_topic, int(self._store.written)
            mapped = await self._copy_tables(address)
            if waited_for is not None and self._topics.find(waited_for) is None:
                self._orphans.add(waited_for)
                self._orphan_end = end
            await self._fetch_mappings(address)
            if self._is_java_master:
                self._replica_mappings.keep_only(mapped)
            # Now: if the master dies before it answers the rest, these records are readable already.
            self._ha_replica.resume_waiting(self._turn.now_ms)
            self.on_resumed(self._turn.effects, self._turn.now_ms)
            await self._send_commits(address)
            offsets = _decode_answer(Offsets, (await _call(address, RequestCode.GET_ALL_CONSUMER_OFFSET)))
            delays = _decode_answer(DelayOffsets, (await _call(address, RequestCode.GET_ALL_DELAY_OFFSET)))
            position = await self._fetch_end(address)
        except (PeerFailed, ProtocolError, StoreError) as error:
            self.catch_up.master_failed()
            if not self._is_failing:
                self._turn.effects.append(
                    Log("warning", "master's tables not copied", {"master": address, "reason": str(error)})
                )
            self._is_failing = True
            return
        finally:
            self._is_busy = False
        self.has_synced, self._is_failing = True, False
        self._pending_offsets = (position, offsets, delays)
        self._apply_offsets(self._turn.effects)

    async def _fetch_end(self, address: str) -> int:
        """Return the end of the master's log, and report this replica's state to the master."""
        requested_ms = self._turn.now_ms
        command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, fields=self.report())
        figures = _decode_answer(Table, (await PeerCall(address, command)))
        position = parse_count(figures.table.get("commitLogMaxOffset"), 0)
        self.catch_up.master_answered(requested_ms, position)
        return position

    async def _copy_tables(self, address: str) -> Container[str]:
        """Apply the master's topics and groups, and delete all others. Return the topics that a Java master mapped."""
        now_ms = self._turn.now_ms
        topics = _decode_answer(Topics, (await _call(address, RequestCode.GET_ALL_TOPIC_CONFIG)))
        configs, mapped = topics.topic_config_table, topics.topic_queue_mapping_detail_map
        # Mappings before topics: without its mapping a static topic would be read as a normal one.
        self._turn.effects += self._replica_mappings.adopt_java(mapped)
        changed = [config for name, config in configs.items() if self._topics.find(name) != config]
        if changed:
            self._topics.put_all(changed, now_ms)
        for name in [name for name in self._topics.all() if name not in configs and not self._topics.is_system(name)]:
            self._store.delete_topic(name)
            self._offsets.forget_topic(name)
            self._topics.delete(name, now_ms)
        groups = _decode_answer(Groups, (await _call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)))
        self._master_groups = set(groups.subscription_group_table)
        known = self._groups.all()
        new = [config for name, config in groups.subscription_group_table.items() if known.get(name) != config]
        if new:
            self._groups.put_all(new, now_ms)
        for name in [name for name in known if name not in groups.subscription_group_table]:
            if not self._has_commits(name):
                self._groups.delete(name, now_ms)
        return mapped

    def _has_commits(self, group: str) -> bool:
        return any(key.partition("@")[2] == group for key in self._offsets.unsent_commits or ())

    async def _fetch_mappings(self, address: str) -> None:
        """Fetch the mappings whose records the log may no longer have, once per master."""
        if self._mapping_master == address:
            return
        answer = await _call(address, RequestCode.GET_MAPPING_SNAPSHOT)
        if answer.code == ResponseCode.SUCCESS:
            self._replica_mappings.apply_snapshot(decode_body(answer.body, MappingSnapshot))
        self._is_java_master = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        self._mapping_master = address

    # Offsets.

    async def _send_commits(self, address: str) -> None:
        """Send the master the offsets that were committed here while it was away."""
        own = self._offsets.unsent_commits
        if not own:
            return
        master_offsets = _decode_answer(
            Offsets, (await _call(address, RequestCode.GET_ALL_CONSUMER_OFFSET))
        ).offset_table
        count = 0
        for key, queues in [(key, dict(queues)) for key, queues in own.items()]:
            topic, _, group = key.partition("@")
            config = self._groups.find(group)
            if config is not None and group not in self._master_groups:  # The group was created here.
                create = Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=java_json.encode(config))
                await PeerCall(address, create)
            for queue_id, offset in queues.items():
                if offset > master_offsets.get(key, {}).get(queue_id, -1):
                    fields = UpdateOffsetFields(
                        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
                    )
                    await PeerCall(address, Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, fields=to_fields(fields)))
                    count += 1
                if own.get(key, {}).get(queue_id) == offset:  # No newer commit arrived here meanwhile.
                    del own[key][queue_id]
            if not own.get(key, True):
                del own[key]
        if count:
            self._turn.effects.append(Log("info", "offsets sent to the master", {"master": address, "queues": count}))

    def _apply_offsets(self, effects: list[Effect]) -> None:
        """Apply the master's offsets, once the log here has reached the master's end of that sync."""
        self.catch_up.reached(self._store.confirmed)
        if self._pending_offsets is not None and self._pending_offsets[0] <= self._store.confirmed:
            _, offsets, delays = self._pending_offsets
            self._pending_offsets = None
            self._offsets.merge_master(offsets)
            self._delays.replace_offsets(delays, effects)


def _call(address: str, code: RequestCode) -> PeerCall:
    return PeerCall(address, Command(code=code))


def _decode_answer(kind: type[_T], answer: Command) -> _T:
    """Return the decoded body of an answer.

    Raises:
        PeerFailed: the master refused.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise PeerFailed(f"refused with code {answer.code}: {answer.remark}")
    return java_json.decode(answer.body, kind)
