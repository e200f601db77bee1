"""What most tests of batches begin with."""

import pytest
from tests.support.batch_bytes import make_topic
from tests.support.cluster.broker_machine import BrokerHarness


@pytest.fixture
def desk() -> BrokerHarness:
    """A broker with a topic T that is indexed by record, in files of four entries."""
    desk = BrokerHarness(queue_file_entries=4)
    make_topic(desk)
    return desk
