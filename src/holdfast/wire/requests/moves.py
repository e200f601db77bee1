"""What brokers, and operators, say to each other about moving logical queues. Bodies are JSON objects of our own.

    operator ─7001 move─> old leader ─7010 prepare─> new leader
                                     ─7011 open────>
                          old leader <─7012 ask────  (after a restart: what became of it?)
                                     ─7013 abort──>

Numbers here are logical unless they are called physical. Knows no bytes on disk and no order of things.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.group import Subscription
from holdfast.model.numbers import Int32, Int64
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import Home, KnownFloor, MappedTopic
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields
from holdfast.wire.requests.forward import ForwardMark
from holdfast.wire.requests.sink import SinkState

_Body = TypeVar("_Body", bound=msgspec.Struct)


class MoveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """7001: move these queues, which the receiver leads, to another broker. Answered with a `Move`."""

    topic: str
    queues: list[Int32]
    target: str


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One group of queues on its way, as operators see it.

    Attributes:
        state: planned, prepared, granted, done, failed or cancelled.
        reason: Why it failed, or what it waits for.
        copied: Bytes of messages in the new homes from before they took sends, as their broker counted them when it
            opened them. None before that, and where the answer was lost, or came from a broker that does not count.
    """

    id: str
    topic: str
    queues: list[Int32]
    source: str
    target: str
    state: str
    reason: str = ""
    started_ms: Int64 = 0
    changed_ms: Int64 = 0
    copied: Int64 | None = None


class OpenedFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of the answers to 7005 and 7011: what `Move.copied` is."""

    copied: Int64 | None = None


class MoveList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7002."""

    moves: list[Move] = []


class MoveName(msgspec.Struct, frozen=True, kw_only=True):
    """7003 and 7004: cancel or take up again a move by its id."""

    id: str


