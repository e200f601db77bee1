"""Deletion markers at a name server: 216 makes one, an explicit create lifts it, registrations exchange them.

    operator ─ 216 ──> topic known here? ─> marked, on disk ─> answered
    broker ─── 103 ──> its markers are merged with ours ─> the answer carries the result, if the broker's differ
    operator ─ 217 ──> lifted; likewise by a broker that handles an explicit create, in its next 103

A name server that was away learns newer markers from the first broker that registers, before it serves a route of that
broker. Kept in the KV store.
"""

from __future__ import annotations

from typing import Final

from holdfast.machine.effects import Effect
from holdfast.model.deletion import Deletions, is_marked_when_deleted
from holdfast.model.errors import RemoteProtocolError
from holdfast.nameserver.config.kv_config import DELETIONS, KvStore, Waiter
from holdfast.nameserver.request import Answer, Request
from holdfast.wire.cluster.deletions import decode_markers, encode_markers

_KEY: Final = "markers"


class DeletionMarkers:
    """The known markers.

    Attributes:
        fault: Why the saved markers cannot be read; None if they can.
    """

    def __init__(self, kv: KvStore) -> None:
        self._kv = kv
        self._deletions = Deletions()
        self._text = encode_markers([])
        self.fault: str | None = None
        try:
            self._deletions.merge(decode_markers(kv.find(DELETIONS, _KEY) or ""))
        except RemoteProtocolError as error:
            self.fault = str(error)
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
        self._deletions.delete(topic, cluster or "", request.now_ms)
        self._put()
        ready, writes = self._kv.save(Waiter(request.channel, request.command))
        request.effects += writes
        return request.answer() if ready else None

    def lift(self, topic: str, cluster: str, request: Request) -> None:
        """Lift the marker: *topic* was explicitly created in *cluster*; an empty cluster stands for all."""
        if self._deletions.lift(topic, cluster, request.now_ms):
            self._save(request.effects)

    def merge_from_broker(self, text: str | None, request: Request) -> str | None:
        """Merge a broker's markers; return the result if it differs from what the broker sent."""
        if text is None or text == self._text:
            return None
        try:
            if self._deletions.merge(decode_markers(text)):
                self._save(request.effects)
        except RemoteProtocolError as error:
            request.log("warning", "deletion markers of a broker cannot be read", reason=str(error))
        return None if text == self._text else self._text

    def _save(self, effects: list[Effect]) -> None:
        self._put()
        effects += self._kv.save_without_waiter()

    def _put(self) -> None:
        self._text = encode_markers(self._deletions.all())
        self._kv.put(DELETIONS, _KEY, self._text)
