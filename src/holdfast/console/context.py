"""What the handlers of endpoints get."""

from __future__ import annotations

import msgspec

from holdfast.admin.operations import Admin
from holdfast.console.plans import PendingPlans
from holdfast.console.poller import Poller
from holdfast.runtime.logs import Emit


class Context(msgspec.Struct, frozen=True):
    """One console.

    Attributes:
        admin: The cluster.
        plans: Plans that were shown and not applied yet.
        poller: Reads what changes, for all listeners.
        emit: Writes log lines.
        is_read_only: Whether it refuses every change.
    """

    admin: Admin
    plans: PendingPlans
    poller: Poller
    emit: Emit
    is_read_only: bool = False
