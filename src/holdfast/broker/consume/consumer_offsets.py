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

from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec

from holdfast.broker.consume.logical_pull import not_leader_to_read
from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.config_store import load_config, save_config, write_config
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.effects import Effect, Log, SetTimer
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import LogicalQueue, Segment
from holdfast.model.numbers import parse_count
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.requests.offsets import OffsetAnswer, QueryOffsetFields, UpdateOffsetFields

NAME: Final = "consumerOffset.json"
TIMER: Final = "offsets"
NEVER_COMMITTED: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class Offsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The table in the form that the file and replicas get. Keys are `topic@group`.

    Attributes:
        resets: Queues with a pending reset. Omitted if there are none, and in files that Java brokers wrote.
    """

    offset_table: dict[str, dict[int, int]] = {}
    pull_offset_table: dict[str, dict[int, int]] = {}
    group_topic_map: dict[str, Any] = {}
    data_version: DataVersion = DataVersion()
    resets: dict[str, list[int]] | msgspec.UnsetType = msgspec.UNSET


class OffsetTable:
    """Committed offsets by group, topic and queue.

    Attributes:
        to_wake: Queues whose parked pulls must be woken to deliver a reset.
    """

    def __init__(self, disk: Disk, options: BrokerOptions, now_ms: int = 0) -> None:
        self._disk = disk
        self._save_interval_ms = options.offset_save_interval_ms
        saved = load_config(disk, NAME, Offsets) or Offsets(data_version=DataVersion(timestamp=now_ms))
        self._committed = {key: dict(queues) for key, queues in saved.offset_table.items()}
        self._pulled = {key: dict(queues) for key, queues in saved.pull_offset_table.items()}
        self._group_topics = saved.group_topic_map
        self._resets = {
            (key, queue_id)
            for key, queues in (saved.resets or {}).items()
            for queue_id in queues
            if queue_id in self._committed.get(key, {})
        }
        self.to_wake: list[tuple[str, int]] = []
        self._version = saved.data_version
        self._dirty = False
        # On a replica: commits that its master has not received yet. None on a master.
        self.unsent_commits: dict[str, dict[int, int]] | None = None

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset that *group* will consume, or None if it never committed."""
        queues = self._committed.get(_key(group, topic))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Record that *group* has consumed everything before *offset*; return False if the commit is ignored.

        Clients send a negative offset for "nothing yet". A commit while a reset is pending predates the reset.
        """
        key = _key(group, topic)
        if offset < 0 or (self._resets and (key, queue_id) in self._resets):
            return False
        queues = self._committed.get(key)
        if queues is None:
            queues = self._committed[key] = {}
        queues[queue_id] = offset
        self._dirty = True
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
            self._dirty = True

    def merge_master(self, master: Offsets) -> None:
        """Replace a replica's table with its master's, but keep the commits that the master has not received yet."""
        committed = {key: dict(queues) for key, queues in master.offset_table.items()}
        for key, queues in (self.unsent_commits or {}).items():
            committed.setdefault(key, {}).update(queues)
        resets = {(key, queue) for key, queues in (master.resets or {}).items() for queue in queues}
        if (committed, resets) == (self._committed, self._resets):
            return
        self._committed, self._resets = committed, resets
        self._pulled = {key: dict(queues) for key, queues in master.pull_offset_table.items()}
        self._dirty = True

    def record_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record where *group* will pull next: lag tools show it beside the committed offset."""
        key = _key(group, topic)
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def find_pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset where *group* will pull next, or None if it never pulled."""
        return self._pulled.get(_key(group, topic), {}).get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int, *, deliver: bool) -> None:
        """Set the offset that *group* will consume next.

        With *deliver*, the reset is pending until the consumer gets it with its parked pull or its next one.
        """
        key = _key(group, topic)
        self._committed.setdefault(key, {})[queue_id] = offset
        if deliver:
            self._resets.add((key, queue_id))
            self.to_wake.append((topic, queue_id))
        else:
            self._resets.discard((key, queue_id))
        self._dirty = True

    def pop_reset(self, group: str, topic: str, queue_id: int, requested: int | None = None) -> int | None:
        """Return the offset to which a consumer that pulls at *requested* must move, or None if it may continue.

        The reset then counts as delivered and is returned only once: the consumer either gets it now or is already
        there.
        """
        if not self._resets:
            return None
        key = _key(group, topic)
        if (key, queue_id) not in self._resets:
            return None
        self._resets.remove((key, queue_id))
        self._dirty = True
        offset = self._committed[key][queue_id]
        return None if offset == requested else offset

    def resets(self) -> Iterator[tuple[str, str, int]]:
        """Yield topic, group and queue of every pending reset."""
        for key, queue_id in self._resets:
            yield *_split(key), queue_id

    def resets_of(self, topic: str, queues: Collection[int]) -> dict[str, list[int]]:
        """Return the pending resets in *queues*, as a map from group to queues."""
        found: dict[str, list[int]] = {}
        for name, group, queue_id in sorted(self.resets()):
            if name == topic and queue_id in queues:
                found.setdefault(group, []).append(queue_id)
        return found

    def forget_resets(self, topic: str, queues: Collection[int]) -> None:
        """Drop the pending resets in *queues*."""
        for group, numbers in self.resets_of(topic, queues).items():
            for queue_id in numbers:
                self._resets.remove((_key(group, topic), queue_id))
                self._dirty = True

    def drain_to_wake(self) -> list[tuple[str, int]]:
        """Return the queues whose parked pulls must be woken for a reset, and clear the list."""
        drained, self.to_wake = self.to_wake, []
        return drained

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets of *group* in *topic* by queue."""
        return self._committed.get(_key(group, topic), {})

    def rows(self) -> Iterator[tuple[tuple[str, str], dict[int, int]]]:
        """Yield the committed offsets of every topic and group by queue. The caller must not change them."""
        for key, queues in self._committed.items():
            yield _split(key), queues

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """Drop every group's offset in one queue."""
        for (name, group), queues in self.rows():
            if name == topic and queues.pop(queue_id, None) is not None:
                self._resets.discard((_key(group, topic), queue_id))
                self._dirty = True

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
            self._dirty = True

    def forget_group(self, group: str) -> None:
        """Drop every offset of *group*."""
        self._forget({key for key in (*self._committed, *self._pulled) if _split(key)[1] == group})

    def forget_topic(self, topic: str) -> None:
        """Drop every offset in *topic*: a topic that is created again starts at offset 0."""
        self._forget(
            {key for key in (*self._committed, *self._pulled, *(self.unsent_commits or ())) if _split(key)[0] == topic}
        )

    def drop_topic(self, topic: str, now_ms: int) -> None:
        """Drop every offset in *topic* and persist that before returning: a crash must not restore them."""
        is_committed = any(_split(key)[0] == topic for key in self._committed)
        self.forget_topic(topic)
        if is_committed:
            self._bump_version(now_ms)
            save_config(self._disk, NAME, self.to_wire())
            self._dirty = True  # An earlier save may still be running off the loop, and overwrite this one.

    def to_wire(self) -> Offsets:
        """Return the whole table."""
        resets: dict[str, list[int]] = {}
        for key, queue_id in sorted(self._resets):
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
            physical, logical = self._committed[key], {}
            for queue in () if mapping is None else mapping.queues.values():
                for segment in queue.segments:
                    if segment.broker == mappings.broker and segment.is_decided and segment.queue_id in physical:
                        logical[queue.queue] = segment.to_logical(physical[segment.queue_id])
            self._committed[key] = logical
            self._dirty = True

    def clamp(self, topics: TopicTable, store: MessageStore, segment_queries: SegmentQueries) -> list[Log]:
        """Move offsets beyond the end of their queue back to that end, and return one log line for each.

        Such offsets appear when the log lost an unsynced end in a power failure. New messages get these offsets again
        and would never be consumed. Runs before the broker serves any client.
        """
        lines: list[Log] = []
        for key, queues in self._committed.items():
            topic, group = _split(key)
            config = topics.find(topic)
            if config is None:
                continue
            for queue_id, offset in queues.items():
                if segment_queries.mappings.is_static(topic):
                    led = segment_queries.find_led(topic, queue_id)
                    end = offset if led is None else segment_queries.maximum(topic, led)
                else:
                    queue = store.find_queue(topic, queue_id)
                    end = 0 if queue is None else queue.offset_max
                if offset > end:
                    queues[queue_id] = end
                    fields = {"group": group, "topic": topic, "queue": queue_id, "old": offset, "new": end}
                    lines.append(Log("warning", "consumer offset past the end of its queue moved back", {**fields}))
        self._dirty = self._dirty or bool(lines)
        return lines

    # Persistence.

    @property
    def save_count(self) -> int:
        """Number of saves so far. Later changes are not in the file yet."""
        return self._version.counter

    def start(self, now_ms: int, effects: list[Effect]) -> None:
        """Start the timer that saves the table."""
        effects.append(SetTimer(TIMER, now_ms + self._save_interval_ms))

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Save the table if it changed."""
        assert name == TIMER
        if self._dirty:
            self._bump_version(now_ms)
            effects += write_config(self._disk, NAME, self.to_wire())
        effects.append(SetTimer(TIMER, now_ms + self._save_interval_ms))

    def stop(self, now_ms: int, effects: list[Effect]) -> None:
        """Save the table before the broker stops."""
        self._bump_version(now_ms)
        effects += write_config(self._disk, NAME, self.to_wire())

    def _bump_version(self, now_ms: int) -> None:
        version = self._version
        self._version = DataVersion(state_version=version.state_version, timestamp=now_ms, counter=version.counter + 1)
        self._dirty = False

    def _forget(self, keys: set[str]) -> None:
        for key in keys:
            self._committed.pop(key, None)
            self._pulled.pop(key, None)
            if self.unsent_commits is not None:
                self.unsent_commits.pop(key, None)
        self._resets = {reset for reset in self._resets if reset[0] not in keys}
        self._dirty = self._dirty or bool(keys)


class OffsetRequests:
    """Handles requests that query or commit consumer offsets."""

    def __init__(
        self,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        store: MessageStore,
        segment_queries: SegmentQueries,
    ) -> None:
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._store = store
        self._segment_queries = segment_queries
        self._mappings = segment_queries.mappings

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
        fields = from_fields(QueryOffsetFields, request.command.fields)
        if self._mappings.is_static(fields.topic):
            return self._query_static(request, fields)
        offset = self._offsets.find(fields.consumer_group, fields.topic, fields.queue_id)
        if offset is None and fields.set_zero_if_not_found is not False:
            offset = first_offset_if_hot(self._store, fields.topic, fields.queue_id)
        return _answer_offset(request, offset)

    def _query_static(self, request: Request, fields: QueryOffsetFields) -> Answer | Procedure[Answer]:
        group, topic, number = fields.consumer_group, fields.topic, fields.queue_id
        if fields.is_logical is False:
            return _answer_offset(request, self._find_physical(fields))
        queue = self._segment_queries.find_led(topic, number)
        if queue is None:
            return not_leader_to_read(topic, number, self._mappings.broker)
        offset = self._offsets.find(group, topic, number)
        if offset is not None:
            return _answer_offset(request, offset)
        if any(segment.forced for segment in queue.segments):
            # The commits may have been lost with the dead leader. From the lowest offset the group misses nothing.
            return _answer_offset(request, self._segment_queries.minimum(topic, queue))
        if foreign := [segment for segment in queue.readable[:-1] if segment.is_decided and not segment.is_sealed]:
            return self._fetch_from_old_leaders(request, fields, foreign)
        if fields.set_zero_if_not_found is not False:
            offset = first_logical_offset_if_hot(self._store, topic, queue)
        return _answer_offset(request, offset)

    async def _fetch_from_old_leaders(
        self, request: Request, fields: QueryOffsetFields, segments: list[Segment]
    ) -> Answer:
        """Return the offset kept by the newest Java broker that led the queue before, and commit it here."""
        for segment in reversed(segments):
            query = msgspec.structs.replace(fields, queue_id=segment.queue_id, set_zero_if_not_found=False)
            try:
                answer = await self._segment_queries.request(
                    segment, RequestCode.QUERY_CONSUMER_OFFSET, to_fields(query)
                )
            except PeerFailed as error:
                return Refusal(ResponseCode.SYSTEM_ERROR, str(error))
            offset = parse_count(answer.fields.get("offset"), -1)
            if answer.code == ResponseCode.SUCCESS and offset >= 0:
                logical = segment.to_logical(offset)
                self._offsets.commit(fields.consumer_group, fields.topic, fields.queue_id, logical)
                return _answer_offset(request, logical)
        return _answer_offset(request, None)

    def update(self, request: Request) -> Answer:
        """Commit the offset of a group (15)."""
        fields = from_fields(UpdateOffsetFields, request.command.fields)
        topic = self._topics.find(fields.topic)
        if topic is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} not exist!")
        if self._groups.find(fields.consumer_group) is None:
            return Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {fields.consumer_group} not exist!")
        if fields.queue_id < 0 or fields.commit_offset < 0:
            return request.answer(remark="The queue or the offset is negative; ignored")
        if self._mappings.is_static(fields.topic):
            return self._update_static(request, fields)
        if fields.queue_id >= max(topic.read_queues, topic.write_queues):
            return request.answer(remark=f"Topic {fields.topic} has no queue {fields.queue_id}; ignored")
        return self._commit(request, fields, fields.queue_id, fields.commit_offset)

    def _update_static(self, request: Request, fields: UpdateOffsetFields) -> Answer:
        if fields.is_logical is False:
            found = self._mappings.find_by_physical(fields.topic, fields.queue_id)
            if found is None or not found[1].is_decided:
                return request.answer(remark=f"Topic {fields.topic} has no queue {fields.queue_id}; ignored")
            return self._commit(request, fields, found[0].queue, found[1].to_logical(fields.commit_offset))
        if not self._mappings.placement(fields.topic, fields.queue_id).is_led:
            return not_leader_to_read(fields.topic, fields.queue_id, self._mappings.broker)
        return self._commit(request, fields, fields.queue_id, fields.commit_offset)

    def _commit(self, request: Request, fields: UpdateOffsetFields, queue_id: int, offset: int) -> Answer:
        if not self._offsets.commit(fields.consumer_group, fields.topic, queue_id, offset):
            return request.answer(remark="Offset has been previously reset")
        return request.answer()

    def _find_physical(self, fields: QueryOffsetFields) -> int | None:
        """Return the physical offset that a Java leader asks for, in a former segment of its queue."""
        found = self._mappings.find_by_physical(fields.topic, fields.queue_id)
        offset = None if found is None else self._offsets.find(fields.consumer_group, fields.topic, found[0].queue)
        if found is None or offset is None or not found[1].is_decided or offset < found[1].first:
            return None
        return found[1].to_physical(offset)

    def get_all(self, request: Request) -> Answer:
        """Return the whole table (43)."""
        return request.answer(body=java_json.encode(self._offsets.to_wire()))


def first_offset_if_hot(store: MessageStore, topic: str, queue_id: int) -> int | None:
    """Return 0 if the very first message of a physical queue is still in memory, or None."""
    queue = store.find_queue(topic, queue_id)
    if queue is None or queue.offset_min > 0 or queue.offset_max == 0:
        return None
    (entry,) = queue.entries(0, 1) or [(0, 0, 0)]
    return 0 if store.is_hot(entry[0]) else None


def first_logical_offset_if_hot(store: MessageStore, topic: str, queue: LogicalQueue) -> int | None:
    """Return 0 if a logical queue never moved and its very first message is still in memory, or None."""
    segment = queue.leader
    is_first = len(queue.readable) == 1 and segment.first == segment.start == 0
    return first_offset_if_hot(store, topic, segment.queue_id) if is_first else None


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
