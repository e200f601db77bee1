"""How far each group has consumed each queue, kept in `config/consumerOffset.json`; codes 14, 15 and 43.

Commits change memory; the file follows every few seconds and when the broker stops. After a crash a group may see the
last seconds again: consumption is at least once.

A reset from outside waits here until the queue's consumer pulls next and is told to go there (`reset_pending`). Until
then its own commits are ignored: they are of the time before the reset.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.broker.config import load_config, write_config
from holdfast.broker.groups import GroupTable
from holdfast.broker.options import BrokerOptions
from holdfast.broker.request import Answer, Handlers, Refusal, Request
from holdfast.broker.topics import TopicTable
from holdfast.machine.effects import Effect, Log, SetTimer
from holdfast.store.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire import java_json
from holdfast.wire.codes import RequestCode, ResponseCode
from holdfast.wire.fields import from_fields, to_fields
from holdfast.wire.offsets import OffsetAnswer, QueryOffsetFields, UpdateOffsetFields
from holdfast.wire.registration import DataVersion

NAME: Final = "consumerOffset.json"
TIMER: Final = "offsets"
NEVER_COMMITTED: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class Offsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The table as it is stored and as replicas get it. Keys are `topic@group`."""

    offset_table: dict[str, dict[int, int]] = {}
    pull_offset_table: dict[str, dict[int, int]] = {}
    group_topic_map: dict[str, Any] = {}
    data_version: DataVersion = DataVersion()


