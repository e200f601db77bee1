"""Callbacks in forked children for objects that only the parent process can use.

A child inherits sockets and locks, but neither the threads nor the event loops that serve them. An object that holds
any of these registers a method, which runs in every forked child before any other code of the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakMethod

_registered: Final[set[WeakMethod[Callable[[], None]]]] = set()


def register_after_fork(method: Callable[[], None]) -> None:
    """Call the bound *method* in every child that this process forks, as long as its object lives.

    It must neither block nor await: the parent's threads do not exist in the child, even if they held locks.
    """
    _registered.add(WeakMethod(method, _registered.discard))


def _run_in_child() -> None:
    for reference in list(_registered):
        method: Callable[[], Any] | None = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):  # A system without it cannot fork either.
    os.register_at_fork(after_in_child=_run_in_child)
