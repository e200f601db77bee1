"""Deletion markers on the wire.

    103  hf.deletions=all markers, as text   broker <─> name server; in the answer only where the broker's differ
    105  hf.deletions=those of the topic     name server ─> broker that asks with hf.reports
         hf.deleted=true                     name server ─> client, beside TOPIC_NOT_EXIST: the topic was deleted

A broker that sends no `hf.deletions` in 103 (Java's) knows of no markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.model.deletion import MARKERS_MAX, Marker
from holdfast.model.errors import RemoteProtocolError

DELETIONS_FIELD: Final = "hf.deletions"
DELETED_FIELD: Final = "hf.deleted"
_TEXT_MAX: Final = 1024 * 1024
_NAME_MAX: Final = 255


def encode_markers(markers: Sequence[Marker]) -> str:
    """Return *markers* as they are sent and kept."""
    return msgspec.json.encode(markers).decode()


def decode_markers(text: str) -> list[Marker]:
    """Return the markers that *text* holds; an empty text holds none.

    Raises:
        RemoteProtocolError: it holds something else, or too much.
    """
    if not text:
        return []
    if len(text) > _TEXT_MAX:
        raise RemoteProtocolError(f"deletion markers have {len(text)} bytes, at most {_TEXT_MAX} are read")
    try:
        markers = msgspec.json.decode(text, type=list[Marker])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"deletion markers cannot be read: {error}") from error
    if len(markers) > MARKERS_MAX:
        raise RemoteProtocolError(f"{len(markers)} deletion markers, at most {MARKERS_MAX} are read")
    for marker in markers:
        if not marker.topic or max(len(marker.topic), len(marker.cluster)) > _NAME_MAX or marker.version < 0:
            raise RemoteProtocolError(f"a deletion marker names {marker.topic[:80]!r} with version {marker.version}")
    return markers
