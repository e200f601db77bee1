"""The KV store: small settings by namespace and key, durable before they are acknowledged.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}

One write is under way at a time. Changes that come meanwhile go out together with the next one, and whoever asked for
a change is answered when the write that holds it has reached the disk:

    idle --change--> writing --change--> writing, more waiting --written--> writing ... --written--> idle

A write that the disk refuses is tried again every few seconds: its changes hold already, and must outlive a restart.
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
"""Where deletion markers are kept."""
UNITS: Final = "HOLDFAST_UNITS"
"""Where the switch for the loss of a site is kept. It has a version: it is changed as a whole, or not at all."""


class _File(msgspec.Struct, frozen=True, rename="camel"):
    """What the file holds."""

    config_table: dict[str, dict[str, str]] = {}


class Waiter(msgspec.Struct, frozen=True):
    """Somebody who is told when a change is durable."""

    channel: ChannelId
    request: Command


class KvStore:
    """Settings by namespace and key.

    Args:
        content: What the file held when the name server stopped; None when there was none.
        is_durable: Whether changes are written to the file at all.

    Raises:
        ConfigError: the content cannot be read.
    """

    def __init__(self, content: bytes | None, *, is_durable: bool) -> None:
        self._is_durable = is_durable
        self._waiting: list[Waiter] = []
        self._is_unsaved = False  # Something changed for which nobody waits.
        self._being_written: list[Waiter] | None = None
        try:
            self._tables = java_json.decode(content, _File).config_table if content else {}
        except RemoteProtocolError as error:
            raise ConfigError(f"{FILE} cannot be read; repair it or move it away: {error}") from error

    def find(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._tables.get(namespace, {}).get(key)

    def find_namespace(self, namespace: str) -> dict[str, str] | None:
        """Return everything in *namespace*, or None when nothing was ever put there."""
        return self._tables.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Follow with `save`."""
        self._tables.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value; it need not exist. Follow with `save`."""
        self._tables.get(namespace, {}).pop(key, None)

    def save(self, waiter: Waiter) -> tuple[list[Waiter], list[WriteFile]]:
        """Begin to make the last change durable; return who can be answered at once, and what to write."""
        if not self._is_durable:
            return [waiter], []
        self._waiting.append(waiter)
        return [], self._begin()

    def save_alone(self) -> list[WriteFile]:
        """Begin to make the last change durable, for which nobody waits; return what to write."""
        self._is_unsaved = self._is_durable
        return self._begin()

    def written(self) -> tuple[list[Waiter], list[WriteFile]]:
        """Take note that the write under way has ended, well or not; return who waited, and what to write next."""
        done, self._being_written = self._being_written or [], None
        return done, self._begin()

    def failed(self) -> tuple[list[Waiter], list[WriteFile]]:
        """Take note that the write under way failed; return who waited, and what to write next. `retry` in a while."""
        done, writes = self.written()
        self._is_unsaved = self._is_unsaved or not writes
        return done, writes

    def retry(self) -> list[WriteFile]:
        """Return what to write if the last write failed."""
        return self._begin()

    def _begin(self) -> list[WriteFile]:
        if self._being_written is not None or not (self._waiting or self._is_unsaved):
            return []
        self._being_written, self._waiting, self._is_unsaved = self._waiting, [], False
        return [WriteFile(FILE, java_json.encode(_File(self._tables)))]
