"""The leases of the queues that this broker leads. While leases are enabled, a queue accepts sends under a lease only.

`failover/queue_leases.py` renews them. Their time is not `Turn.now_ms`, the clock of the machine, which an operator can
set back: a lease would then last longer here than at the name servers. `elapsed_ms` adds up how far that clock advanced
between events, so it never goes back.
"""

from __future__ import annotations

from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.model.queue import QueueKey


class HeldLeases:
    """The leases held, and whether those of a queue have lapsed.

    Attributes:
        is_enabled: Whether leases are enabled.
        majority: How many name servers must confirm a lease.
        elapsed_ms: The time since the process started, as far as the clock advanced.
        ends: The generation and the end of each lease, by queue; the end is 0 if the queue has none.
    """

    def __init__(self, options: BrokerOptions, mappings: Mappings) -> None:
        self.is_enabled = options.auto_force and bool(options.namesrv)
        self.majority = len(set(options.namesrv)) // 2 + 1
        self.elapsed_ms = 0
        self.ends: dict[QueueKey, tuple[int | None, int]] = {}
        self._mappings = mappings
        self._name = options.name
        self._namesrv = ", ".join(dict.fromkeys(options.namesrv))

    def find_lapse(self, queue_key: QueueKey) -> str | None:
        """Return what an open queue waits for before its sends are accepted; None if they are, or it is not open."""
        if not self.is_enabled:
            return None
        placement = self._mappings.placement(*queue_key)
        if placement.state != "open":
            return None
        lease = self.ends.get(queue_key)
        is_held = lease is not None and lease[0] == placement.generation and self.elapsed_ms < lease[1]
        return None if is_held else self.describe_wait()

    def describe_wait(self) -> str:
        """Return what a queue without a lease waits for."""
        return f"{self.majority} of the name servers {self._namesrv} renew the lease of {self._name}"
