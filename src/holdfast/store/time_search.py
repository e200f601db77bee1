"""Find offsets by store time: a bisection of a queue, with times taken from the records.

Store times never go back along the log, so they never go back along a queue. A record that is gone counts as older than
any time. Knows neither files nor clocks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from holdfast.store.consume_queue import QueueLog
from holdfast.wire.record import BORN_HOST_V6

View = Callable[[int, int], memoryview | None]

_SYS_FLAG_AT = 36
_STORE_TIME_AT = 56
_TIMES_END = _STORE_TIME_AT + 12 + 8
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


def read_store_time(view: View, queue: QueueLog, offset: int) -> int | None:
    """Return when the message at *offset* was stored; None when it is gone or blank."""
    if not queue.offset_min <= offset < queue.offset_max:
        return None
    position, size, _ = queue.get_entry(offset)
    data = view(position, size) if size >= _TIMES_END else None
    if data is None:
        return None
    (sys_flag,) = _I32.unpack_from(data, _SYS_FLAG_AT)
    (store_ms,) = _I64.unpack_from(data, _STORE_TIME_AT + (12 if sys_flag & BORN_HOST_V6 else 0))
    return int(store_ms)


def find_offset_at(view: View, queue: QueueLog, time_ms: int, *, upper: bool) -> int:
    """Return the first offset at or after *time_ms*, or with *upper* the last one at or before it."""
    low, high = queue.offset_min, queue.offset_max
    while low < high:
        middle = (low + high) // 2
        store_ms = read_store_time(view, queue, middle)
        is_before = store_ms is None or (store_ms <= time_ms if upper else store_ms < time_ms)
        if is_before:
            low = middle + 1
        else:
            high = middle
    return max(queue.offset_min, low - 1) if upper else low
