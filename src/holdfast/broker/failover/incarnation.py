"""Identifies the process of a broker: a number that rises with every start, even if the clock went back.

    config/holdfastBoot.json   {"boot": 1763258400123}

A name server uses it to ignore delayed requests of an earlier process of the same broker.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.broker.tables.config_file import config_file
from holdfast.machine.turn import Turn
from holdfast.model.numbers import Int64
from holdfast.store.base.disk import Disk

FILE: Final = "holdfastBoot.json"


class Incarnation(msgspec.Struct, frozen=True):
    """The content of the file."""

    boot: Int64


def start_incarnation(disk: Disk, turn: Turn) -> int:
    """Return the number of this process, after saving it: no other process sees a number that is not on disk."""
    number = turn.now_ms
    file = config_file(turn, disk, FILE, Incarnation, lambda: Incarnation(number))
    last = file.load()
    if last is not None:
        number = max(number, last.boot + 1)
    file.save_now()
    return number
