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

from collections.abc import Callable, Container, Sequence
from typing import Any, Final, TypeVar

import msgspec

from holdfast.broker.consume.consumer_offsets import Offsets, OffsetTable, QueueOffsets
from holdfast.broker.deferred.scheduled_messages import DelayedDelivery, DelayOffsets
from holdfast.broker.flow.awaitables import PeerCall
from holdfast.broker.flow.request import Answer, Handlers, Request, Timers
from holdfast.broker.mapping.mapping_journal import MappingSnapshot
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.ha_replica import FOREIGN, HaReplica
from holdfast.broker.replication.local_reads import CatchUp
from holdfast.broker.replication.replica_mappings import ReplicaMappings
from holdfast.broker.replication.replica_topics import ReplicaTopics
from holdfast.broker.tables.config_file import config_file
from holdfast.broker.tables.groups import Groups, GroupTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
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

TIMER: Final = "table sync"
NAME: Final = "replicaCommits.json"
TICK_MS: Final = 1_000
SYNC_MS: Final = 3_000

_T = TypeVar("_T")


class ReplicaCommits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file of offsets that were committed here and not yet sent to the master. Keys are `topic@group`."""

    offset_table: dict[str, QueueOffsets] = {}


class ReplicaTables(msgspec.Struct, frozen=True):
    """The tables that are copied from the master."""

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    delays: DelayedDelivery
    mappings: Mappings
    known: ReplicaTopics


class TableSync(Component):
    """Copies the master's tables periodically.

    Attributes:
        master: The address of the master; None until a name server has reported it.
        has_synced: Whether a sync has succeeded since this broker started.
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
        catch_up: CatchUp,
        report: Callable[[], dict[str, str]],
        turn: Turn,
    ) -> None:
        self._is_replica = options.is_replica
        self._store = store
        self._topics, self._groups = tables.topics, tables.groups
        self._offsets, self._delays = tables.offsets, tables.delays
        self._mappings = tables.mappings
        self._known = tables.known
        self._ha_replica = ha_replica
        self._turn = turn
        self.master: str | None = None
        self.has_synced = False
        self.catch_up = catch_up
        self._report = report
        self._is_busy = False
        self._is_failing = False
        self._due_ms = 0
        self._is_partial = True  # The last sync did not yet know whether the log here is a copy of the master's.
        self._mapping_master: str | None = None  # The master whose mappings were requested.
        self._is_java_master = False  # Whether that master is a Java broker.
        self._master_groups: set[str] = set()
        # Waits until the log here reaches the position.
        self._pending_offsets: tuple[int, Offsets, DelayOffsets] | None = None
        self._applied_end = int(store.written)  # Mapping changes in records before it are applied.
        self._saved: dict[str, QueueOffsets] = {}
        self._file = config_file(turn, disk, NAME, ReplicaCommits, lambda: ReplicaCommits(offset_table=self._saved))
        if options.is_replica:
            self._saved = (self._file.load() or ReplicaCommits()).offset_table
            tables.offsets.record_unsent(self._saved)

    # Requests from other brokers.

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.GET_REPLICA_COMMITS: self.get_commits}

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def get_commits(self, request: Request) -> Answer:
        """Answer 7034: send a returning master the offsets that were committed here while it was away."""
        return request.answer(body=java_json.encode(ReplicaCommits(offset_table=self._offsets.unsent_commits or {})))

    def set_master(self, address: str) -> None:
        """Record the master's address, as reported by a name server."""
        if address and address != self.master:
            self.master = address
            self._known.has_master = True
            self._ha_replica.needs_tables = not self.has_synced
            self._due_ms = 0

    def sync_soon(self) -> None:
        """Schedule a sync at once: the master is back, and our commits go to it first."""
        self._due_ms = 0

    @property
    def _replica_mappings(self) -> ReplicaMappings:
        assert isinstance(self._mappings, ReplicaMappings), "only a replica syncs"
        return self._mappings

    # Timer.

    def start(self) -> None:
        """Start the periodic sync, if this broker is a replica."""
        if self._is_replica:
            self._turn.set_timer(TIMER, self._turn.now_ms)

    def stop(self) -> None:
        """Save the commits that the master has not received."""
        if self._is_replica:
            self._save_commits()

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    def on_timer(self) -> None:
        """Start a sync if it is due, and save commits for the master."""
        now_ms = self._turn.now_ms
        self._save_commits()
        self._apply_offsets()
        is_due = now_ms >= self._due_ms or self._store.replica.awaited_topic is not None
        is_due = is_due or (self._is_partial and self._ha_replica.is_following)
        if self.master is not None and is_due and not self._is_busy and self._ha_replica.state not in FOREIGN:
            self._is_busy = True
            self._due_ms = now_ms + SYNC_MS
            self._turn.spawn(self._sync(self.master))
        self._turn.set_timer(TIMER, now_ms + TICK_MS)

    def _save_commits(self) -> None:
        """Save the commits that the master has yet to receive, if they changed."""
        own = self._offsets.unsent_commits
        if own is not None and own != self._saved:
            self._saved = {key: dict(queues) for key, queues in own.items()}
            self._file.save_change()

    def apply_mapping_changes(self) -> None:
        """Apply mapping changes in records that became readable."""
        start, self._applied_end = self._applied_end, self._store.confirmed
        try:
            self._replica_mappings.apply_from(start)
        except StoreError as error:
            self._turn.log("error", "logical queues not followed", reason=str(error))

    # Syncing.

    async def _sync(self, address: str) -> None:
        try:
            waited_for, end = self._store.replica.awaited_topic, int(self._store.written)
            mapped = await self._copy_tables(address)
            if waited_for is not None and self._topics.find(waited_for) is None:
                self._known.add_orphan(waited_for, end)
            await self._fetch_mappings(address)
            if self._is_java_master and self._ha_replica.is_following:
                self._replica_mappings.keep_only(mapped)
            self._ha_replica.resume_waiting()
            self._is_partial = not self._ha_replica.is_following
            pending = None if self._is_partial else await self._exchange_offsets(address)
            position = await self._fetch_end(address)
        except (PeerFailed, ProtocolError, StoreError) as error:
            # The master may have died after it sent its topics: no later sync may resume their records.
            self._ha_replica.resume_waiting()
            self.catch_up.master_failed()
            if not self._is_failing:
                self._turn.log("warning", "master's tables not copied", master=address, reason=str(error))
            self._is_failing = True
            return
        finally:
            self._is_busy = False
        self.has_synced, self._is_failing, self._ha_replica.needs_tables = True, False, False
        if pending is not None:
            self._pending_offsets = (position, *pending)
        self._apply_offsets()

    async def _exchange_offsets(self, address: str) -> tuple[Offsets, DelayOffsets]:
        """Send the master the offsets that it lacks, and return its own."""
        await self._send_commits(address)
        offsets = _decode_answer(Offsets, await _call(address, RequestCode.GET_ALL_CONSUMER_OFFSET))
        return offsets, _decode_answer(DelayOffsets, await _call(address, RequestCode.GET_ALL_DELAY_OFFSET))

    async def _fetch_end(self, address: str) -> int:
        """Return the end of the master's log, and report this replica's state to the master."""
        requested_ms = self._turn.now_ms
        command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, fields=self._report())
        figures = _decode_answer(Table, await PeerCall(address, command))
        position = parse_count(figures.table.get("commitLogMaxOffset"), 0)
        self.catch_up.master_answered(requested_ms, position)
        return position

    async def _copy_tables(self, address: str) -> Container[str]:
        """Apply the master's topics and groups. Return the topics that a Java master mapped.

        All others are deleted, but only while the log is known to be a copy of the master's: a master that lost its
        disk has no topics, and this replica has the last copy of their messages.
        """
        topics = _decode_answer(Topics, await _call(address, RequestCode.GET_ALL_TOPIC_CONFIG))
        configs, mapped = topics.topic_config_table, topics.topic_queue_mapping_detail_map
        # Mappings before topics: without its mapping a static topic would be read as a normal one.
        self._replica_mappings.adopt_java(mapped)
        changed = [config for name, config in configs.items() if self._topics.find(name) != config]
        if changed:
            self._topics.put_all(changed)
        if self._ha_replica.is_following:
            self._delete_topics_except(configs)
        groups = _decode_answer(Groups, await _call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        self._master_groups = set(groups.subscription_group_table)
        known = self._groups.all()
        new = [config for name, config in groups.subscription_group_table.items() if known.get(name) != config]
        if new:
            self._groups.put_all(new)
        for name in [name for name in known if name not in groups.subscription_group_table]:
            if self._ha_replica.is_following and not self._has_commits(name):
                self._groups.delete(name)
        return mapped

    def _delete_topics_except(self, configs: Container[str]) -> None:
        for name in [name for name in self._topics.all() if name not in configs and not self._topics.is_system(name)]:
            self._store.delete_topic(name)
            self._offsets.forget_topic(name)
            self._topics.delete(name)

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
        master_offsets = _decode_answer(Offsets, await _call(address, RequestCode.GET_ALL_CONSUMER_OFFSET)).offset_table
        count = 0
        for key, queues in [(key, dict(queues)) for key, queues in own.items()]:
            topic, _, group = key.partition("@")
            config = self._groups.find(group)
            if config is not None and group not in self._master_groups:  # The group was created here.
                create = Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=java_json.encode(config))
                await PeerCall(address, create)
            for queue_id, offset in queues.items():
                masters = master_offsets.get(key, {}).get(queue_id)
                if masters is None or offset > masters:
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
            self._turn.log("info", "offsets sent to the master", master=address, queues=count)

    def _apply_offsets(self) -> None:
        """Apply the master's offsets, once the log here has reached the master's end of that sync."""
        self.catch_up.reached(self._store.confirmed)
        if self._pending_offsets is not None and self._pending_offsets[0] <= self._store.confirmed:
            _, offsets, delays = self._pending_offsets
            self._pending_offsets = None
            self._offsets.merge_master(offsets)
            self._delays.replace_offsets(delays)


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
