"""Requests that one broker relays to another: 7020.

    7020 | from boot number settled hops client | frame frame ...       whole frames, as the client wrote them
         | topic queue generation               |                       their queue, and its presumed generation
    ok   | boot                                 | frame frame ...       the answers, as the client receives them
         | leader generation address            |                       the leader, as far as the answering broker knows

The receiver deduplicates by (from, boot, number), so a sender without an answer may retry. A receiver that leads the
queue in an older generation than the sender knows of is outdated, and executes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.leadership import Leader
from holdfast.model.numbers import Int32, Int64, parse_count
from holdfast.wire.cluster.mapping import to_number
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import KnownInt32, KnownQueueId
from holdfast.wire.frames.frame import Frame, frame_prefix, split_frames

HOPS_MAX: Final = 2
"""Limit between the broker that the client asked and the one that answers: more is a loop. A send is relayed once."""

FRAMES_MAX: Final = 4096


class RelayFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 7020.

    Attributes:
        source: The broker that relays.
        boot: The incarnation of that broker.
        number: Rises with every envelope of that process.
        settled: Every envelope below this number was answered and will not be sent again.
        hops: How often the requests were relayed, including this time.
        client: `host:port` of the client.
        user: The user name of the client, which the relaying broker has checked; empty if it is anonymous.
        to_boot: In a retry: the receiver's process that may have received the envelope before.
        topic, queue: The logical queue of the requests; if they have several, one of them.
        generation: The lowest generation in which the receiver may lead it; None if it is not known.
    """

    source: str = msgspec.field(name="from")
    boot: Int64
    number: Int64
    settled: Int64 = 0
    hops: Int32 = 1
    client: str = ""
    user: str = msgspec.field(default="", name="hf.user")
    to_boot: Int64 | None = None
    topic: str = ""
    queue: KnownQueueId = None
    generation: KnownInt32 = None


class RelayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Header of the answer to 7020.

    Attributes:
        boot: The incarnation that answered.
        leader: The broker that leads the queue now, as far as the receiver knows; empty if it does not know.
        generation: The generation in which that broker leads.
        address: The address of that broker, if it is known.
    """

    boot: Int64
    leader: str = ""
    generation: KnownInt32 = None
    address: str = ""


LEADER_FIELD: Final = "hf.leader"
"""In a relayed answer to a client that supports mappings: the broker that leads the queue.

A refusal names `__syslo__none__` if the queue has no leader.
"""

GENERATION_FIELD: Final = "hf.generation"
"""The generation in which the broker in `LEADER_FIELD` leads."""


def leader_fields(leader: Leader) -> dict[str, str]:
    """Return the fields that name *leader* in a relayed answer."""
    return {LEADER_FIELD: leader.broker, GENERATION_FIELD: str(to_number(leader.generation))}


def leader_in(answer: Command) -> Leader | None:
    """Return the leader that an answer names, or None."""
    broker = answer.fields.get(LEADER_FIELD)
    return None if broker is None else Leader(broker, parse_count(answer.fields.get(GENERATION_FIELD)))


def copy_frame(frame: Frame) -> bytes:
    """Return a frame as bytes, because its views are valid for one event only."""
    return b"".join((frame_prefix(frame.serializer, len(frame.header), len(frame.body)), frame.header, frame.body))


def split_envelope(body: bytes) -> list[Frame]:
    """Return the frames in an envelope.

    Raises:
        RemoteProtocolError: there are no frames, too many, or other bytes.
    """
    frames, consumed = split_frames(memoryview(body))
    if consumed != len(body) or not 0 < len(frames) <= FRAMES_MAX:
        raise RemoteProtocolError(f"an envelope of {len(body)} bytes holds {len(frames)} frames, or something else")
    return frames


def count_frames(pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    """Return the number of frames that begin in *pieces*. No piece ends inside the size field of a frame."""
    count = remaining = 0
    for piece in pieces:
        at = 0
        while at < len(piece):
            if not remaining:
                count += 1
                remaining = 4 + int.from_bytes(piece[at : at + 4], "big")
            step = min(remaining, len(piece) - at)
            at += step
            remaining -= step
    return count
