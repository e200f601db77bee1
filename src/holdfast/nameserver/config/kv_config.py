"""The KV store: small values by namespace and key. Changes are durable before they are acknowledged.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}

One write is in progress at a time. Changes that arrive meanwhile are written together by the next write. Each change is
acknowledged when the write that contains it is on disk:

    idle --change--> writing --change--> writing, more waiting --written--> writing ... --written--> idle

A failed write is retried every few seconds: its changes are in effect already and must survive a restart.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.machine.effects import WriteFile
from holdfast.machine.events import ChannelId
from holdfast.model.errors import ConfigError, RemoteProtocolError
from holdfast.wire.frames import java_json
from holdfast.wire.frames.command import Command

FILE: Final = "kvConfig.json"
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
DELETIONS: Final = "HOLDFAST_DELETIONS"
"""Namespace of the deletion markers."""
UNITS: Final = "HOLDFAST_UNITS"
"""Namespace of the switch for the loss of a site. It has a version and is replaced as a whole."""


class _File(msgspec.Struct, frozen=True, rename="camel"):
    """The content of the file."""

    config_table: dict[str, dict[str, str]] = {}


class Waiter(msgspec.Struct, frozen=True):
    """A request to answer once its change is durable."""

    channel: ChannelId
    request: Command


class KvStore:
    """Values by namespace and key.

    Args:
        content: Content of the file when the name server stopped; None if there was none.
        is_durable: Whether changes are written to the file at all.

    Raises:
        ConfigError: the content cannot be read.
    """

    def __init__(self, content: bytes | None, *, is_durable: bool) -> None:
        self._is_durable = is_durable
        self._waiting: list[Waiter] = []
        self._is_unsaved = False  # A change that no request waits for is not written yet.
        self._being_written: list[Waiter] | None = None
        try:
            self._tables = java_json.decode(content, _File).config_table if content else {}
        except RemoteProtocolError as error:
            raise ConfigError(f"{FILE} cannot be read; repair it or move it away: {error}") from error

    def find(self, namespace: str, key: str) -> str | None:
        """Return a value; None if there is none."""
        return self._tables.get(namespace, {}).get(key)

    def find_namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all values of *namespace*; None if it was never used."""
        return self._tables.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Call `save` afterwards."""
        self._tables.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value if it exists. Call `save` afterwards."""
        self._tables.get(namespace, {}).pop(key, None)

    def save(self, waiter: Waiter) -> tuple[list[Waiter], list[WriteFile]]:
        """Start to save the last change; return the requests that can be answered at once, and the write."""
        if not self._is_durable:
            return [waiter], []
        self._waiting.append(waiter)
        return [], self._begin()

    def save_without_waiter(self) -> list[WriteFile]:
        """Start to save the last change, which no request waits for; return the write."""
        self._is_unsaved = self._is_durable
        return self._begin()

    def written(self) -> tuple[list[Waiter], list[WriteFile]]:
        """End the current write; return the requests that waited for it, and the next write."""
        done, self._being_written = self._being_written or [], None
        return done, self._begin()

    def failed(self) -> tuple[list[Waiter], list[WriteFile]]:
        """End the current write as failed; return the requests that waited for it, and the next write. Retry later."""
        done, writes = self.written()
        self._is_unsaved = self._is_unsaved or not writes
        return done, writes

    def retry(self) -> list[WriteFile]:
        """Return the write to repeat if the last one failed."""
        return self._begin()

    def _begin(self) -> list[WriteFile]:
        if self._being_written is not None or not (self._waiting or self._is_unsaved):
            return []
        self._being_written, self._waiting, self._is_unsaved = self._waiting, [], False
        return [WriteFile(FILE, java_json.encode(_File(self._tables)))]
