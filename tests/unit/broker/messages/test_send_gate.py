"""When a broker accepts no messages at all. Full disks and disk errors are in tests/unit/broker/test_core.py."""

import pytest

from holdfast.broker.messages.send_gate import SendGate
from holdfast.broker.options import BrokerOptions
from holdfast.broker.service import store_options
from holdfast.machine.pressure import MemoryPressure
from holdfast.sim.world.disk import SimDisk
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import ResponseCode


@pytest.mark.parametrize(
    ("replica_of", "is_high", "code"),
    [
        (None, False, None),
        (None, True, ResponseCode.SYSTEM_BUSY),
        ("a", False, ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
def test_a_broker_that_can_store_messages_accepts_them(
    replica_of: str | None,
    is_high: bool,  # noqa: FBT001
    code: ResponseCode | None,
) -> None:
    """Not a replica, nor one whose memory slow connections fill."""
    options = BrokerOptions(name="a", replica_of=replica_of)
    store = MessageStore.open(SimDisk(), store_options(options), 0)

    refusal = SendGate(options, store, MemoryPressure(is_high=is_high)).find_refusal()

    assert (None if refusal is None else refusal.code) == code
