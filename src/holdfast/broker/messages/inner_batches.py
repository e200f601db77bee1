"""Decides which sends are stored as an inner batch, and refuses invalid ones.

    sys flag 0x80, INNER_NUM outside            packed by its sender, who counted: its body may be compressed
    a batch (320) with UNIQ_KEY outside         from a Java client, without a count: its items are counted here

Both apply only to topics with an index by record. Any other batch is always split into records. Items are never
decoded: counting them only needs their sizes, and a compressed batch is not even counted.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.flow.request import Refusal
from holdfast.machine.effects import Piece
from holdfast.model import property_names as names
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.numbers import parse_count
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.batch import count_items
from holdfast.wire.records.compression import COMPRESSED
from holdfast.wire.records.inner_batch import COUNT_MAX, INNER_BATCH
from holdfast.wire.records.properties import VALUE_END, find_property
from holdfast.wire.records.record import INNER_BATCH as IS_INNER
from holdfast.wire.records.record import TRANSACTION_MASK
from holdfast.wire.requests.send import SendFields

_DELAYS: Final = (names.DELAY, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_COUNT: Final = f"{names.INNER_COUNT}\x01"


class InnerBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch to be stored as one record.

    Attributes:
        unique_key: The id of the batch; empty if its sender set none.
        count: The number of messages.
        properties: The properties of the batch, including the count.
        sys_flag: The sys flag of the record.
    """

    unique_key: str
    count: int
    properties: str
    sys_flag: int


def claims_inner_batch(fields: SendFields) -> bool:
    """Return whether a send claims to be an inner batch; the claim may be invalid."""
    return bool(fields.sys_flag & IS_INNER) or find_property(fields.properties, names.INNER_COUNT) is not None


def validate_inner_batch(fields: SendFields, body: Piece, *, accepts_batches: bool) -> InnerBatch | Refusal | None:
    """Validate a send; return it as an inner batch, None if it is none, or a refusal if it is invalid.

    Args:
        fields: The header of the send.
        body: The items, perhaps compressed.
        accepts_batches: Whether a record of the target queue may hold a batch.
    """
    properties = fields.properties
    stated_count = find_property(properties, names.INNER_COUNT) if _COUNT in properties else None
    has_inner_flag = bool(fields.sys_flag & IS_INNER)
    if not has_inner_flag:
        if stated_count is not None:
            return _refuse("INNER_NUM is set without 0x80 in the sys flag: set 0xC0, or remove INNER_NUM")
        if not (accepts_batches and fields.batch) or fields.sys_flag & COMPRESSED:
            return None
    elif not accepts_batches:
        return _refuse(
            f"topic {fields.topic} is indexed by message and cannot store inner batches: send it without 0x80 in "
            "its sys flag, uncompressed, and it is split; or send to a topic with queue.type=BatchCQ"
        )
    unique_key = find_property(properties, names.UNIQUE_KEY) or ""
    if not (has_inner_flag or unique_key):
        return None
    if fault := _find_fault(fields):
        return _refuse(fault)
    count = _find_count(
        stated_count, body, has_inner_flag=has_inner_flag, is_compressed=bool(fields.sys_flag & COMPRESSED)
    )
    if isinstance(count, Refusal):
        return count
    if properties and properties[-1] != VALUE_END:
        properties += VALUE_END
    if not has_inner_flag:
        properties = f"{properties}{_COUNT}{count}{VALUE_END}"
    return InnerBatch(unique_key, count, properties, fields.sys_flag | INNER_BATCH)


def _find_fault(fields: SendFields) -> str | None:
    if fields.topic.startswith(RETRY_PREFIX) or fields.sys_flag & TRANSACTION_MASK:
        return "an inner batch can be neither a retry nor a transaction: send its messages one by one"
    properties = fields.properties
    # Fast check: each of the names contains one of these words, and hardly anything else does.
    if ("DELAY" in properties or "TIMER_" in properties) and any(
        find_property(properties, name) is not None for name in _DELAYS
    ):
        return "an inner batch cannot be delayed: send its messages one by one"
    return None


def _find_count(stated_count: str | None, body: Piece, *, has_inner_flag: bool, is_compressed: bool) -> int | Refusal:
    """Return the number of messages in a batch. The sender's count is trusted only if the batch is compressed."""
    count = parse_count(stated_count, 0)
    if has_inner_flag and not 1 <= count <= COUNT_MAX:
        stated = "no INNER_NUM" if stated_count is None else f"INNER_NUM {stated_count[:20]!r}"
        return _refuse(f"an inner batch must state its number of messages, 1 to {COUNT_MAX}; this one has {stated}")
    if is_compressed:
        return count
    try:
        counted = count_items(body, count_max=COUNT_MAX)
    except RemoteProtocolError as error:
        return _refuse(f"{error}; an inner batch holds 1 to {COUNT_MAX} messages")
    if not counted:
        return _refuse("the batch is empty")
    if has_inner_flag and counted != count:
        return _refuse(f"the inner batch states {count} messages but holds {counted}: send the correct INNER_NUM")
    return counted


def _refuse(reason: str) -> Refusal:
    return Refusal(ResponseCode.MESSAGE_ILLEGAL, reason)
