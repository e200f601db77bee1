"""The id that a client gives each message it sends, as upper-case hex.

    | address 4 or 16 bytes | process i16 | salt i32 | time i32 | count i16 |    32 or 56 characters

`time` is milliseconds since the start of the month in local time: readers estimate the send time from it, and search
only from there. The caller supplies address, process and time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_COUNT_LIMIT = 0x10000
# The endings of ids that are made together: concatenating two texts costs a sixth of formatting a number.
_ENDS = [f"{number:02X}" for number in range(0x100)]


class UniqueIds:
    """Makes ids that no other process makes.

    Args:
        host: The packed address of this machine, 4 or 16 bytes.
        process: The process id; its low 16 bits are used.
        salt: Distinguishes instances in one process; 32 bits.
        utc_offset_ms: How far local time is ahead of UTC.
    """

    def __init__(self, *, host: bytes, process: int, salt: int, utc_offset_ms: int = 0) -> None:
        fixed = host + (process & 0xFFFF).to_bytes(2, "big") + (salt & 0xFFFFFFFF).to_bytes(4, "big")
        self._fixed = fixed.hex().upper()
        self._utc_offset_ms = utc_offset_ms
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._count = 0

    def next(self, now_ms: int) -> str:
        """Return the next id."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._find_month(now_ms)
        self._count = (self._count + 1) % _COUNT_LIMIT
        return f"{self._fixed}{now_ms - self._month_start_ms:08X}{self._count:04X}"

    def next_many(self, now_ms: int, count: int) -> list[str]:
        """Return the next *count* ids."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._find_month(now_ms)
        fixed = f"{self._fixed}{now_ms - self._month_start_ms:08X}"
        first = self._count + 1
        end = first + count
        self._count = (end - 1) % _COUNT_LIMIT
        ids: list[str] = []
        for block in range(first & ~0xFF, end, 0x100):
            begin = f"{fixed}{(block & 0xFFFF) >> 8:02X}"
            ids += [begin + ending for ending in _ENDS[max(first - block, 0) : end - block]]
        return ids

    def _find_month(self, now_ms: int) -> None:
        local = datetime.fromtimestamp((now_ms + self._utc_offset_ms) / 1000, UTC)
        start = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + timedelta(days=32)).replace(day=1)
        self._month_start_ms = int(start.timestamp() * 1000) - self._utc_offset_ms
        self._month_end_ms = int(end.timestamp() * 1000) - self._utc_offset_ms
