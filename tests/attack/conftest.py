"""What most attacks begin with: a broker that alice and eve share."""

from __future__ import annotations

import pytest
from tests.support.access import Users, guarded_broker, log_in
from tests.support.cluster.broker_machine import BrokerHarness


@pytest.fixture
def desk() -> BrokerHarness:
    """Each may do everything with her own topic and group. Eve is logged in on channel 1, alice on channel 2."""
    broker = guarded_broker()
    for topic in ("mine", "secret"):
        broker.make_topic(topic)
    users = Users(broker)
    users.add("eve", "Topic:mine All", "Group:mine All")
    users.add("alice", "Topic:secret All", "Group:secret All")
    for channel, user in ((1, "eve"), (2, "alice")):
        if channel != 1:
            broker.connect(channel)
        assert log_in(broker, channel, user).code == 0
    return broker
