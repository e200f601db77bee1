"""The KV store: small values by namespace and key. Changes are durable before they are acknowledged.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}

Changes that arrive during a write are written together by the next one, and each is acknowledged when the write that
contains it is on disk. A failed write is retried every few seconds: its changes are in effect already and must survive
a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile, UnreadableFile
from holdfast.machine.request import Answer, Request, answer_later
from holdfast.machine.turn import Turn
from holdfast.model.errors import ConfigError
from holdfast.store.base.disk import Disk
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import ResponseCode

FILE: Final = "kvConfig.json"
TIMER: Final = "kv"
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
DELETIONS: Final = "HOLDFAST_DELETIONS"
"""Namespace of the deletion markers."""
UNITS: Final = "HOLDFAST_UNITS"
"""Namespace of the switch for the loss of a site. It has a version and is replaced as a whole."""


class _File(msgspec.Struct, frozen=True, rename="camel"):
    """The content of the file."""

    config_table: dict[str, dict[str, str]] = {}


class KvStore(Component):
    """Values by namespace and key.

    Args:
        turn: The turn of the name server.
        disk: Where the file is; None: changes last until the process ends.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, turn: Turn, disk: Disk | None) -> None:
        self._turn = turn
        self._file = KeptFile(
            turn,
            disk,
            FILE,
            lambda: _File(self._tables),
            encode=java_json.encode,
            decode=_decode,
            retry_timer=TIMER,
            has_backup=False,
        )
        try:
            self._tables = (self._file.load() or _File()).config_table
        except UnreadableFile as error:
            raise ConfigError(f"{FILE} cannot be read; repair it or move it away: {error.reason}") from error

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the file."""
        return (self._file,)

    def find(self, namespace: str, key: str) -> str | None:
        """Return a value; None if there is none."""
        return self._tables.get(namespace, {}).get(key)

    def find_namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all values of *namespace*; None if it was never used."""
        return self._tables.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Save it afterwards."""
        self._tables.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value if it exists. Save that afterwards."""
        self._tables.get(namespace, {}).pop(key, None)

    def save(self, request: Request) -> Answer:
        """Save the last change and acknowledge *request* when it is durable: at once if that is never so."""
        if not self._file.is_durable:
            return request.answer()
        self._file.save_soon(lambda failure: self._acknowledge(request, failure))
        return None

    def save_soon(self) -> None:
        """Save the last change, for which no request waits."""
        self._file.save_soon()

    def _acknowledge(self, request: Request, failure: str | None) -> None:
        if failure is None:
            answer = request.answer()
        else:
            remark = f"changed, but not saved yet, and lost if this name server restarts before it is: {failure}"
            answer = request.answer(ResponseCode.SYSTEM_ERROR, remark)
        answer_later(self._turn, request, answer)


def _decode(content: bytes) -> _File:
    return java_json.decode(content, _File) if content else _File()
