"""Every knob of the log engine, with upstream's defaults where it has one.

Sizes of files hold for new folders only: where files exist already, their sizes are found from the folder.
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
    """How a store is laid out and how long it keeps what.

    Attributes:
        store_host: Address of this broker as records hold it; message ids are made of it.
        index_slots: Hash slots of a key index file. The size of a file does not tell them apart from its items, so they
            must be what the folder was written with; files of another size are left alone and not searched.
        hot_window: How much of the log's end is taken to be in the page cache.
        retention_ms: A log file goes when the first record behind it is older than this.
        clean_forced_percent: Above this use of the disk the oldest files go, whatever their age.
        disk_full_percent: Above this use of the disk writes are refused.
        checkpoint_interval_ms: Indexes and log are synced and the point of recovery moves at least this often.
        is_replica: The log is a copy of another broker's: nothing is staged, bytes are appended as they are there.
        delay_levels_ms: Delay of level 1, 2, ...: entries of the schedule topic carry the time of delivery.
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
