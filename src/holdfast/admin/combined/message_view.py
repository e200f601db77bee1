"""Messages as values for people and programs: facts, and the body as text, JSON or hex; pages of a queue.

Bodies are bounded: of one message by the caller, and of one page in total.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from holdfast.admin.cluster_access import gather
from holdfast.admin.messages import FoundMessage, Origin
from holdfast.admin.offsets import OffsetTarget, QueueRange, describe_down
from holdfast.admin.operations import Admin
from holdfast.admin.reading import Reader
from holdfast.model.message import ReceivedMessage
from holdfast.model.scope import to_shown_broker, to_wire_broker

PAGE_BODIES_MAX: Final = 4 << 20
"""How many bytes of bodies one page has; further bodies are cut to nothing."""
_HEX_LINE: Final = 16

BodyForm = Literal["auto", "text", "json", "hex"]


class MessageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A message without its body.

    Attributes:
        broker: The broker name of its queue, as clients see it.
        id: The id that its sender gave it.
        offset_id: The id that the broker gave it.
        key: The ordering key.
        keys: All searchable keys.
        reconsume_times: How often a group failed to consume it.
        properties: Those that the sender chose.
        size: The size of the body in bytes.
    """

    topic: str
    broker: str
    queue: int
    offset: int
    id: str
    offset_id: str
    stored_ms: int
    born_ms: int
    tags: str | None
    key: str | None
    keys: list[str]
    reconsume_times: int
    properties: dict[str, str]
    size: int


class BodyView(msgspec.Struct, frozen=True):
    """The body of a message as text.

    Attributes:
        form: The form of `text`: plain text, indented JSON, or a hex dump.
        text: The body, or its beginning.
        is_cut: Whether the body is longer than `text` shows.
    """

    form: Literal["text", "json", "hex"]
    text: str
    is_cut: bool


class MessageView(msgspec.Struct, frozen=True):
    """A message for people.

    Attributes:
        stored_on: The broker that has the record, if it was searched for by key or id.
        origin: The original topic and queue of a dead letter or of a retried message.
    """

    facts: MessageFacts
    body: BodyView
    stored_on: str | None = None
    origin: Origin | None = None


class MessagePage(msgspec.Struct, frozen=True):
    """Some messages of a topic.

    Attributes:
        messages: By offset in one queue, otherwise by store time.
        next_offset: Where the next page of the queue begins; null at its end, or if the page has several queues.
        faults: Queues that cannot be read now, and why.
    """

    topic: str
    messages: list[MessageView]
    next_offset: int | None = None
    faults: list[str] = []


class BodyStyle(msgspec.Struct, frozen=True):
    """How to show bodies: in which form, and how many bytes of each."""

    form: BodyForm = "auto"
    bytes_max: int = 4096


def describe_message(message: ReceivedMessage) -> MessageFacts:
    """Return a message without its body."""
    return MessageFacts(
        topic=message.topic,
        broker=to_shown_broker(message.queue.broker_name),
        queue=message.queue.queue_id,
        offset=message.offset,
        id=message.message_id,
        offset_id=message.offset_id,
        stored_ms=message.stored_ms,
        born_ms=message.born_ms,
        tags=message.tags,
        key=message.key,
        keys=list(message.keys),
        reconsume_times=message.reconsume_times,
        properties=message.user_properties,
        size=len(message.body),
    )


def view_body(body: bytes, style: BodyStyle) -> BodyView:
    """Return a body as text. `auto` chooses JSON for objects and lists, text for other UTF-8, and hex for the rest.

    A body that does not have the requested form is shown as `auto` would.
    """
    is_cut = len(body) > style.bytes_max
    shown = body[: style.bytes_max]
    if style.form in {"auto", "json"} and not is_cut and _is_json(body, any_value=style.form == "json"):
        return BodyView("json", msgspec.json.format(body, indent=2).decode(), is_cut=False)
    if style.form != "hex" and (text := _decode(shown, is_cut=is_cut)) is not None:
        return BodyView("text", text, is_cut)
    return BodyView("hex", _dump(shown), is_cut)


def _is_json(body: bytes, *, any_value: bool) -> bool:
    if not any_value and not body.lstrip().startswith((b"{", b"[")):
        return False
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _decode(body: bytes, *, is_cut: bool) -> str | None:
    """Return UTF-8 text, without a last character that the cut divided; None if it is none."""
    for missing in range(4 if is_cut else 1):
        with contextlib.suppress(UnicodeDecodeError):
            return body[: len(body) - missing].decode()
    return None


