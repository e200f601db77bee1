"""Committed offsets of each group and queue, kept in `config/consumerOffset.json`; codes 14, 15 and 43.

A commit changes memory only. The file is written every few seconds and when the broker stops. After a crash a group may
receive the messages of the last seconds again: consumption is at least once.

An administrative reset is pending until the consumer of the queue pulls next; the answer to that pull sends it to the
new offset (`pop_reset`). Until then its commits are ignored, because they predate the reset. A pending reset moves
with its logical queue. It is part of the file and of the offset backups on other brokers, so after a crash it may be
delivered twice.

For static topics, queues and offsets are logical and are kept by the leader of the queue. Java brokers keep physical
offsets at every broker that ever led the queue. Holdfast converts them when it adopts a Java broker's folder, and
queries Java brokers for the offsets of segments that they led.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.mapping.queue_view import Queues
from holdfast.broker.tables.config_file import config_file
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import Segment
from holdfast.model.numbers import parse_count
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.offsets import OffsetAnswer, QueryOffsetFields, UpdateOffsetFields

NAME: Final = "consumerOffset.json"
NEVER_COMMITTED: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


QueueOffsets = dict[LogicalQueueId, LogicalOffset]
"""Offsets by queue."""


class Offsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The table in the form that the file and replicas get. Keys are `topic@group`.

    Attributes:
        resets: Queues with a pending reset. Omitted if there are none, and in files that Java brokers wrote.
    """

    offset_table: dict[str, QueueOffsets] = {}
    pull_offset_table: dict[str, QueueOffsets] = {}
    group_topic_map: dict[str, Any] = {}
    data_version: DataVersion = DataVersion()
    resets: dict[str, list[LogicalQueueId]] | msgspec.UnsetType = msgspec.UNSET


