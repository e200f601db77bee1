"""Deletion markers that this broker keeps and passes on between name servers.

    response of a name server ─> merged, persisted ─> every name server gets the result with a registration, at once
    explicit create (17, 18, 513) ─> lifted, persisted ─> the registration of the topic reports it
    215, before name servers know the deletion (216) ─> held for some seconds, in memory only

A send does not create a topic that has a marker. The file is `config/holdfastDeletions.json`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.flow.component import NEWS_TIMER
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.config_file import config_file
from holdfast.machine.turn import Turn
from holdfast.model.deletion import DeletionMarker, Deletions, is_marked_when_deleted
from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.deletions import decode_markers, encode_markers

NAME: Final = "holdfastDeletions.json"
BLOCK_MS: Final = 10_000
"""How long sends cannot recreate a topic after 215: tools delete it at all brokers before they send 216."""


class _Saved(msgspec.Struct, frozen=True):
    """Content of the file."""

    markers: list[DeletionMarker] = []


class DeletionMarkers:
    """The deletion markers known to this broker.

    Attributes:
        encoded: The markers in the format of a registration.
        file: The file with the markers.
    """

    def __init__(self, disk: Disk, options: BrokerOptions, turn: Turn) -> None:
        self._turn = turn
        self._cluster = options.cluster
        self._has_name_servers = bool(options.namesrv)
        self.file = config_file(turn, disk, NAME, _Saved, lambda: _Saved(self._deletions.all()))
        saved = self.file.load() or _Saved()
        self._deletions = Deletions(saved.markers)
        self._blocked: dict[str, int] = {}  # topic -> time when a deletion without a marker expires
        self.encoded = encode_markers(self._deletions.all())

    def is_deleted(self, topic: str) -> bool:
        """Return whether *topic* must not be created for a send."""
        return self._blocked.get(topic, 0) > self._turn.now_ms or self._deletions.is_deleted(topic, self._cluster)

    def merge(self, text: str | None) -> None:
        """Merge the markers that a name server sent."""
        if not text:
            return
        try:
            markers = decode_markers(text)
        except RemoteProtocolError:
            return  # Not from a Holdfast name server.
        if self._deletions.merge(markers):
            self._save()
            self._turn.fire(NEWS_TIMER)

    def block_creation(self, topic: str) -> None:
        """Block creation of deleted *topic* by sends for `BLOCK_MS`; its marker follows if it is deleted everywhere."""
        now_ms = self._turn.now_ms
        if self._has_name_servers and is_marked_when_deleted(topic):
            self._blocked = {name: until_ms for name, until_ms in self._blocked.items() if until_ms > now_ms}
            self._blocked[topic] = now_ms + BLOCK_MS

    def lift(self, topic: str) -> None:
        """Remove the marker of *topic*, which was explicitly created. The next registration notifies name servers."""
        self._blocked.pop(topic, None)
        if self._deletions.lift(topic, self._cluster, self._turn.now_ms):
            self._save()

    def _save(self) -> None:
        self.encoded = encode_markers(self._deletions.all())
        self.file.save_change()