def _dump(body: bytes) -> str:
    """Return a hex dump: position, sixteen bytes, and their printable ASCII."""
    lines = []
    for start in range(0, len(body), _HEX_LINE):
        part = body[start : start + _HEX_LINE]
        ascii_text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):{3 * _HEX_LINE}} {ascii_text}")
    return "\n".join(lines)


def view_messages(
    messages: Sequence[ReceivedMessage],
    style: BodyStyle,
    *,
    origins: Sequence[Origin | None] = (),
    found: Sequence[FoundMessage] = (),
) -> list[MessageView]:
    """Return messages for people, with at most `PAGE_BODIES_MAX` bytes of bodies.

    Args:
        messages: The messages.
        style: How to show bodies.
        origins: The origin of each message, if they were searched for.
        found: Where each message was found, if they were searched for.
    """
    left = PAGE_BODIES_MAX
    views = []
    for number, message in enumerate(messages):
        own_style = msgspec.structs.replace(style, bytes_max=min(style.bytes_max, left))
        left -= min(len(message.body), own_style.bytes_max)
        facts = describe_message(message)
        stored_on = None
        if found:
            stored_on = found[number].broker
            facts = msgspec.structs.replace(facts, broker=to_shown_broker(found[number].queue_broker))
        origin = origins[number] if origins else None
        views.append(MessageView(facts, view_body(message.body, own_style), stored_on, origin))
    return views


async def read_page(
    admin: Admin,
    topic: str,
    target: OffsetTarget | None,
    style: BodyStyle,
    *,
    count_max: int,
    queue: int | None = None,
    broker: str | None = None,
) -> MessagePage:
    """Return messages of a topic from *target* on, or the newest ones without a target. No group's offsets change.

    Args:
        admin: The cluster.
        topic: The topic.
        target: Where the page begins in each queue.
        style: How to show bodies.
        count_max: At most this many messages.
        queue: Read only queues with this number.
        broker: Read only queues of this broker, in the form for people.

    Raises:
        RouteNotFound: there is no such topic.
        NotFound: it has no such queue.
    """
    readable = await admin.offsets.find_readable(topic, queue=queue, broker=to_wire_broker(broker) if broker else None)
    faults = [*([describe_down(topic, readable.down)] if readable.down else []), *readable.refused]
    reader = Reader(admin.access)
    if target is None:
        messages = await reader.newest(readable.ranges, count_max, lambda _: True)
        return MessagePage(topic, await _view_with_origins(admin, messages, style), faults=faults)
    starts = await gather(readable.ranges, lambda each: admin.offsets.find_offset(each, target))
    ranges = [msgspec.structs.replace(each, start=start) for each, start in zip(readable.ranges, starts, strict=True)]
    messages = await _read_history(reader, ranges, count_max)
    return MessagePage(topic, await _view_with_origins(admin, messages, style), _next_offset(ranges, messages), faults)


async def _read_history(reader: Reader, ranges: Sequence[QueueRange], count_max: int) -> list[ReceivedMessage]:
    found = []
    async with contextlib.aclosing(reader.history(ranges)) as messages:
        async for message in messages:
            found.append(message)
            if len(found) == count_max:
                break
    return found


def _next_offset(ranges: Sequence[QueueRange], messages: Sequence[ReceivedMessage]) -> int | None:
    if len(ranges) != 1 or not messages:
        return None
    following = messages[-1].offset + 1
    return following if following < ranges[0].end else None


async def _view_with_origins(admin: Admin, messages: Sequence[ReceivedMessage], style: BodyStyle) -> list[MessageView]:
    origins = await gather(messages, admin.messages.find_origin)
    return view_messages(messages, style, origins=origins)


async def find_messages(
    admin: Admin,
    topic: str,
    style: BodyStyle,
    *,
    key: str | None = None,
    message_id: str | None = None,
    start_ms: int = 0,
    end_ms: int | None = None,
    count_max: int = 64,
) -> MessagePage:
    """Return the messages of a topic with a key, or the one with an id.

    Raises:
        RouteNotFound: there is no such topic.
        NotFound: no message has the id.
    """
    if message_id is not None:
        found = await admin.messages.by_id(topic, message_id)
    else:
        assert key is not None, "the caller gives a key or an id"
        span = {"start_ms": start_ms} | ({} if end_ms is None else {"end_ms": end_ms})
        found = await admin.messages.by_key(topic, key, count_max=count_max, **span)
    messages = [each.message for each in found]
    origins = await gather(messages, admin.messages.find_origin)
    return MessagePage(topic, view_messages(messages, style, origins=origins, found=found))
