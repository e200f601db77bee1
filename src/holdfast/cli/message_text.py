"""Print one message: as a line for people, as a JSON object for programs, or as its bare body."""

from __future__ import annotations

import base64
import sys
from typing import Any, Literal

import msgspec

from holdfast.admin.combined.message_view import describe_message
from holdfast.admin.messages import Origin
from holdfast.admin.tables import time_text
from holdfast.model.message import ReceivedMessage
from holdfast.model.scope import to_shown_broker

Format = Literal["text", "json", "body", "raw"]


def to_object(message: ReceivedMessage, origin: Origin | None = None) -> dict[str, Any]:
    """Return *message* as plain values; a body that is not UTF-8 text is in `body_base64` instead of `body`."""
    found: dict[str, Any] = msgspec.to_builtins(describe_message(message))
    found |= {} if origin is None else {"origin": msgspec.to_builtins(origin)}
    try:
        return found | {"body": message.body.decode()}
    except UnicodeDecodeError:
        return found | {"body_base64": base64.b64encode(message.body).decode()}


def origin_text(origin: Origin) -> str:
    """Return the original topic, queue and offset of a message that its group failed to consume."""
    if origin.queue is None:
        return f"{origin.topic} (queue unknown: no longer stored)"
    return f"{origin.topic} {origin.broker}/{origin.queue}@{origin.offset}"


def to_line(message: ReceivedMessage, origin: Origin | None = None) -> str:
    """Return *message* as one line: time, queue and offset, origin, tag and keys, body."""
    marks = [f"[{message.tags}]"] if message.tags else []
    marks += [f"{key}" for key in message.keys] or ([message.key] if message.key else [])
    broker = to_shown_broker(message.queue.broker_name)
    queue_text = f"{broker}/{message.queue.queue_id}" if broker else ""
    return "  ".join(
        part
        for part in (
            time_text(message.stored_ms) or "-",
            f"{queue_text}@{message.offset}",
            f"from {origin_text(origin)}" if origin else "",
            " ".join(marks),
            body_text(message),
        )
        if part
    )


def body_text(message: ReceivedMessage) -> str:
    """Return the body as text without control characters; if it is not UTF-8, return its size and first bytes."""
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return f"<{len(message.body)} bytes: {message.body[:32].hex()}{'...' if len(message.body) > 32 else ''}>"
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def write_message(message: ReceivedMessage, style: Format, origin: Origin | None = None) -> None:
    """Write *message* to standard output."""
    match style:
        case "text":
            line = (to_line(message, origin) + "\n").encode()
        case "json":
            line = msgspec.json.encode(to_object(message, origin)) + b"\n"
        case "body":
            line = message.body + b"\n"
        case "raw":
            line = message.body
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
