"""The options of the log engine, with RocketMQ's defaults where it has the option.

File sizes apply to new folders only: existing files keep theirs, which is read from the folder.
"""

from __future__ import annotations

import msgspec

from holdfast.wire.frames.host import pack_host

MIB = 1 << 20
HOUR_MS = 3_600_000

DELAY_LEVELS_MS = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Layout and retention of a store.

    Attributes:
        store_host: This broker's address as stored in records; message ids contain it.
        index_slots: Hash slots of a key index file. The file size does not show how many of its bytes are slots and how
            many are items, so set it as the folder was written; files of another size are kept but not searched.
        hot_window: The number of bytes at the end of the log that are assumed to be in the page cache.
        retention_ms: A log file is removed when the first record after it is older than this.
        clean_forced_percent: Above this disk usage the oldest files are removed, whatever their age.
        disk_full_percent: Above this disk usage writes are refused.
        checkpoint_interval_ms: At least this often indexes and log are synced and the recovery point advances.
        is_replica: The log replicates another broker's: nothing is staged, received bytes are appended unchanged.
        delay_levels_ms: Delay of level 1, 2, ...: entries of the schedule topic carry the delivery time.
    """

    store_host: bytes = pack_host("127.0.0.1:10911")
    log_file_size: int = 1024 * MIB
    queue_file_size: int = 300_000 * 20
    batch_file_size: int = 300_000 * 46
    index_slots: int = 5_000_000
    index_items: int = 20_000_000
    key_index: bool = True
    body_size_max: int = 4 * MIB
    hot_window: int = 4096 * MIB
    retention_ms: int = 72 * HOUR_MS
    clean_forced_percent: int = 85
    disk_full_percent: int = 90
    clean_files_max: int = 10
    checkpoint_interval_ms: int = 10_000
    checkpoint_bytes: int = 256 * MIB
    open_files_max: int = 128
    is_replica: bool = False
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
