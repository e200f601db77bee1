"""Requests among brokers and operators about moves of logical queues, and about the state that brokers exchange.

    operator ─7001 move─> old leader ─7010 prepare─> new leader
                                     ─7011 open────>
                          old leader <─7012 ask────  (after a restart: what became of it?)
                                     ─7013 abort──>

Bodies are JSON objects of our own. Numbers are logical unless they are called physical. The order of requests is
decided elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.group import Subscription
from holdfast.model.numbers import INT64, Int32, Int64
from holdfast.model.queue import LogicalOffset
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import (
    KnownFloor,
    MappedTopic,
    PhysicalQueueNumber,
    QueueNumber,
    WireSegment,
    from_number,
)
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, KnownQueueId, from_fields
from holdfast.wire.requests.forward import AcceptedForward
from holdfast.wire.requests.sink import SinkState

_Body = TypeVar("_Body", bound=msgspec.Struct)
_Offset = Annotated[LogicalOffset, INT64]


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """7001: move these queues, which the receiver leads, to another broker. The answer is a `Move`."""

    topic: str
    queues: list[QueueNumber]
    target: str


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One group of queues that is being moved, as operators see it.

    Attributes:
        state: planned, prepared, granted, done, failed or cancelled.
        reason: Why it failed or waits.
        copied: Bytes of messages that the new segments held before they accepted sends, as the target counted them when
            it opened them. None before that, if the answer was lost, or if the target does not count.
    """

    id: str
    topic: str
    queues: list[QueueNumber]
    source: str
    target: str
    state: str
    reason: str = ""
    started_ms: Int64 = 0
    changed_ms: Int64 = 0
    copied: Int64 | None = None


class OpenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Header of the answers to 7005 and 7011, with the value of `Move.copied`."""

    copied: Int64 | None = None


class MoveList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7002."""

    moves: list[Move] = []


class MoveId(msgspec.Struct, frozen=True, kw_only=True):
    """7003 and 7004: cancel or resume a move by its id."""

    id: str


class MappingsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7007: every static topic as the broker records it, and the moves that it drives.

    Attributes:
        draining: The broker gets no more queues, unless an operator names it as the target.
    """

    topics: list[MappedTopic] = []
    moves: list[Move] = []
    draining: bool = False


class DeleteMappingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 7009: forget one logical queue of a topic, or without a queue the whole record of the topic."""

    topic: str
    queue: KnownQueueId = None


class QueueSegments(msgspec.Struct, frozen=True, kw_only=True):
    """One logical queue and all its segments, oldest first."""

    queue: QueueNumber
    segments: list[WireSegment] = msgspec.field(name="homes")


class PrepareQueues(msgspec.Struct, frozen=True, kw_only=True):
    """7010: prepare to lead these queues. Their segments end with the old leader's open one.

    Attributes:
        address: The address of the source. The target reads the source's state there, even if no name server is up.
    """

    move: str
    source: str
    topic: TopicConfig
    scope: str
    epoch: Int64
    total: Int32
    queues: list[QueueSegments]
    address: str = ""