class OffsetTable:
    """Committed offsets by group, topic and queue."""

    def __init__(self, disk: Disk, options: BrokerOptions, now_ms: int = 0) -> None:
        self._disk = disk
        self._save_interval_ms = options.offset_save_interval_ms
        saved = load_config(disk, NAME, Offsets) or Offsets(data_version=DataVersion(timestamp=now_ms))
        self._committed = {key: dict(queues) for key, queues in saved.offset_table.items()}
        self._pulled = {key: dict(queues) for key, queues in saved.pull_offset_table.items()}
        self._group_topics = saved.group_topic_map
        self._resets: dict[tuple[str, int], int] = {}
        self.to_wake: list[tuple[str, int]] = []  # queues whose waiting pulls have a reset to hear of
        self._version = saved.data_version
        self._dirty = False

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset *group* will consume, or None when it never said."""
        key = _key(group, topic)
        reset = self._resets.get((key, queue_id))
        if reset is not None:
            return reset
        queues = self._committed.get(key)
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Remember that *group* has consumed everything before *offset*; False when that is ignored.

        A negative offset is a client's word for "nothing yet"; a commit while a reset waits is older than the reset.
        """
        key = _key(group, topic)
        if offset < 0 or (self._resets and (key, queue_id) in self._resets):
            return False
        queues = self._committed.get(key)
        if queues is None:
            queues = self._committed[key] = {}
        queues[queue_id] = offset
        self._dirty = True
        return True

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember where *group* will pull next: lag tools show it beside the committed offset."""
        self._pulled.setdefault(_key(group, topic), {})[queue_id] = offset

    def find_pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where *group* will pull next, or None when it never pulled."""
        return self._pulled.get(_key(group, topic), {}).get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int, *, deliver: bool) -> None:
        """Set what *group* will consume next; with *deliver* its consumer is told so at its next pull, or at once."""
        key = _key(group, topic)
        self._committed.setdefault(key, {})[queue_id] = offset
        if deliver:
            self._resets[key, queue_id] = offset
            self.to_wake.append((topic, queue_id))
        else:
            self._resets.pop((key, queue_id), None)
        self._dirty = True

    def reset_pending(self, group: str, topic: str, queue_id: int, requested: int | None = None) -> int | None:
        """Return, once, where a consumer that pulls at *requested* must go instead; None when it may go on.

        With the answer the reset counts as delivered: either the consumer is told now, or it is already there.
        """
        if not self._resets:
            return None
        offset = self._resets.pop((_key(group, topic), queue_id), None)
        return None if offset == requested else offset

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets of *group* in *topic* by queue."""
        return self._committed.get(_key(group, topic), {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which *group* has committed, sorted."""
        return sorted(topic for topic, name in map(_split, self._committed) if name == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed in *topic*, sorted."""
        return sorted(name for other, name in map(_split, self._committed) if other == topic)

    def clone(self, source: str, target: str, topic: str) -> None:
        """Let group *target* stand where *source* stands in *topic*."""
        queues = self._committed.get(_key(source, topic))
        if queues:
            self._committed[_key(target, topic)] = dict(queues)
            self._dirty = True

    def forget_group(self, group: str) -> None:
        """Drop every offset of *group*."""
        self._forget({key for key in self._committed if _split(key)[1] == group})

    def forget_topic(self, topic: str) -> None:
        """Drop every offset in *topic*: should it be made again, its offsets start at 0."""
        self._forget({key for key in self._committed if _split(key)[0] == topic})

    def to_wire(self) -> Offsets:
        """Return the whole table."""
        return Offsets(
            offset_table=self._committed,
            pull_offset_table=self._pulled,
            group_topic_map=self._group_topics,
            data_version=self._version,
        )

    def clamp(self, topics: TopicTable, store: MessageStore) -> list[Log]:
        """Move offsets that lie behind the end of their queue back to it, and tell of each.

        The log lost its end: it was not synced when power failed. Messages that now get these offsets again would
        never be consumed. Done before anybody is served.
        """
        lines: list[Log] = []
        for key, queues in self._committed.items():
            topic, group = _split(key)
            config = topics.find(topic)
            if config is None or config.has_batch_index:
                continue
            for queue_id, offset in queues.items():
                queue = store.find_queue(topic, queue_id)
                end = 0 if queue is None else queue.offset_max
                if offset > end:
                    queues[queue_id] = end
                    place = {"group": group, "topic": topic, "queue": queue_id, "old": offset, "new": end}
                    lines.append(Log("warning", "consumer offset behind the end of its queue moved back", {**place}))
        self._dirty = self._dirty or bool(lines)
        return lines

    # Keeping it.

    def start(self, now_ms: int, effects: list[Effect]) -> None:
        """Begin to save from time to time."""
        effects.append(SetTimer(TIMER, now_ms + self._save_interval_ms))

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Save what changed."""
        assert name == TIMER
        if self._dirty:
            self._stamp(now_ms)
            effects += write_config(self._disk, NAME, self.to_wire())
        effects.append(SetTimer(TIMER, now_ms + self._save_interval_ms))

    def stop(self, now_ms: int, effects: list[Effect]) -> None:
        """Save once more: the broker is about to end."""
        self._stamp(now_ms)
        effects += write_config(self._disk, NAME, self.to_wire())

    def _stamp(self, now_ms: int) -> None:
        version = self._version
        self._version = DataVersion(state_version=version.state_version, timestamp=now_ms, counter=version.counter + 1)
        self._dirty = False

    def _forget(self, keys: set[str]) -> None:
        for key in keys:
            del self._committed[key]
            self._pulled.pop(key, None)
        self._resets = {place: offset for place, offset in self._resets.items() if place[0] not in keys}
        self._dirty = self._dirty or bool(keys)


class OffsetRequests:
    """Answers consumers that ask for their offset or tell it."""

    def __init__(self, offsets: OffsetTable, topics: TopicTable, groups: GroupTable, store: MessageStore) -> None:
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._store = store

    def handlers(self) -> Handlers:
        """Return what this room answers."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.get_all,
        }

    def query(self, request: Request) -> Answer:
        """Answer 14. A group that never committed is told so: where it begins is its own choice.

        With one exception, upstream's: in a queue that still has its very first message, "never committed" and
        "0" mean the same to a group that is merely late, so 0 is answered unless the client objects.
        """
        fields = from_fields(QueryOffsetFields, request.command.fields)
        offset = self._offsets.find(fields.consumer_group, fields.topic, fields.queue_id)
        if offset is None and fields.set_zero_if_not_found is not False:
            offset = self._first_offset(fields.topic, fields.queue_id)
        if offset is None:
            return Refusal(ResponseCode.QUERY_NOT_FOUND, NEVER_COMMITTED)
        return request.answer(fields=to_fields(OffsetAnswer(offset)))

    def update(self, request: Request) -> Answer:
        """Answer 15."""
        fields = from_fields(UpdateOffsetFields, request.command.fields)
        topic = self._topics.find(fields.topic)
        if topic is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} not exist!")
        if self._groups.find(fields.consumer_group) is None:
            return Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {fields.consumer_group} not exist!")
        if fields.queue_id < 0 or fields.commit_offset < 0:
            return request.answer(remark="A negative queue or offset says nothing; ignored")
        if fields.queue_id >= max(topic.read_queues, topic.write_queues):
            return request.answer(remark=f"Topic {fields.topic} has no queue {fields.queue_id}; ignored")
        if not self._offsets.commit(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset):
            return request.answer(remark="Offset has been previously reset")
        return request.answer()

    def get_all(self, request: Request) -> Answer:
        """Answer 43."""
        return request.answer(body=java_json.encode(self._offsets.to_wire()))

    def _first_offset(self, topic: str, queue_id: int) -> int | None:
        queue = self._store.find_queue(topic, queue_id)
        if queue is None or queue.offset_min > 0 or queue.offset_max == 0:
            return None
        (entry,) = queue.entries(0, 1) or [(0, 0, 0)]
        return 0 if self._store.is_hot(entry[0]) else None


def _key(group: str, topic: str) -> str:
    return f"{topic}@{group}"


def _split(key: str) -> tuple[str, str]:
    """Return (topic, group). Neither may contain the sign, but files of others may hold anything."""
    topic, _, group = key.partition("@")
    return topic, group