class OffsetTable(Component):
    """Committed offsets by group, topic and queue.

    Attributes:
        pending_resets: Resets that no consumer has received yet, as (`topic@group`, queue).
        to_wake: Queues whose parked pulls must be woken to deliver a reset.
    """

    def __init__(self, disk: Disk, turn: Turn) -> None:
        self._turn = turn
        self._file = config_file(turn, disk, NAME, Offsets, self._to_saved)
        saved = self._file.load() or Offsets(data_version=DataVersion(timestamp=turn.now_ms))
        self._committed = {key: dict(queues) for key, queues in saved.offset_table.items()}
        self._pulled = {key: dict(queues) for key, queues in saved.pull_offset_table.items()}
        self._group_topics = saved.group_topic_map
        self.pending_resets = {
            (key, queue_id)
            for key, queues in (saved.resets or {}).items()
            for queue_id in queues
            if queue_id in self._committed.get(key, {})
        }
        self.to_wake: list[tuple[str, LogicalQueueId]] = []
        self._version = saved.data_version
        # On a replica: commits that its master has not received yet. None on a master.
        self.unsent_commits: dict[str, QueueOffsets] | None = None

    def record_unsent(self, commits: Mapping[str, QueueOffsets]) -> None:
        """Begin to record the commits that the master has yet to receive, with those of earlier processes."""
        self.unsent_commits = {key: dict(queues) for key, queues in commits.items()}

    def find(self, group: str, topic: str, queue_id: LogicalQueueId) -> LogicalOffset | None:
        """Return the next offset that *group* will consume, or None if it never committed."""
        queues = self._committed.get(_key(group, topic))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: LogicalQueueId, offset: LogicalOffset) -> bool:
        """Record that *group* has consumed everything before *offset*; return False if the commit is ignored.

        Clients send a negative offset for "nothing yet". A commit while a reset is pending predates the reset.
        """
        key = _key(group, topic)
        if offset < 0 or (self.pending_resets and (key, queue_id) in self.pending_resets):
            return False
        queues = self._committed.get(key)
        if queues is None:
            queues = self._committed[key] = {}
        queues[queue_id] = offset
        self._file.is_changed = True  # `mark_changed`, without a call: pulls commit, too.
        if self.unsent_commits is not None:
            self.unsent_commits.setdefault(key, {})[queue_id] = offset
        return True

    def record_consumer(self, group: str, topic: str) -> None:
        """Record that *group* consumes *topic*, so that its lag is counted before its first commit.

        Does nothing on a replica, which gets this from its master.
        """
        key = _key(group, topic)
        if self.unsent_commits is None and key not in self._committed:
            self._committed[key] = {}
            self._file.mark_changed()

    def merge_master(self, master: Offsets) -> None:
        """Replace a replica's table with its master's, but keep the commits that the master has not received yet."""
        committed = {key: dict(queues) for key, queues in master.offset_table.items()}
        for key, queues in (self.unsent_commits or {}).items():
            committed.setdefault(key, {}).update(queues)
        resets = {(key, queue) for key, queues in (master.resets or {}).items() for queue in queues}
        if (committed, resets) == (self._committed, self.pending_resets):
            return
        self._committed, self.pending_resets = committed, resets
        self._pulled = {key: dict(queues) for key, queues in master.pull_offset_table.items()}
        self._file.mark_changed()

    def record_pull(self, group: str, topic: str, queue_id: LogicalQueueId, offset: LogicalOffset) -> None:
        """Record where *group* will pull next: lag tools show it beside the committed offset."""
        key = _key(group, topic)
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def find_pulled(self, group: str, topic: str, queue_id: LogicalQueueId) -> LogicalOffset | None:
        """Return the offset where *group* will pull next, or None if it never pulled."""
        return self._pulled.get(_key(group, topic), {}).get(queue_id)

    def reset(self, group: str, topic: str, queue_id: LogicalQueueId, offset: LogicalOffset, *, deliver: bool) -> None:
        """Set the offset that *group* will consume next.

        With *deliver*, the reset is pending until the consumer gets it with its parked pull or its next one.
        """
        key = _key(group, topic)
        self._committed.setdefault(key, {})[queue_id] = offset
        if deliver:
            self.pending_resets.add((key, queue_id))
            self.to_wake.append((topic, queue_id))
        else:
            self.pending_resets.discard((key, queue_id))
        self._file.mark_changed()

    def pop_reset(
        self, group: str, topic: str, queue_id: LogicalQueueId, requested: LogicalOffset | None = None
    ) -> LogicalOffset | None:
        """Return the offset to which a consumer that pulls at *requested* must move, or None if it may continue.

        The reset then counts as delivered and is returned only once: the consumer either gets it now or is already
        there.
        """
        if not self.pending_resets:
            return None
        key = _key(group, topic)
        if (key, queue_id) not in self.pending_resets:
            return None
        self.pending_resets.remove((key, queue_id))
        self._file.mark_changed()
        offset = self._committed[key][queue_id]
        return None if offset == requested else offset

    def resets(self) -> Iterator[tuple[str, str, LogicalQueueId]]:
        """Yield topic, group and queue of every pending reset."""
        for key, queue_id in self.pending_resets:
            yield *_split(key), queue_id

    def resets_of(self, topic: str, queues: Collection[int]) -> dict[str, list[LogicalQueueId]]:
        """Return the pending resets in *queues*, as a map from group to queues."""
        found: dict[str, list[LogicalQueueId]] = {}
        for name, group, queue_id in sorted(self.resets()):
            if name == topic and queue_id in queues:
                found.setdefault(group, []).append(queue_id)
        return found

    def forget_resets(self, topic: str, queues: Collection[int]) -> None:
        """Drop the pending resets in *queues*."""
        for group, numbers in self.resets_of(topic, queues).items():
            for queue_id in numbers:
                self.pending_resets.remove((_key(group, topic), queue_id))
                self._file.mark_changed()

    def drain_to_wake(self) -> list[tuple[str, LogicalQueueId]]:
        """Return the queues whose parked pulls must be woken for a reset, and clear the list."""
        drained, self.to_wake = self.to_wake, []
        return drained

    def queues_of(self, group: str, topic: str) -> QueueOffsets:
        """Return the committed offsets of *group* in *topic* by queue."""
        return self._committed.get(_key(group, topic), {})

    def rows(self) -> Iterator[tuple[tuple[str, str], QueueOffsets]]:
        """Yield the committed offsets of every topic and group by queue. The caller must not change them."""
        for key, queues in self._committed.items():
            yield _split(key), queues

    def forget_queue(self, topic: str, queue_id: LogicalQueueId) -> None:
        """Drop every group's offset in one queue."""
        for (name, group), queues in self.rows():
            if name == topic and queues.pop(queue_id, None) is not None:
                self.pending_resets.discard((_key(group, topic), queue_id))
                self._file.mark_changed()

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that *group* has consumed, sorted."""
        return sorted(topic for topic, name in map(_split, self._committed) if name == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have consumed *topic*, sorted."""
        return sorted(name for other, name in map(_split, self._committed) if other == topic)

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy the committed offsets of group *source* in *topic* to group *target*."""
        queues = self._committed.get(_key(source, topic))
        if queues:
            self._committed[_key(target, topic)] = dict(queues)
            self._file.mark_changed()

    def forget_group(self, group: str) -> None:
        """Drop every offset of *group*."""
        self._forget({key for key in (*self._committed, *self._pulled) if _split(key)[1] == group})

    def forget_topic(self, topic: str) -> None:
        """Drop every offset in *topic*: a topic that is created again starts at offset 0."""
        self._forget(
            {key for key in (*self._committed, *self._pulled, *(self.unsent_commits or ())) if _split(key)[0] == topic}
        )

    def drop_topic(self, topic: str) -> None:
        """Drop every offset in *topic* and persist that before returning: a crash must not restore them."""
        is_committed = any(_split(key)[0] == topic for key in self._committed)
        self.forget_topic(topic)
        if is_committed:
            self._file.save_now()

    def to_wire(self) -> Offsets:
        """Return the whole table."""
        resets: dict[str, list[LogicalQueueId]] = {}
        for key, queue_id in sorted(self.pending_resets):
            resets.setdefault(key, []).append(queue_id)
        return Offsets(
            offset_table=self._committed,
            pull_offset_table=self._pulled,
            group_topic_map=self._group_topics,
            data_version=self._version,
            resets=resets or msgspec.UNSET,
        )

    def adopt_physical(self, mappings: Mappings, topic: str) -> None:
        """Convert the offsets that a Java broker kept for the physical queues of a static topic to logical offsets."""
        mapping = mappings.find(topic)
        for key in [key for key in self._committed if _split(key)[0] == topic]:
            physical, logical = cast("dict[int, int]", self._committed[key]), dict[LogicalQueueId, LogicalOffset]()
            for queue in () if mapping is None else mapping.queues.values():
                for segment in queue.segments:
                    if segment.broker == mappings.broker and segment.is_decided and segment.queue_id in physical:
                        logical[queue.queue] = segment.to_logical(PhysicalOffset(physical[segment.queue_id]))
            self._committed[key] = logical
            self._file.mark_changed()

    def clamp(self, topics: TopicTable, views: Queues) -> None:
        """Move offsets beyond the end of their queue back to that end, and log each.

        Such offsets appear when the log lost an unsynced end in a power failure. New messages get these offsets again
        and would never be consumed. Runs before the broker serves any client.
        """
        for key, queues in self._committed.items():
            topic, group = _split(key)
            config = topics.find(topic)
            if config is None:
                continue
            for queue_id, offset in queues.items():
                view = views.resolve(topic, queue_id)
                end = offset if view is None else view.offset_max
                if offset > end:
                    queues[queue_id] = end
                    self._file.mark_changed()
                    event = "consumer offset past the end of its queue moved back"
                    self._turn.log("warning", event, group=group, topic=topic, queue=queue_id, old=offset, new=end)

    # Persistence.

    @property
    def save_count(self) -> int:
        """Number of saves so far. Later changes are not in the file yet."""
        return self._version.counter

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    def stop(self) -> None:
        """Save the table before the broker stops, even if only pull offsets changed."""
        self._file.mark_changed()

    def _to_saved(self) -> Offsets:
        version = self._version
        self._version = DataVersion(
            state_version=version.state_version, timestamp=self._turn.now_ms, counter=version.counter + 1
        )
        return self.to_wire()

    def _forget(self, keys: set[str]) -> None:
        for key in keys:
            self._committed.pop(key, None)
            self._pulled.pop(key, None)
            if self.unsent_commits is not None:
                self.unsent_commits.pop(key, None)
        self.pending_resets = {reset for reset in self.pending_resets if reset[0] not in keys}
        if keys:
            self._file.mark_changed()


class OffsetRequests(Component):
    """Handles requests that query or commit consumer offsets."""

    def __init__(
        self,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        queues: Queues,
    ) -> None:
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._queues = queues

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.get_all,
        }

    def query(self, request: Request) -> Answer | Procedure[Answer]:
        """Return the committed offset of a group (14), or QUERY_NOT_FOUND so that the consumer chooses where to begin.

        There is one exception, as in RocketMQ. If the queue still has its very first message, offset 0 loses nothing
        for a group that never committed, so the answer is 0 unless the client objects.
        """
        fields = request.header_as(QueryOffsetFields)
        group, topic, number = fields.consumer_group, fields.topic, fields.queue_id
        view = self._queues.resolve(topic, number, is_logical=fields.is_logical)
        if view is None:
            return self._queues.refuse(topic, number)
        if view.is_segment:
            target = self._queues.find_commit_target(view)
            kept = None if target is None else self._offsets.find(group, topic, target.number)
            return _answer_offset(request, None if target is None else target.to_named(kept))
        offset = self._offsets.find(group, topic, view.number)
        if offset is None and view.may_have_lost_commits:
            offset = view.offset_min
        if offset is None and view.foreign_segments:
            return self._fetch_from_old_leaders(request, fields, view.foreign_segments)
        if offset is None and fields.set_zero_if_not_found is not False:
            offset = view.first_offset_if_hot
        return _answer_offset(request, offset)

    async def _fetch_from_old_leaders(
        self, request: Request, fields: QueryOffsetFields, segments: list[Segment]
    ) -> Answer:
        """Return the offset kept by the newest Java broker that led the queue before, and commit it here."""
        for segment in reversed(segments):
            query = msgspec.structs.replace(fields, queue_id=segment.queue_id, set_zero_if_not_found=False)
            try:
                answer = await self._queues.segments.request(
                    segment, RequestCode.QUERY_CONSUMER_OFFSET, to_fields(query)
                )
            except PeerFailed as error:
                return Refusal(ResponseCode.SYSTEM_ERROR, str(error))
            offset = parse_count(answer.fields.get("offset"))
            if answer.code == ResponseCode.SUCCESS and offset is not None:
                logical = segment.to_logical(PhysicalOffset(offset))
                self._offsets.commit(fields.consumer_group, fields.topic, fields.queue_id, logical)
                return _answer_offset(request, logical)
        return _answer_offset(request, None)

    def update(self, request: Request) -> Answer:
        """Commit the offset of a group (15)."""
        fields = request.header_as(UpdateOffsetFields)
        if self._topics.find(fields.topic) is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} not exist!")
        if self._groups.find(fields.consumer_group) is None:
            return Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {fields.consumer_group} not exist!")
        if fields.queue_id < 0 or fields.commit_offset is None:
            return request.answer(remark="The queue or the offset is negative; ignored")
        view = self._queues.resolve(fields.topic, fields.queue_id, is_logical=fields.is_logical)
        if view is None:
            return self._queues.refuse(fields.topic, fields.queue_id)
        target = self._queues.find_commit_target(view)
        if target is None:
            return request.answer(remark=f"Topic {fields.topic} has no queue {fields.queue_id}; ignored")
        offset = target.to_logical(fields.commit_offset)
        if not self._offsets.commit(fields.consumer_group, fields.topic, target.number, offset):
            return request.answer(remark="Offset has been previously reset")
        return request.answer()

    def get_all(self, request: Request) -> Answer:
        """Return the whole table (43)."""
        return request.answer(body=java_json.encode(self._offsets.to_wire()))


def _answer_offset(request: Request, offset: int | None) -> Answer:
    if offset is None:
        return Refusal(ResponseCode.QUERY_NOT_FOUND, NEVER_COMMITTED)
    return request.answer(fields=to_fields(OffsetAnswer(offset)))


def _key(group: str, topic: str) -> str:
    return f"{topic}@{group}"


def _split(key: str) -> tuple[str, str]:
    """Return (topic, group). Neither may contain `@`, but files that Holdfast did not write may hold anything."""
    topic, _, group = key.partition("@")
    return topic, group
