"""Which process of a broker this is: a number that rises with every start, also when the clock went back.

    config/holdfastBoot.json   {"boot": 1763258400123}

By it a name server tells what a process says now from what the one before it said, which may still be on its way.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.tables.config_store import load_config, save_config
from holdfast.model.numbers import Int64
from holdfast.store.base.disk import Disk

FILE: Final = "holdfastBoot.json"


class Boot(msgspec.Struct, frozen=True):
    """What is on disk."""

    boot: Int64


def begin_boot(disk: Disk, now_ms: int) -> int:
    """Return the number of the process that starts now. It is on disk before anybody hears of it."""
    last = load_config(disk, FILE, Boot)
    boot = now_ms if last is None else max(now_ms, last.boot + 1)
    save_config(disk, FILE, Boot(boot))
    return boot
