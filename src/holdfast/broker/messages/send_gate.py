"""Decides whether the broker accepts messages at all, whatever the message: disk, role and memory."""

from __future__ import annotations

from holdfast.broker.flow.request import Refusal
from holdfast.broker.options import BrokerOptions
from holdfast.machine.pressure import MemoryPressure
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.replica_log import REPLICA_REFUSAL
from holdfast.wire.frames.codes import ResponseCode


class SendGate:
    """Refuses every message while the broker can store none."""

    def __init__(self, options: BrokerOptions, store: MessageStore, pressure: MemoryPressure) -> None:
        self._options = options
        self._is_replica = options.is_replica
        self._store = store
        self._pressure = pressure

    def find_refusal(self) -> Refusal | None:
        """Return why the broker accepts no messages now, or None."""
        store = self._store
        if not store.reserve_space():
            if store.shortage is not None:
                return Refusal(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"the disk of broker {self._options.name} has no space for the index of its messages; free space "
                    "or shorten the retention: sends are accepted again within a second, and reading continues",
                )
            return Refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the disk of broker {self._options.name} is more than {self._options.disk_full_percent} % full, or "
                "has no space for another log file; free space or shorten the retention; reading continues",
            )
        if self._is_replica:
            return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, REPLICA_REFUSAL)
        if store.log.fault is not None:
            return Refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"broker {self._options.name} accepts no messages after a disk error; see its log, then restart it",
            )
        if store.log.written - store.confirmed > self._options.unsynced_size_max:
            return Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[PCBUSY_CLEAN_QUEUE]broker {self._options.name} waits for its disk; try again in a moment",
            )
        if self._pressure.is_high:
            return Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[PCBUSY_CLEAN_QUEUE]broker {self._options.name} holds too much for slow connections; "
                "try again in a moment, or let its operator raise memory_limit",
            )
        return None
