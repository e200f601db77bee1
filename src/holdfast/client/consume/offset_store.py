"""Loads and saves a consumer's offsets: at the brokers for a group, in a file for a broadcasting consumer.

    load(queue)        the offset to begin at: the saved one, else the consumer's start option
    save()             saves the offsets that changed since the last time
    recommit(offsets)  commits again after a broker may have lost commits

The shell around `committed_offsets`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.client.cluster.cluster_client import monotonic_ms
from holdfast.client.cluster.queue_rpc import QueueRpc, Start
from holdfast.client.consume.committed_offsets import CommittedOffsets, decode_offsets, encode_offsets
from holdfast.model.errors import ConfigError, HoldfastError, ProtocolError
from holdfast.model.queue import LogicalOffset, MessageQueue

log = logging.getLogger("holdfast.client")


class OffsetStore:
    """The offsets of one consumer.

    Args:
        rpc: The brokers.
        start: Where to begin with a queue that has no saved offset.
        file: Save all offsets here instead of at brokers.
    """

    def __init__(self, rpc: QueueRpc, start: Start, file: Path | None = None) -> None:
        self.offsets = CommittedOffsets()
        self._rpc = rpc
        self._start = start
        self._file = file
        self._saved: dict[MessageQueue, LogicalOffset] | None = None

    async def load(self, queue: MessageQueue) -> LogicalOffset:
        """Return the offset at which to begin with *queue*, and record it.

        Raises:
            HoldfastError: the offset could not be determined. Any other offset would skip or repeat messages.
        """
        saved = await self._find(queue)
        offset = await self._rpc.first_offset(queue, self._start) if saved is None else saved
        offset = self.offsets.resume(queue, offset, monotonic_ms())
        if not saved:
            # Save it next time although nothing was consumed. A consumer that begins at the end of the queue must not
            # begin at a later end after a restart and skip the messages in between. Brokers answer 0 for a queue that
            # still has its first message if nothing was committed.
            self.offsets.mark_uncommitted(queue)
        return offset

    async def _find(self, queue: MessageQueue) -> LogicalOffset | None:
        """Return the saved offset of *queue*."""
        if self._file is None:
            return await self._rpc.committed(queue)
        if self._saved is None:
            self._saved = await asyncio.to_thread(_read, self._file)
        return self._saved.get(queue)

    def release(self, queue: MessageQueue) -> None:
        """Record that *queue* belongs to another member now; an offset that could not be saved is kept for a while."""
        self.offsets.release(queue, monotonic_ms())

    async def save(self) -> bool:
        """Save the changed offsets. Return False if some could not be saved; the next call retries them."""
        uncommitted = self.offsets.uncommitted()
        if not uncommitted:
            return True
        if self._file is None:
            return all(await asyncio.gather(*(self._commit(queue, offset) for queue, offset in uncommitted.items())))
        all_offsets = (self._saved or {}) | self.offsets.snapshot()
        try:
            await asyncio.to_thread(_write, self._file, encode_offsets(all_offsets))
        except OSError as error:
            log.error("offsets could not be written to %s: %s", self._file, error)  # noqa: TRY400 - the text is enough
            return False
        self._saved = all_offsets
        for queue, offset in uncommitted.items():
            self.offsets.mark_committed(queue, offset)
        return True

    async def recommit(self, offsets: Mapping[MessageQueue, LogicalOffset]) -> dict[MessageQueue, LogicalOffset]:
        """Commit *offsets* again where brokers lost them: a broker that crashed lost the commits of its last seconds.

        Returns:
            Offsets of brokers that are ahead of ours: another member, or an operator, moved the group on meanwhile.
        """
        if self._file is not None:
            return {}
        found = await asyncio.gather(*(self._recommit(queue, offset) for queue, offset in offsets.items()))
        return {queue: ahead for queue, ahead in zip(offsets, found, strict=True) if ahead is not None}

    async def _recommit(self, queue: MessageQueue, offset: LogicalOffset) -> LogicalOffset | None:
        self.offsets.mark_uncommitted(queue)
        try:
            committed = await self._rpc.committed(queue)
        except HoldfastError as error:
            log.warning("the committed offset of %s could not be queried: %s", queue, error)
            return None
        if committed is not None and committed > offset:
            return committed
        if committed == offset:
            self.offsets.mark_committed(queue, offset)
        else:
            await self._commit(queue, offset)
        return None

    async def _commit(self, queue: MessageQueue, offset: LogicalOffset) -> bool:
        try:
            await self._rpc.commit(queue, offset)
        except HoldfastError as error:
            log.warning("offset %d of %s could not be committed: %s", offset, queue, error)
            return False
        self.offsets.mark_committed(queue, offset)
        return True


def _read(file: Path) -> dict[MessageQueue, LogicalOffset]:
    """Return the offsets in *file*.

    Raises:
        ConfigError: the file exists but is not usable. Ignoring it would repeat or skip messages.
    """
    try:
        return decode_offsets(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ProtocolError) as error:
        raise ConfigError(f"offsets cannot be read from {file}: {error}") from error


def _write(file: Path, data: bytes) -> None:
    """Replace *file* atomically: after a crash, either the old or the new content is there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(file.suffix + ".new")
    with new.open("wb") as target:
        target.write(data)
        target.flush()
        os.fsync(target.fileno())
    new.replace(file)
