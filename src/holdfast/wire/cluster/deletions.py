"""Deletion markers on the wire.

    103  hf.deletions=all markers, as text   broker <─> name server; the answer has them only if the broker's differ
    105  hf.deletions=those of the topic     name server ─> broker that asks with hf.reports
         hf.deleted=true                     name server ─> client, beside TOPIC_NOT_EXIST: the topic was deleted

A broker that sends no `hf.deletions` in 103 (a Java broker) does not support markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.model.deletion import MARKERS_MAX, DeletionMarker
from holdfast.model.errors import RemoteProtocolError

DELETIONS_FIELD: Final = "hf.deletions"
DELETED_FIELD: Final = "hf.deleted"
_TEXT_MAX: Final = 1024 * 1024
_NAME_MAX: Final = 255


def encode_markers(markers: Sequence[DeletionMarker]) -> str:
    """Return *markers* in the form in which they are sent and stored."""
    return msgspec.json.encode(markers).decode()


def decode_markers(text: str) -> list[DeletionMarker]:
    """Decode the markers in *text*; an empty text holds none.

    Raises:
        RemoteProtocolError: *text* is malformed or too large.
    """
    if not text:
        return []
    if len(text) > _TEXT_MAX:
        raise RemoteProtocolError(f"deletion markers have {len(text)} bytes, at most {_TEXT_MAX} are read")
    try:
        markers = msgspec.json.decode(text, type=list[DeletionMarker])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"deletion markers cannot be read: {error}") from error
    if len(markers) > MARKERS_MAX:
        raise RemoteProtocolError(f"{len(markers)} deletion markers, at most {MARKERS_MAX} are read")
    for marker in markers:
        if not marker.topic or max(len(marker.topic), len(marker.cluster)) > _NAME_MAX or marker.version < 0:
            raise RemoteProtocolError(
                f"a deletion marker for {marker.topic[:80]!r} is invalid, version {marker.version}"
            )
    return markers
