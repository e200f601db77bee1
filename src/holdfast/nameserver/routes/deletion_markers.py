"""Deletion markers at a name server: 216 makes one, an explicit create lifts it, registrations exchange them.

    operator ─ 216 ──> topic known here? ─> marked, on disk ─> answered
    broker ─── 103 ──> its markers are merged with ours ─> the answer carries the result, if the broker's differ
    operator ─ 217 ──> lifted; likewise by a broker that handles an explicit create, in its next 103

A name server that was away learns newer markers from the first broker that registers, before it serves a route of that
broker. Kept in the KV store.
"""

from __future__ import annotations

from typing import Final

from holdfast.machine.request import Answer, Request
from holdfast.machine.turn import Turn
from holdfast.model.deletion import Deletions, is_marked_when_deleted
from holdfast.model.errors import RemoteProtocolError
from holdfast.nameserver.config.kv_config import DELETIONS, FILE, KvStore
from holdfast.wire.cluster.deletions import decode_markers, encode_markers

_KEY: Final = "markers"


class DeletionMarkers:
    """The known markers."""

    def __init__(self, turn: Turn, kv: KvStore) -> None:
        self._turn = turn
        self._kv = kv
        self._deletions = Deletions()
        try:
            self._deletions.merge(decode_markers(kv.find(DELETIONS, _KEY) or ""))
        except RemoteProtocolError as error:
            turn.log("warning", "deletion markers forgotten: they cannot be read", file=FILE, reason=str(error))
        self._text = encode_markers(self._deletions.all())

    def is_deleted(self, topic: str, cluster: str) -> bool:
        """Return whether *topic* was deleted in *cluster*; an empty cluster stands for all."""
        return self._deletions.is_deleted(topic, cluster)

    def text_of(self, topic: str) -> str:
        """Return the encoded markers of *topic*."""
        return encode_markers(self._deletions.of(topic))

    def delete(self, topic: str, cluster: str | None, request: Request) -> Answer:
        """Mark *topic* as deleted in *cluster*, or everywhere. The answer waits until the marker is on disk."""
        if not is_marked_when_deleted(topic):
            return request.answer()
        self._deletions.delete(topic, cluster or "", self._turn.now_ms)
        self._put()
        return self._kv.save(request)

    def lift(self, topic: str, cluster: str) -> None:
        """Lift the marker: *topic* was explicitly created in *cluster*; an empty cluster stands for all."""
        if self._deletions.lift(topic, cluster, self._turn.now_ms):
            self._save()

    def merge_from_broker(self, text: str | None, peer: str) -> str | None:
        """Merge the markers of a broker at *peer*; return the result if it differs from what the broker sent."""
        if text is None or text == self._text:
            return None
        try:
            if self._deletions.merge(decode_markers(text)):
                self._save()
        except RemoteProtocolError as error:
            self._turn.log("warning", "deletion markers of a broker cannot be read", reason=str(error), peer=peer)
        return None if text == self._text else self._text

    def _save(self) -> None:
        self._put()
        self._kv.save_soon()

    def _put(self) -> None:
        self._text = encode_markers(self._deletions.all())
        self._kv.put(DELETIONS, _KEY, self._text)
