"""Requests that one broker passes on to another: 7020.

    7020 | from boot number settled hops client | frame frame ...       whole frames, as the client wrote them
         | topic queue generation               |                       what they are about, and who is believed to lead
    ok   | boot                                 | frame frame ...       the answers, as the client gets them
         | leader generation address            |                       who leads, by what the answering broker knows

The receiver deduplicates by (from, boot, number): who got no answer may ask again. A receiver that leads the queue in
an older generation than the sender has heard of is behind, and takes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.leadership import Leader
from holdfast.model.numbers import Int32, Int64, parse_count
from holdfast.model.segment import UNKNOWN_GENERATION
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.frame import Frame, frame_prefix, split_frames

HOPS_MAX: Final = 2
"""Between the broker that a client asked and the one that answers: more is a circle. A send is passed on once."""

FRAMES_MAX: Final = 4096


class RelayFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 7020.

    Attributes:
        source: The broker that passes on.
        boot: Which process of that broker.
        number: Rises with every envelope of that process.
        settled: Everything below this number was answered: nobody will ask again.
        hops: The how-manieth passing on this is, from 1.
        client: `host:port` of the client.
        to_boot: For a repetition: the process that may have got it before.
        topic, queue: The logical queue that the requests are about; if about several, one of them.
        generation: In which the receiver is believed to lead it, at least; -1 when that is not known.
    """

    source: str = msgspec.field(name="from")
    boot: Int64
    number: Int64
    settled: Int64 = 0
    hops: Int32 = 1
    client: str = ""
    to_boot: Int64 | None = None
    topic: str = ""
    queue: Int32 = -1
    generation: Int32 = -1


class RelayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Header of the answer to 7020.

    Attributes:
        boot: Which process answered.
        leader: The broker that leads the queue now, by what is known there; empty when nothing is.
        generation: In which it leads.
        address: Where it is reached, if that is known.
    """

    boot: Int64
    leader: str = ""
    generation: Int32 = -1
    address: str = ""


LEADER_FIELD: Final = "hf.leader"
"""In the answer to a client that reads mappings, if its request was passed on: the broker that leads the queue.

A refusal names `__syslo__none__` if the queue has no leader.
"""

GENERATION_FIELD: Final = "hf.generation"
"""Beside it: the generation in which it leads."""


def leader_in(answer: Command) -> Leader | None:
    """Return who leads the queue, if an answer tells that."""
    broker = answer.fields.get(LEADER_FIELD)
    generation = parse_count(answer.fields.get(GENERATION_FIELD), UNKNOWN_GENERATION)
    return None if broker is None else Leader(broker, generation)


def copy_frame(frame: Frame) -> bytes:
    """Return a frame as the bytes it came as; the views it has now are good for one event only."""
    return b"".join((frame_prefix(frame.serializer, len(frame.header), len(frame.body)), frame.header, frame.body))


def split_envelope(body: bytes) -> list[Frame]:
    """Return the frames in an envelope.

    Raises:
        RemoteProtocolError: there are none, too many, or something that is none.
    """
    frames, taken = split_frames(memoryview(body))
    if taken != len(body) or not 0 < len(frames) <= FRAMES_MAX:
        raise RemoteProtocolError(f"an envelope of {len(body)} bytes holds {len(frames)} frames, or something else")
    return frames


def count_frames(pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    """Return how many frames begin in *pieces*: whole frames, whose first bytes are never parted."""
    count = rest = 0
    for piece in pieces:
        at = 0
        while at < len(piece):
            if not rest:
                count += 1
                rest = 4 + int.from_bytes(piece[at : at + 4], "big")
            step = min(rest, len(piece) - at)
            at += step
            rest -= step
    return count