class PreparedQueues(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7010: the physical queue for each logical one."""

    physical: dict[QueueNumber, PhysicalQueueNumber]


class HeldLock(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's lock on a queue."""

    group: str
    client: str
    queue: QueueNumber
    renewed_ms: Int64 = msgspec.field(name="taken_ms")


class OpenQueues(msgspec.Struct, frozen=True, kw_only=True):
    """7011: lead these queues from now on.

    Attributes:
        queues: Their segments end with the receiver's own, which begins exactly where the previous one ended.
        offsets: Committed offsets: group to queue to offset.
        resets: Offsets that were reset from outside the group and not yet sent to its consumers: group to queues.
        forwarded: Names of forwarded messages that are in these queues and could be sent again.
        sinks: The progress of exactly-once sinks.
    """

    move: str
    source: str
    topic: str
    scope: str
    epoch: Int64
    total: Int32
    queues: list[QueueSegments]
    offsets: dict[str, dict[QueueNumber, _Offset]] = {}
    resets: dict[str, list[QueueNumber]] = {}
    locks: list[HeldLock] = []
    forwarded: list[AcceptedForward] = []
    sinks: list[SinkState] = []


class MoveQuery(msgspec.Struct, frozen=True, kw_only=True):
    """7012 and 7013: what became of this move; abort it."""

    move: str
    topic: str
    queues: list[QueueNumber]


class MoveQueryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7012: `going on`, `granted` (then with the open order again), or `unknown`."""

    state: str
    opening: OpenQueues | None = None


class ForceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """7005: lead these queues although their leader cannot be reached. The segments are the last known ones."""

    topic: TopicConfig
    scope: str
    epoch: Int64
    total: Int32
    queues: list[QueueSegments]


class AbandonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """7006: give up any records that the dead leader may hold past this logical end of that generation."""

    topic: str
    queue: QueueNumber
    generation: Int32
    end: _Offset


class DiscardRequest(msgspec.Struct, frozen=True, kw_only=True):
    """7014, to the leader, then to the segment's broker: expire this closed segment before its records are deleted."""

    topic: str
    queue: QueueNumber
    generation: Int32


class ForgetBrokerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """7015: that broker was removed; drop its expired segments. Old records may still name it."""

    broker: str


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """7016: exclude the receiver from plans that name no target, or include it again."""

    draining: bool


class FloorQuery(msgspec.Struct, frozen=True, kw_only=True):
    """7017: what does the receiver know about the used offsets of these queues?"""

    topic: str
    queues: list[QueueNumber]


class QueueFloor(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker knows about the offsets of one logical queue.

    Attributes:
        floor: No offset at or above it was used, as far as this broker knows.
        is_led: The broker leads the queue, or is about to open it.
        offsets: Committed offsets, committed here or backed up from the leader: group to offset.
        resets: Groups whose offset was reset from outside and not yet sent to their consumers.
        copied: The generation of the leader from which the offsets were backed up.
    """

    queue: QueueNumber
    floor: KnownFloor
    is_led: bool = False
    offsets: dict[str, _Offset] = {}
    resets: list[str] = []
    copied: Int32 = -1

    @property
    def copied_generation(self) -> int | None:
        """The generation in `copied`; None if it is not known."""
        return from_number(self.copied)


class QueueFloors(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7017.

    Attributes:
        epoch: The epoch of the broker's record of the topic; -1 if it has none.
        total: The number of logical queues in that record.
        queues: The queues about which anything is known.
    """

    epoch: Int64 = -1
    total: Int32 = 0
    queues: list[QueueFloor] = []


class QueueTotal(msgspec.Struct, frozen=True, kw_only=True):
    """7008: the number of logical queues of a topic, and the epoch since which it holds."""

    topic: TopicConfig
    scope: str
    epoch: Int64
    total: Int32


class GroupMemberList(msgspec.Struct, frozen=True, kw_only=True):
    """7030: the clients of a broker in groups that read static topics. Every report is complete.

    Attributes:
        boot_ms: When the broker started: a later start invalidates earlier lists.
        version: Rises with every change since then.
        groups: Group to client ids.
        subscriptions: The subscriptions of each group, by the heartbeats of these members.
        producers: Producer groups with connected members.
    """

    broker: str
    boot_ms: Int64
    version: Int64
    groups: dict[str, list[str]]
    subscriptions: dict[str, list[Subscription]] = {}
    producers: list[str] = []


class ConsumedTopicList(msgspec.Struct, frozen=True, kw_only=True):
    """7035: the topics that groups consume at a broker. Every report is complete.

    Attributes:
        groups: Group to topics.
    """

    broker: str
    groups: dict[str, list[str]]


NEVER_SENT: Final = -1
"""`boot_ms` and `number` of a backup that a replica derives from its copy: older than all that its master sent."""


class QueueOffsetBackup(msgspec.Struct, frozen=True, kw_only=True):
    """Committed offsets of one logical queue, as its leader reports them.

    Attributes:
        generation: The generation in which the leader leads.
        boot_ms: When the leader started.
        number: Rises with every backup since then.
        offsets: Group to offset, for all groups.
        resets: Groups whose offset was reset from outside and not yet sent to their consumers.
        own: True for offsets that groups committed at the leader's replica while the leader was away: they are newer.
    """

    topic: str
    queue: QueueNumber
    generation: Int32
    boot_ms: Int64
    number: Int64
    offsets: dict[str, _Offset]
    resets: list[str] = []
    own: bool = False


class OffsetBackupList(msgspec.Struct, frozen=True, kw_only=True):
    """7031: store these backups. Also the answer to 7032."""

    backups: list[QueueOffsetBackup] = msgspec.field(name="copies")


class OffsetBackupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7031.

    Attributes:
        boot_ms: When the receiver started: backups sent to an earlier process may be lost.
        unknown: Topics that the receiver does not know, so that it stored nothing for them.
    """

    boot_ms: Int64
    unknown: list[str] = []


class OffsetBackupQuery(msgspec.Struct, frozen=True, kw_only=True):
    """7032: which backups does the receiver store for these queues?"""

    topic: str
    queues: list[QueueNumber]


def read_copied_bytes(answer: Command) -> int | None:
    """Return the copied bytes in an answer to 7005 or 7011; None if it has none."""
    try:
        return from_fields(OpenAnswer, answer.fields).copied
    except BadField:
        return None


def decode_body(data: bytes | memoryview, kind: type[_Body]) -> _Body:
    """Decode a body into *kind*.

    Raises:
        RemoteProtocolError: the body does not have that shape.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{kind.__name__} cannot be read: {error}") from error


def encode_body(body: msgspec.Struct) -> bytes:
    """Return *body* as JSON."""
    return msgspec.json.encode(body)
