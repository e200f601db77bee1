"""Two simulated tools: one creates the topics of a run, the other reads every stored message at the end."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Final

import msgspec

from holdfast.client.consume.pull_plan import pull_command
from holdfast.client.messages.unpacking import read_messages
from holdfast.model.errors import HoldfastError
from holdfast.model.group import Subscription
from holdfast.model.leader_planning import plan_create
from holdfast.model.mapping import TopicMapping, next_epoch
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.model.scope import GLOBAL, is_mock_broker
from holdfast.model.topic import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from holdfast.sim.actors.client import SimClient
from holdfast.sim.actors.witness import log_position_of
from holdfast.sim.checkers.ledger import AuditedRecord
from holdfast.sim.checkers.offset_identity import OffsetIdentityChecker, QueueOffset
from holdfast.sim.world.layout import static_topic_commands
from holdfast.sim.world.workload import ORDERED_TOPIC, PLAIN_TOPIC, uid_of
from holdfast.sim.world.world import Violation
from holdfast.wire.cluster.route import TopicList
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.record import decode_records
from holdfast.wire.requests.admin import CreateTopicFields

_PAUSE_MS: Final = 200
_RETRY_MAX_MS: Final = 20_000
_GROUP: Final = "auditors"
# With these codes the next offset is ahead. The offsets between have no message; the checkers know whether they may.
_READABLE: Final = frozenset(
    {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)
BATCH_INDEX_ATTRIBUTE: Final = "+queue.type=BatchCQ"
_AUDITED_TOPICS: Final = frozenset({PLAIN_TOPIC, ORDERED_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC})


class TopicMaker(SimClient):
    """Creates both topics on every broker and retries until each has accepted.

    Args:
        addresses: The address of each broker.
        queues: The number of queues of a topic: on every broker, or logical queues in total.
        static: The topics that get logical queues.
        indexed_by_record: The topics that keep batches whole.
        unit: The scope of the logical queues; empty for global.
    """

    def __init__(
        self,
        name_servers: str,
        rng: Random,
        *,
        addresses: dict[str, str],
        queues: int,
        static: Collection[str] = (),
        indexed_by_record: Collection[str] = (),
        unit: str = "",
    ) -> None:
        super().__init__(f"topic-maker{unit}", name_servers, rng)
        self._scope = unit or GLOBAL
        self._addresses = addresses
        self._indexed_by_record = indexed_by_record
        self._static = static
        self._queues = queues
        self._remaining = {(broker, topic) for broker in addresses for topic in (PLAIN_TOPIC, ORDERED_TOPIC)}

    @property
    def is_done(self) -> bool:
        """Whether every broker has both topics."""
        return not self._remaining

    def started(self) -> None:
        """Send the requests to every broker."""
        for topic in (PLAIN_TOPIC, ORDERED_TOPIC):
            for broker, command in self._commands(topic).items():
                self._create(broker, topic, command)

    def _commands(self, topic: str) -> dict[str, Command]:
        attributes = BATCH_INDEX_ATTRIBUTE if topic in self._indexed_by_record else ""
        if topic in self._static:
            records = {
                broker: TopicMapping(topic=topic, broker=broker, scope=self._scope) for broker in self._addresses
            }
            moves = plan_create(topic, self._queues, self._addresses)
            epoch, queue_counts = next_epoch(0, self.now_ms), dict.fromkeys(records, 0)
            return static_topic_commands(topic, moves, records, queue_counts, epoch, attributes=attributes)
        fields = to_fields(
            CreateTopicFields(
                topic=topic, read_queue_nums=self._queues, write_queue_nums=self._queues, attributes=attributes
            )
        )
        return {
            broker: Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, fields=dict(fields)) for broker in self._addresses
        }

    def _create(self, broker: str, topic: str, command: Command) -> None:
        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                self._remaining.remove((broker, topic))
            else:
                self.after(_PAUSE_MS, lambda: self._create(broker, topic, command))

        self.request(self._addresses[broker], msgspec.structs.replace(command), answered)


class Auditor(SimClient):
    """Reads every queue of every topic that holds messages, from its beginning to its end.

    Args:
        is_old: Whether to read as a client without mapping support.

    Attributes:
        records: All messages found.
        ends: The end of every queue that was read.
    """

    def __init__(
        self, name_servers: str, rng: Random, *, offset_checker: OffsetIdentityChecker, is_old: bool = False
    ) -> None:
        super().__init__("old-auditor" if is_old else "auditor", name_servers, rng, is_old=is_old)
        self.records: list[AuditedRecord] = []
        self.ends: dict[MessageQueue, int] = {}
        self._offset_checker = offset_checker
        self._topics: set[str] | None = None
        self._unread: set[MessageQueue] = set()
        self._started_ms = 0

    @property
    def is_done(self) -> bool:
        """Whether everything was read."""
        return self._topics is not None and not self._topics and not self._unread

    def started(self) -> None:
        """Request the list of topics."""
        self._started_ms = self._started_ms or self.now_ms
        address = self._name_servers.current

        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.after(_PAUSE_MS, self.started)
                return
            names = java_json.decode(answer.body, TopicList).topic_list
            prefixes = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
            self._topics = {name for name in names if name in _AUDITED_TOPICS or name.startswith(prefixes)}
            for topic in sorted(self._topics):
                self.route(topic)

        self.request(address, Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), answered)

    def route_changed(self, topic: str) -> None:
        """Read the queues of a topic once its route is known."""
        route = self.routes.find(topic)
        if self._topics is None or topic not in self._topics or route is None:
            return
        self._topics.discard(topic)
        for queue in route.readable:
            self._unread.add(queue)
            self._read(queue, LogicalOffset(0))

    def _read(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        command = pull_command(
            group=_GROUP,
            queue=queue,
            offset=offset,
            subscription=Subscription(topic=queue.topic),
            suspend_ms=0,
            with_subscription=True,
            batch_max=64,
        )

        def answered(answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.after(_PAUSE_MS, lambda: self._read(queue, offset))
            elif answer.code in _READABLE:
                self._record_answer(queue, offset, answer)
            elif answer.code == ResponseCode.PULL_NOT_FOUND:
                self.ends[queue] = offset
                self._unread.discard(queue)
            elif is_mock_broker(queue.broker_name) and self.now_ms - self._started_ms < _RETRY_MAX_MS:
                # Another broker holds this segment, and the connection to it may be dead without either end knowing.
                self.after(_PAUSE_MS, lambda: self._read(queue, offset))
            else:
                raise Violation(
                    "every queue can be read from its beginning",
                    f"{queue.broker_name}/{queue.topic}/{queue.queue_id}@{offset}: {answer.code} {answer.remark}",
                )

        address = self.find_address(queue)
        if address is None:
            self.after(_PAUSE_MS, lambda: self._read(queue, offset))
        else:
            self.request(address, command, answered)

    def _record_answer(self, queue: MessageQueue, offset: int, answer: Command) -> None:
        next_offset = LogicalOffset(int(answer.fields["nextBeginOffset"]))
        delta = int(answer.fields.get("offsetDelta", "0"))
        # Records carry their physical queue id; only clients without mapping support get the logical one.
        is_physical = is_mock_broker(queue.broker_name) and not self.is_old
        for record in decode_records(answer.body):
            if record.topic != queue.topic or not (is_physical or record.queue_id == queue.queue_id):
                raise Violation(
                    "a queue holds its own messages", f"{queue} holds one of {record.topic}/{record.queue_id}"
                )
        found = []
        # A power loss may tear the properties of a batch that was not acknowledged, which no checksum covers.
        for message in read_messages(answer.body, queue, offset_delta=delta, unreadable=[]):
            if message.offset < offset:
                continue  # It belongs to a batch that begins before, and was read already.
            uid, log_position = uid_of(message.body), log_position_of(message)
            found.append((message.offset, uid, log_position))
            queue_offset = QueueOffset(queue.broker_name, queue.topic, queue.queue_id, message.offset)
            self.records.append(AuditedRecord(queue_offset, log_position, uid))
        self._offset_checker.record_answer(queue, offset, found, next_offset)
        self._read(queue, next_offset)