class Mappings(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7007: every static topic as the broker records it, and the moves that it drives.

    Attributes:
        draining: It shall get no more queues, unless somebody names it.
    """

    topics: list[MappedTopic] = []
    moves: list[Move] = []
    draining: bool = False


class DeleteMappingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 7009: forget one logical queue of a topic, or with -1 the whole record of the topic."""

    topic: str
    queue: Int32 = -1


class QueueHomes(msgspec.Struct, frozen=True, kw_only=True):
    """One logical queue and all its homes, oldest first."""

    queue: Int32
    homes: list[Home]


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    """7010: be ready to lead these queues. The homes end with the old leader's open one.

    Attributes:
        address: Where the source is reached: what it holds is read from there, also when no name server is up.
    """

    move: str
    source: str
    topic: TopicConfig
    scope: str
    epoch: Int64
    total: Int32
    queues: list[QueueHomes]
    address: str = ""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7010: the physical queue that each logical one will get."""

    physical: dict[Int32, Int32]


class LockHeld(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's lock on a queue."""

    group: str
    client: str
    queue: Int32
    taken_ms: Int64


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """7011: lead these queues from now on.

    Attributes:
        queues: Their homes end with the receiver's own, which begins exactly where the one before it ended.
        offsets: Committed offsets: group to queue to offset.
        resets: Those that were set from outside, of which consumers have yet to hear: group to queues.
        forwarded: Names of forwarded messages that are in these queues, and could come again.
        sinks: What sinks that want every row once have written.
    """

    move: str
    source: str
    topic: str
    scope: str
    epoch: Int64
    total: Int32
    queues: list[QueueHomes]
    offsets: dict[str, dict[Int32, Int64]] = {}
    resets: dict[str, list[Int32]] = {}
    locks: list[LockHeld] = []
    forwarded: list[ForwardMark] = []
    sinks: list[SinkState] = []


class MoveQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """7012 and 7013: what became of this move; forget it."""

    move: str
    topic: str
    queues: list[Int32]


class MoveVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7012: `going on`, `granted` (then with the opening once more), or `unknown`."""

    state: str
    opening: Opening | None = None


class ForceOrder(msgspec.Struct, frozen=True, kw_only=True):
    """7005: lead these queues although their leader cannot be asked. The homes are the last that are known."""

    topic: TopicConfig
    scope: str
    epoch: Int64
    total: Int32
    queues: list[QueueHomes]


class AbandonOrder(msgspec.Struct, frozen=True, kw_only=True):
    """7006: give up what the dead leader may still hold behind this end (logical) of that generation."""

    topic: str
    queue: Int32
    generation: Int32
    end: Int64


class DiscardOrder(msgspec.Struct, frozen=True, kw_only=True):
    """7014, to the leader and then to the home's broker: expire this closed home before its records are cleaned."""

    topic: str
    queue: Int32
    generation: Int32


class ForgetOrder(msgspec.Struct, frozen=True, kw_only=True):
    """7015: that broker was removed; drop the expired homes that are listed for it. Old copies may still name it."""

    broker: str


class DrainOrder(msgspec.Struct, frozen=True, kw_only=True):
    """7016: the receiver shall get no more queues by plans that name nobody; or it may again."""

    draining: bool


class FloorQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """7017: what do you know of the offsets that these queues have used?"""

    topic: str
    queues: list[Int32]


class QueueFloor(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker knows of the offsets of one logical queue.

    Attributes:
        floor: None of its offsets from there on was used, as far as this broker knows.
        is_led: The broker leads the queue, or is about to open it.
        offsets: Where groups are, as committed here or copied from the leader: group to offset.
        resets: Groups whose offset was set from outside, and who have yet to hear of it.
        copied: The generation of the leader whose word the offsets are.
    """

    queue: Int32
    floor: KnownFloor
    is_led: bool = False
    offsets: dict[str, Int64] = {}
    resets: list[str] = []
    copied: Int32 = -1


class QueueFloors(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7017.

    Attributes:
        epoch: Of the broker's record of the topic; -1 if it has none.
        total: How many logical queues the topic has by that record.
        queues: The queues of which anything is known.
    """

    epoch: Int64 = -1
    total: Int32 = 0
    queues: list[QueueFloor] = []


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """7008: how many logical queues a topic has, and since which change."""

    topic: TopicConfig
    scope: str
    epoch: Int64
    total: Int32


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """7030: who is connected to a broker, in groups that read static topics. The whole list, every time.

    Attributes:
        boot_ms: When the broker started: a later start makes earlier lists void.
        version: Rises with every change since then.
        groups: Group to client ids.
        subscriptions: What each group wants, by the heartbeats of these members.
        producers: Groups of producers of which some are connected.
    """

    broker: str
    boot_ms: Int64
    version: Int64
    groups: dict[str, list[str]]
    subscriptions: dict[str, list[Subscription]] = {}
    producers: list[str] = []


class Consumed(msgspec.Struct, frozen=True, kw_only=True):
    """7035: which topics groups consume at a broker. Every report is complete.

    Attributes:
        groups: Group to topics.
    """

    broker: str
    groups: dict[str, list[str]]


class OffsetCopy(msgspec.Struct, frozen=True, kw_only=True):
    """How far groups have consumed one logical queue, by its leader's word.

    Attributes:
        generation: In which it leads.
        boot_ms: When it started.
        number: Rises with every copy since then.
        offsets: Group to offset: all of them.
        resets: Groups whose offset was set from outside, and who have yet to hear of it.
        own: Not the leader's word, but what groups committed at a replica of it while it was away: that is newer.
    """

    topic: str
    queue: Int32
    generation: Int32
    boot_ms: Int64
    number: Int64
    offsets: dict[str, Int64]
    resets: list[str] = []
    own: bool = False


class CopiedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """7031: keep these. Also the answer to 7032."""

    copies: list[OffsetCopy]


class CopyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7031.

    Attributes:
        boot_ms: When the receiver started: what an earlier process was told last may be gone.
        unknown: Topics of which nothing is kept, as they are not known there.
    """

    boot_ms: Int64
    unknown: list[str] = []


class OffsetQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """7032: what do you keep of these queues?"""

    topic: str
    queues: list[Int32]


def read_copied(answer: Command) -> int | None:
    """Return what an answer to 7005 or 7011 says of copied bytes; None if it says nothing."""
    try:
        return from_fields(OpenedFields, answer.fields).copied
    except BadField:
        return None


def decode_body(data: bytes | memoryview, kind: type[_Body]) -> _Body:
    """Decode a body.

    Raises:
        RemoteProtocolError: it is none of that kind.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{kind.__name__} cannot be read: {error}") from error


def encode_body(body: msgspec.Struct) -> bytes:
    """Return the JSON of a body."""
    return msgspec.json.encode(body)
