"""Watches that a broker reads no index files while it handles an event: whatever is cold is read elsewhere."""

from __future__ import annotations

import pytest
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.machine.effects import Effect, ReadLog
from holdfast.machine.events import Event


def forbid_index_reads(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every read of an index file fail that happens while the broker handles an event.

    But of one that was read ahead elsewhere just before: that is in memory now.
    """
    handle = harness.broker.handle
    warm: set[str] = set()

    def forbid(call: str, path: str) -> None:
        is_allowed = call != "read" or path.startswith("commitlog") or path in warm
        assert is_allowed, f"{path} is read on the loop"

    def watch(event: Event) -> list[Effect]:
        harness.disk.before = forbid
        try:
            effects = handle(event)
        finally:
            harness.disk.before = None
        warm.update(effect.file.path for effect in effects if isinstance(effect, ReadLog))
        return effects

    monkeypatch.setattr(harness.broker, "handle", watch)
